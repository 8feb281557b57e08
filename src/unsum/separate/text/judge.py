"""What may be claimed about recovered text: the replay is weighed by what every sequence, position
and token sends.

The search used a few tensors of the gradient. The others confirm the text, those of them that show
every sequence.

Three things tell a token that is read: the label of the position before it; its own row of the
embedding, which another token would leave alone; and what the head reads from there on, which
another token would change.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unsum.certify.claim import Claim, Evidence, grant
from unsum.certify.counted import count
from unsum.certify.doubts.replay import (
    doubt_exchanged,
    doubt_invisible,
    doubt_missing,
    doubt_relabeled,
    doubt_rest,
)
from unsum.certify.question import name_some
from unsum.head import find_head
from unsum.knowledge import Knowledge
from unsum.models.language import TextTask, targets, task_of, vocabulary_of
from unsum.running.deadline import out_of_time
from unsum.separate.text.admitted import Admitted
from unsum.separate.text.network import device_of, read_by
from unsum.separate.text.recovered import Text, head_reads
from unsum.separate.text.replay import PlayedText, embedding
from unsum.update import Update

_SAME = 1e-5  # relative difference of two forward passes that compute the same
_MOST = 2048  # other tokens that are tried in the place of one
# [relative] movement of features that is asked for: a position that shows smaller ones is not tried
# in other surroundings. Chosen by: a false claim, in which another sequence moved them by 2e-3.
_SMALL = 1e-3
# [tokens] the nearest in the embedding, tried in each place around a faint position.
# Chosen by: arbitrary budget; as many passes for each token as the search takes.
_NEAREST = 8


def judge(
    played: PlayedText,
    logits: Tensor,
    told: Tensor,
    open_labels: int,
    knowledge: Knowledge,
    update: Update,
    searched: set[str],
    besides: list[str],
) -> Claim:
    """The claim about a replayed batch of n sequences, for which the head computes `logits` (M, V).

    `told` (n,) says whose tokens the gradient tells. `open_labels` were not found. `searched` names
    the tensors that the search used. `besides` are doubts that the search itself had.
    """
    M = len(played.labels)
    weight = abs(played.scale) / M
    scale = played.scale if update.reduction == "mean" and update.scale_known else None
    seen = played.positions > played.head_level
    doubts = [
        *doubt_rest(played.replay),
        *doubt_invisible(played.replay.shows().any(1), "Sequence"),
        *doubt_invisible(seen, "Position"),
        *doubt_invisible(told, "Some token of sequence"),
        *doubt_exchanged(played.features, played.labels, played.inputs, weight, played.head_level),
        *doubt_relabeled(
            logits,
            played.labels,
            played.features,
            weight,
            played.head_level,
            knowledge.known_batch_size,
        ),
        *doubt_missing(played.replay, M, knowledge.known_batch_size, scale),
        *besides,
    ]
    if open_labels:
        doubts.append(f"{open_labels} positions have a label that was not found.")
    if update.reduction == "sum":
        doubts += _doubt_copies(played.scale / M)
    return grant(
        Evidence(
            torch.where(seen, played.errors, torch.inf),
            explained=played.replay.explains,
            confirmations=played.replay.confirmations(searched),
            doubts=doubts,
            counted=count(played.features, played.labels, played.errors, knowledge),
        )
    )


def doubt_repeated(model: nn.Module, text: Text) -> list[str]:
    """Sequences of which a single token is read, once or several times, which a model without
    positions of its own reads alike.

    With rotary positions two equal first tokens read as one does. What follows tells them apart, as
    soon as it is read too.
    """
    task = task_of(model)
    several = []
    for row, (tokens, labels) in enumerate(zip(text.tokens, text.labels, strict=True)):
        end = (
            max(j for j, label in enumerate(labels) if label >= 0)
            if task is TextTask.NEXT
            else len(tokens)
        )
        if len(set(tokens[:end])) == 1:
            pair = torch.tensor([tokens[:1] * 2], device=device_of(model))
            once, twice = (
                read_by(model, find_head(model)[1], some, -1) for some in (pair[:, :1], pair)
            )
            if float((once - twice).norm()) <= _SAME * float(once.norm()):
                several.append(row)
    if not several:
        return []
    return [
        f"Sequence {name_some(several)} reads the same however often its first token stands there, "
        "and where one of its like ends another may go on."
    ]


def doubt_hidden(model: nn.Module, text: Text) -> list[str]:
    """Sequences that hold the mask where no label was found: the model is sure of what stands
    there, and sends nothing of it."""
    if task_of(model) is not TextTask.MASKED:
        return []
    pairs = [
        list(zip(tokens, labels, strict=True))
        for tokens, labels in zip(text.tokens, text.labels, strict=True)
    ]
    masks = {token for row in pairs for token, label in row if label >= 0 and label != token}
    rows = [
        i
        for i, row in enumerate(pairs)
        if any(label < 0 and token in masks for token, label in row)
    ]
    return (
        [f"Sequence {name_some(rows)} holds a masked token that sends too little to be told."]
        if rows
        else []
    )


def doubt_unheld(played: PlayedText) -> list[str]:
    """Tokens whose rows of the embedding have a gradient, and that stand in no sequence.

    A sequence that the model has memorized sends so little that the whole gradient is explained
    without it. Its tokens' own rows are zero in the replay, and not in what was sent.
    """
    if not played.unheld:
        return []
    return [
        f"Token {name_some(played.unheld)} of the embedding has a gradient and stands in no "
        "sequence that was found."
    ]


def doubt_displaced(model: nn.Module, played: PlayedText, text: Text) -> list[str]:
    """Masked positions that may stand in another sequence than the one they were put into.

    A position that the model is all but sure of sends little, and reads nearly the same whatever
    surrounds it. Beside another masked position, which shows the tokens around both, nothing shows
    that this one has the same tokens around it.
    """
    if task_of(model) is not TextTask.MASKED:
        return []
    rows, start = [], 0
    for row, labels in enumerate(text.labels):
        kept = torch.tensor(labels) >= 0
        ours = slice(start, start + int(kept.sum()))
        start = ours.stop
        faint = _SMALL * played.positions[ours] <= played.head_level
        if int(kept.sum()) > 1 and bool(faint.any()):
            features, sent = played.features[ours][faint], played.positions[ours][faint]
            places = kept.nonzero()[:, 0][faint.cpu()]
            level, tokens = played.head_level, text.tokens[row]
            if not _surroundings_show(model, level, tokens, places, features, sent):
                rows.append(row)
    if not rows:
        return []
    return [
        f"A masked token of sequence {name_some(rows)} sends so little that it may stand in "
        "another one."
    ]


def _surroundings_show(
    model: nn.Module,
    level: float,
    tokens: list[int],
    places: Tensor,
    features: Tensor,
    sent: Tensor,
) -> bool:
    """Whether another token anywhere around would change what the head reads at each of `places`
    (m,), which are (m, H) `features` now and are `sent` (m,), by more than `level`."""
    table = embedding(model).weight.detach()
    V = len(table)
    sequence = torch.tensor(tokens, device=table.device)
    for place in range(len(tokens)):
        if out_of_time("whether other surroundings would show"):
            return False
        own = table[sequence[place] % V]
        apart = (table - own).norm(dim=1)
        apart[sequence[place] % V] = torch.inf
        nearest = apart.argsort()[: min(_NEAREST, V - 1)]
        changed = sequence.repeat(len(nearest), 1)
        changed[:, place] = nearest + sequence[place] // V * V
        read = head_reads(model, changed)[:, places.to(changed.device)].double()
        moved = (read - features).norm(dim=2) / features.norm(dim=1).clamp_min(1e-300)
        moved[:, places.to(moved.device) == place] = torch.inf  # its own token is another matter
        if not bool((sent * moved > level).all()):
            return False
    return True


def _doubt_copies(factor: float) -> list[str]:
    """A sum, unlike a mean, grows with copies of the whole batch; so does a sum that was
    multiplied."""
    times = round(min(factor, 1e9))
    if times < 2 or abs(factor / times - 1) > 1e-4:
        return []
    return [f"A sum {times} times too large: each sequence may stand for that many of its like."]


def tokens_told(model: nn.Module, played: PlayedText, text: Text, admitted: Admitted) -> Tensor:
    """(n,) sequences of which every token that is read is told, with its segment where there are
    several."""
    device, V = played.traces.device, vocabulary_of(model)
    segments = (admitted.candidates // V).unique() * V
    answers = []
    for row, (sequence, by_label) in enumerate(
        zip(text.tokens, _by_labels(task_of(model), text), strict=True)
    ):
        tokens = torch.tensor(sequence, device=device)
        told = torch.tensor(by_label, device=device)
        if played.row_levels is not None:
            told = told | (played.traces[row, : len(tokens)] > played.row_levels[tokens % V])
        for place in range(len(tokens)) if len(segments) > 1 else (~told).nonzero()[:, 0].tolist():
            others = torch.arange(V, device=device)
            if bool(told[place]):  # its row is the same in every segment
                others = tokens[place : place + 1] % V
            elif played.row_levels is not None:  # any other one would show in its own row
                others = others[played.row_levels >= played.traces[row, place]]
            elif admitted.firmly:  # any other one would lie in the first layer's span
                others = admitted.at(place) % V
            others = (others[:, None] + segments).flatten().unique()
            others = others[others != tokens[place]]
            told[place] = (
                len(others) <= _MOST
                and not out_of_time("whether other tokens would show")
                and _others_show(model, played, text, row, place, others)
            )
        answers.append(told.all())
    return torch.stack(answers)


def _by_labels(task: TextTask, text: Text) -> list[list[bool]]:
    """By sequence: tokens that nobody reads, or that the position before names: its label is the
    token that it goes on with.

    Where another sequence ends at the same place after the same beginning, its last label may be
    the one that goes on.
    """
    if task is not TextTask.NEXT:
        return [[False] * len(tokens) for tokens in text.tokens]
    last = [max(place for place, label in enumerate(row) if label >= 0) for row in text.labels]
    ended = {tuple(row[:end]) for row, end in zip(text.tokens, last, strict=True)}
    return [
        [
            j >= end or (j > 0 and kept[j] >= 0 and tuple(row[:j]) not in ended)
            for j in range(len(row))
        ]
        for row, kept, end in zip(text.tokens, text.labels, last, strict=True)
    ]


def _others_show(
    model: nn.Module, played: PlayedText, text: Text, row: int, place: int, others: Tensor
) -> bool:
    """Whether each other token in this place would change what the head reads by more than rounding
    hides."""
    if len(others) == 0:
        return True
    kept = [targets(task_of(model), torch.tensor([labels]))[0] >= 0 for labels in text.labels]
    before = sum(int(one.sum()) for one in kept[:row])
    ours = slice(before, before + int(kept[row].sum()))
    changed = torch.tensor(text.tokens[row], device=others.device).repeat(len(others), 1)
    changed[:, place] = others
    read = head_reads(model, changed)[:, kept[row].to(others.device)].double()
    features = played.features[ours]
    moved = (read - features).norm(dim=2) / features.norm(dim=1).clamp_min(1e-300)
    return bool(((played.positions[ours] * moved).amax(1) > played.head_level).all())
