"""The labels of the text that was found, and how often each part of it occurs: from the head's
gradient, by what it predicts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from unsum.head import Head, find_head
from unsum.models.language import IGNORED, is_tied
from unsum.notes import Code, Note
from unsum.separate.text.counts import Counts, count, count_classes
from unsum.separate.text.network import Layer, read_at_ends, read_whole
from unsum.separate.text.recovered import Text
from unsum.separate.text.sentences import hidden_labels, sentences, with_ends
from unsum.separate.text.walk import Walk

_NO_CLEAN_ROW = (
    "Every token of the vocabulary occurs, and tied embeddings hide the head's gradient of each "
    "that does."
)
_NOT_WHOLE = Note("How often prefixes occur did not come out as whole numbers.", Code.DOUBTED_TEXT)


class LabelsFound:
    """The text with its labels, the layers that led to them besides the head, and notes; no text
    where none was found."""

    def __init__(
        self, text: Text | None, used: Sequence[Layer] = (), notes: Sequence[str] = ()
    ) -> None:
        self.text, self.used, self.notes = text, list(used), list(notes)


def next_labels(model: nn.Module, head: Head, found: Walk, last: Layer) -> LabelsFound:
    """Of prefixes: which tokens follow them."""
    F = read_at_ends(model, find_head(model)[1], found.prefixes)
    used = torch.tensor(sorted({prefix[-1] for prefix in found.prefixes}), device=F.device)
    counts = count(head, F, used if is_tied(model) else used[:0])
    if counts is None:
        return LabelsFound(None, notes=[_NO_CLEAN_ROW])
    text, open_ends = sentences(found, counts)
    layers: list[Layer] = []
    if open_ends:
        text, layers = with_ends(model, last, found, counts, open_ends, used), [last]
    return LabelsFound(text, layers, _doubts(counts))


def masked_labels(
    model: nn.Module, head: Head, sequences: Sequence[tuple[int, ...]], last: Layer
) -> LabelsFound:
    """Of whole sequences: which tokens stand behind the masks, wherever these are."""
    F = torch.cat(read_whole(model, find_head(model)[1], sequences))
    used = torch.tensor(
        sorted({token for sequence in sequences for token in sequence}), device=F.device
    )
    counts = count(head, F, used if is_tied(model) else used[:0])
    if counts is None:
        return LabelsFound(None, notes=[_NO_CLEAN_ROW])
    places = [(sequence, place) for sequence in sequences for place in range(len(sequence))]
    wanted = {i: n - sum(counts.labels[i].values()) for i, n in enumerate(counts.positions)}
    wanted = {i: n for i, n in wanted.items() if n > 0}
    layers: list[Layer] = []
    if wanted:
        X = torch.cat(read_whole(model, last.module, sequences))
        for i, more in hidden_labels(model, last, X, places, counts, wanted, used).items():
            for token in more:
                counts.labels[i][token] = counts.labels[i].get(token, 0) + 1
        layers = [last]
    tokens: list[list[int]] = []
    labels: list[list[int]] = []
    start = 0
    for sequence in sequences:
        behind = [
            [token for token, times in counts.labels[start + place].items() for _ in range(times)]
            for place in range(len(sequence))
        ]
        for copy in range(max(map(len, behind))):
            tokens.append(list(sequence))
            labels.append([some[copy] if copy < len(some) else IGNORED for some in behind])
        start += len(sequence)
    return LabelsFound(Text(tokens, labels), layers, _doubts(counts))


def class_labels(head: Head, texts: Sequence[tuple[int, ...]], F: Tensor) -> LabelsFound:
    """Of texts that may have been in the batch, with what the head reads of them (n, H): which
    were, and their classes."""
    counts = count_classes(head, F)
    tokens, labels = [], []
    for text, some in zip(texts, counts.labels, strict=True):
        for label, times in some.items():
            tokens += [list(text)] * times
            labels += [[label]] * times
    return LabelsFound(Text(tokens, labels), notes=_doubts(counts))


def _doubts(counts: Counts) -> list[str]:
    return [] if counts.whole else [_NOT_WHOLE]
