"""From a tree of prefixes with counts to the client's sequences.

n positions behind a prefix have n next tokens. Those that a longer prefix goes on with are followed; the others were last.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.models.language import IGNORED
from unsum.separate.text.counts import Counts
from unsum.separate.text.walk import Walk


@dataclass(frozen=True)
class Text:
    """Sequences in the attacker's order, the last token of each known as a label only; `kept[i][j]` says whether token j ≥ 1

    of sequence i is a label that counted. `open_ends` are prefixes whose last label is not known, with their number.
    """

    tokens: list[list[int]]
    kept: list[list[bool]]
    open_ends: dict[int, int]

    def batch(self) -> tuple[Tensor, Tensor]:
        """(n, L) tokens and labels as a client would have them, padded on the right."""
        longest = max((len(sequence) for sequence in self.tokens), default=1)
        tokens = torch.zeros(len(self.tokens), longest, dtype=torch.long)
        labels = torch.full_like(tokens, IGNORED)
        for row, (sequence, kept) in enumerate(zip(self.tokens, self.kept, strict=True)):
            tokens[row, : len(sequence)] = torch.tensor(sequence)
            for place in range(1, len(sequence)):
                if kept[place]:
                    labels[row, place] = sequence[place]
        return tokens, labels


def sentences(walk: Walk, counts: Counts, ends: dict[int, list[int]] | None = None) -> Text:
    """The sequences; `ends` gives labels that were found for prefixes whose own rows did not tell them."""
    through = _sequences_through(walk, counts)
    tokens: list[list[int]] = []
    kept: list[list[bool]] = []
    open_ends: dict[int, int] = {}
    for index, prefix in enumerate(walk.prefixes):
        labels = dict(counts.labels[index])
        for token in (ends or {}).get(index, []):
            labels[token] = labels.get(token, 0) + 1
        goes_on = {walk.prefixes[child][-1]: through[child] for child in walk.children(index)}
        for token, times in labels.items():
            for _ in range(times - goes_on.get(token, 0)):
                tokens.append([*prefix, token])
                kept.append(_kept(walk, counts, index))
        known = sum(max(times, goes_on.get(token, 0)) for token, times in labels.items())
        known += sum(times for token, times in goes_on.items() if token not in labels)
        if counts.positions[index] > known:
            open_ends[index] = counts.positions[index] - known
    return Text(tokens, kept, open_ends)


def _sequences_through(walk: Walk, counts: Counts) -> list[int]:
    """How many sequences begin with each prefix: those that end there and those that go on, whichever is more."""
    through = list(counts.positions)
    for index in reversed(range(len(walk.prefixes))):  # longer prefixes come later
        below = sum(through[child] for child in walk.children(index))
        through[index] = max(through[index], below)
    return through


def _kept(walk: Walk, counts: Counts, index: int) -> list[bool]:
    """For the sequence that ends with a label of prefix `index`: which of its tokens were labels that counted."""
    flags = []
    while index >= 0:
        flags.append(counts.positions[index] > 0)
        index = walk.parents[index]
    return [False, *reversed(flags)]
