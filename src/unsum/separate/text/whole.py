"""Sequences of a model that reads both sides: each is searched as a whole, for every position
depends on every token.

The first layer tells which tokens stand at each position, the whole batch's together. What a deeper
one reads lies in its span at every position of a true sequence, and nowhere in a mixture of two.
The nearer a mixture is to a true sequence, the less of it lies outside: tokens are exchanged one
place at a time from many starts, and what is inside everywhere is one of the client's. DAGER, which
this generalizes, tries all mixtures.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from unsum.models.language import vocabulary_of
from unsum.notes import Code, Note
from unsum.running.deadline import out_of_time
from unsum.separate.text.admitted import Admitted
from unsum.separate.text.network import read_by
from unsum.separate.text.walk import Guide

_STARTS = 16  # mixtures that are improved at once
_ROUNDS = 40  # of so many starts for a batch
# times through all places; a start that has not ended in a sequence by then is given up
_SWEEPS = 6
_TOKENS = 1 << 20  # read by the deep layer in the whole search, before it is given up
_UNPLACED = Note("Some tokens of the batch were put into no sequence.", Code.DOUBTED_TEXT)


@dataclass
class Whole:
    """Sequences, each once, and notes."""

    sequences: list[tuple[int, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def positions(self) -> int:
        return sum(map(len, self.sequences))


def search_whole(model: nn.Module, guide: Guide, admitted: Admitted) -> Whole:
    """Every sequence of which every position is admitted, as long as tokens or directions are left
    that none accounts for."""
    places = list(_tokens_by_place(admitted))
    if len(admitted.candidates) > 1 and all(
        len(place) == len(admitted.candidates) for place in places
    ):
        return Whole(
            notes=[
                (
                    "There are as many tokens as features, so the first layer tells none of them "
                    "from others."
                )
            ]
        )
    vocabulary = vocabulary_of(model)
    paired = int(admitted.candidates.max()) >= vocabulary
    # one token in both sentences ties these together: every token of the batch is admitted in both
    if paired:
        places = [(place % vocabulary).unique() for place in places]
    # A token that stands at two places ties them together: all tokens of one are admitted at the
    # other. But no more tokens are than there are directions.
    if any(len(place) > guide.first.span.rank for place in places):
        return Whole(
            notes=[
                (
                    "More tokens fit the gradient than it can hold: they can no longer be told "
                    "from chance."
                )
            ]
        )
    if not places:
        return Whole()
    if guide.deep.span.rank < len(places):
        return Whole(
            notes=[
                (
                    "Every layer that reads all positions has a gradient of full rank: too many "
                    "tokens, or noise."
                )
            ]
        )
    generator = torch.Generator().manual_seed(0)  # the search is the same every time
    found = Whole()
    lengths = _lengths(places)
    left = _TOKENS
    for number in range(_ROUNDS * len(lengths)):
        here = places[: lengths[number % len(lengths)]]
        left -= _STARTS * len(here) * sum(map(len, here))
        if found.positions >= guide.deep.span.rank or left < 0 or out_of_time("further sequences"):
            break
        starts = _starts(here, found.sequences, vocabulary, generator)
        if paired:
            starts = _parted(
                starts, torch.randint(1, len(here) + 1, (_STARTS,), generator=generator), vocabulary
            )
        for sequence in _improved(model, guide, here, starts, vocabulary if paired else None):
            if sequence not in found.sequences:
                found.sequences.append(sequence)
    if found.positions < guide.deep.span.rank:
        found.notes.append(_UNPLACED)
    return found


def _tokens_by_place(admitted: Admitted) -> Iterator[Tensor]:
    for place in range(admitted.longest):
        here = admitted.at(place)
        if len(here) == 0:
            return
        yield here.cpu()


def _lengths(places: list[Tensor]) -> list[int]:
    """Where sequences may end, the longest first: where the token stands that closes the longest
    ones, if one does."""
    closing = places[-1]
    return [
        end
        for end in range(len(places), 0, -1)
        if len(closing) > 1 or bool((places[end - 1] == closing).any())
    ]


def _parted(sequences: Tensor, ends: Tensor, vocabulary: int) -> Tensor:
    """(…, L) tokens as t + V from where the first sentence of a pair ends, (…,)."""
    second = torch.arange(sequences.shape[-1]) >= ends[..., None]
    return sequences % vocabulary + vocabulary * second


def _starts(
    places: list[Tensor], found: list[tuple[int, ...]], vocabulary: int, generator: torch.Generator
) -> Tensor:
    """(starts, L) mixtures, of tokens that no sequence accounts for yet where there are such."""
    columns = []
    for place, tokens in enumerate(places):
        taken = {sequence[place] % vocabulary for sequence in found if len(sequence) > place}
        left = torch.tensor(
            [token for token in tokens.tolist() if token not in taken], dtype=torch.long
        )
        pool = left if len(left) else tokens
        columns.append(pool[torch.randint(len(pool), (_STARTS,), generator=generator)])
    return torch.stack(columns, 1)


def _improved(
    model: nn.Module, guide: Guide, places: list[Tensor], mixtures: Tensor, vocabulary: int | None
) -> list[tuple[int, ...]]:
    """The sequences that mixtures end in, one token exchanged after another, and of pairs the end
    of the first sentence."""
    device = guide.deep.gradient.device
    choices = [place for place, tokens in enumerate(places) if len(tokens) > 1]
    worst, far = _outside(model, guide, mixtures.to(device))
    for _ in range(_SWEEPS):
        before = far.clone()
        for place in [*choices, None] if vocabulary else choices:
            if out_of_time("further sequences"):
                break
            if place is None:
                assert vocabulary is not None
                ends = torch.arange(1, mixtures.shape[1] + 1).expand(len(mixtures), -1)
                trials = _parted(mixtures[:, None].repeat(1, ends.shape[1], 1), ends, vocabulary)
            else:
                tokens = places[place]
                trials = mixtures[:, None].repeat(1, len(tokens), 1)
                segment = trials[:, :, place] // vocabulary * vocabulary if vocabulary else 0
                trials[:, :, place] = tokens + segment
            all_worst, all_far = _outside(model, guide, trials.flatten(0, 1).to(device))
            best = all_far.view(len(mixtures), -1).argmin(1)
            rows = torch.arange(len(mixtures))
            mixtures = trials[rows, best.cpu()]
            worst, far = (x.view(len(mixtures), -1)[rows, best] for x in (all_worst, all_far))
        kept = (far < before) & (worst >= 1)  # neither done nor stuck
        if not bool(kept.any()):
            break
    inside = mixtures[(worst < 1).cpu()]
    return list(dict.fromkeys(map(tuple, inside.tolist())))


def _outside(model: nn.Module, guide: Guide, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """(n,) the worst position's distance from the deep span, and the mean square of all
    positions'."""
    read = read_by(model, guide.deep.module, tokens, slice(None))
    apart = guide.deep.span.outside(read.flatten(0, 1)).view(len(tokens), -1)
    return apart.amax(1), apart.square().mean(1)
