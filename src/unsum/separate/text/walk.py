"""The walk: prefixes that the client's text begins with, one token longer at every step.

A prefix is one of the client's if what a deep layer reads at its last position lies in the span of
that layer's gradient: causal models read nothing that comes later. Which tokens stand at a position
at all is told by the first layer, which sees token and position alone. That the two tests of one
layer's span suffice is DAGER's finding (Petrov et al., NeurIPS 2024).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from unsum.running.deadline import out_of_time
from unsum.separate.text.admitted import ROOMY, Admitted, reads_no_context
from unsum.separate.text.network import Layer, read_by

_NEAR = 4  # layers among which the judge of prefixes is chosen: about one block of a transformer
# times the others' directions: one sequence of two tokens shows one in queries and two in values
_FEW_MORE = 2.0
_TRIALS = 1 << 17  # prefixes worth trying for one more token
_CHANCE = "More prefixes fit the gradient than it can hold: they can no longer be told from chance."
_SAME = 1e-5  # relative difference of two forward passes that compute the same
# times H: prefixes of the client span at most H dimensions, more are strangers that slipped in
_TOO_MANY = 4


@dataclass(frozen=True)
class Walk:
    """Prefixes in the order of their length, each with its parent's index (−1 for single tokens)
    and how far outside the

    span it lies, in units of what noise explains.
    """

    prefixes: list[tuple[int, ...]]
    parents: list[int]
    outside: list[float]
    notes: list[str]

    def children(self, index: int) -> list[int]:
        return [i for i, parent in enumerate(self.parents) if parent == index]

    def at_most(self, number: int) -> Walk:
        """The best `number` of the prefixes: independent ones cannot be more than the span has
        directions."""
        dropped: set[int] = set()
        endings = {i for i in range(len(self.prefixes)) if i not in set(self.parents)}
        while len(self.prefixes) - len(dropped) > number:
            worst = max(endings, key=lambda i: self.outside[i])
            dropped.add(worst)
            endings.remove(worst)
            parent = self.parents[worst]
            if parent >= 0 and all(child in dropped for child in self.children(parent)):
                endings.add(parent)
        kept = [i for i in range(len(self.prefixes)) if i not in dropped]
        place = {old: new for new, old in enumerate(kept)} | {-1: -1}
        parents = [place[self.parents[i]] for i in kept]
        note = (
            f"{len(dropped)} prefixes more than the gradient can hold were dropped, those that "
            "fitted worst."
        )
        notes = [*self.notes, note] if dropped else self.notes
        return Walk(
            [self.prefixes[i] for i in kept], parents, [self.outside[i] for i in kept], notes
        )


class Guide(NamedTuple):
    """The two layers that admit prefixes: the first by token and position, the deep one by the
    whole prefix."""

    first: Layer
    deep: Layer


def choose_guide(model: nn.Module, layers: list[Layer]) -> Guide | None:
    """Of the layers nearest to the text, that of most directions decides, and then where they stand
    out most; None where every

    span is full. Positions without a label still feed the attention of later ones, so early layers
    see most of them.
    """
    if not layers:
        return None
    # A square gradient does not tell its noise, and the first layers read no context.
    oblong = [layer for layer in layers[1:] if layer.gradient.shape[0] != layer.gradient.shape[1]]
    reading = (layer for layer in oblong or layers if not reads_no_context(model, layer))
    near = list(
        itertools.islice((x for x in reading if not x.span.full and x.span.rank > 0), _NEAR)
    )
    # Noise would take nearly all of its directions. Who has few more than the others knows of
    # tokens that these miss: the first query learns nothing.
    most = max((layer.span.rank for layer in near), default=0)
    square = (
        x
        for x in layers[1:]
        if x not in oblong and not reads_no_context(model, x) and x.span.rank > most
    )
    near += [
        x
        for x in itertools.islice(square, 1)
        if not x.span.full and x.span.rank <= _FEW_MORE * most
    ]
    # a model without any context
    if not near and all(reads_no_context(model, layer) for layer in layers):
        near = [layer for layer in layers if not layer.span.full and layer.span.rank > 0]
    if not near:
        return None
    key = lambda layer: (layer.span.rank, layer.span.room >= ROOMY, layer.span.clearness)  # noqa: E731
    return Guide(_first(model, layers), max(near, key=key))


def _first(model: nn.Module, layers: list[Layer]) -> Layer:
    """The layer that tells tokens: the first, or the one of most directions among those that read
    no context.

    Adapters (LoRA) are several such layers, and some of them are still without a gradient.
    """
    if not layers[0].span.full:
        return layers[0]
    alone = itertools.takewhile(lambda layer: reads_no_context(model, layer), layers)
    told = [layer for layer in alone if not layer.span.full and layer.span.rank > 0]
    return max(told, key=lambda layer: (layer.span.rank, layer.span.room), default=layers[0])


def walk(model: nn.Module, guide: Guide, admitted: Admitted, *, firm: bool = False) -> Walk:
    """Every prefix of admitted tokens that the deep layer admits as well.

    A `firm` one gives up as soon as there are more of them than directions: noise admits strangers,
    and others tell them apart.
    """
    prefixes: list[tuple[int, ...]] = []
    parents: list[int] = []
    outside: list[float] = []
    frontier: list[int] = [-1]
    limit = guide.deep.span.rank if firm else _TOO_MANY * guide.deep.gradient.shape[1]
    before: Tensor | None = None  # what the deep layer read at the end of every stem
    for depth in range(admitted.longest):
        if out_of_time("longer sequences"):
            break
        here = admitted.at(depth)
        if len(frontier) * len(here) > max(_TRIALS, 16 * len(admitted.candidates)):
            return Walk([], [], [], [_CHANCE])
        stems = [() if index < 0 else prefixes[index] for index in frontier]
        trials = [(*stem, token) for stem in stems for token in here.tolist()]
        origins = [index for index in frontier for _ in range(len(here))]
        if not trials:
            break
        read = read_by(
            model, guide.deep.module, torch.tensor(trials, device=admitted.candidates.device), -1
        )
        distances = guide.deep.span.outside(read)
        admits = (distances < 1) & ~_says_nothing_new(read, before, len(here))
        first = len(prefixes)
        for trial in admits.nonzero()[:, 0].tolist():
            prefixes.append(trials[trial])
            parents.append(origins[trial])
            outside.append(float(distances[trial]))
        before = read[admits]
        frontier = list(range(first, len(prefixes)))
        if len(prefixes) > limit:
            return Walk([], [], [], [_CHANCE])
        if not frontier:
            break
    return Walk(prefixes, parents, outside, []).at_most(guide.deep.span.rank)


def _says_nothing_new(read: Tensor, before: Tensor | None, tokens: int) -> Tensor:
    """Trials (stems · tokens, H) that read the same as their stems (stems, H), or nothing at all.

    Without positions of its own a model reads a first token that is repeated as it reads it once,
    as often as one likes. A padding token may have an embedding of zeros, which lies in every span.
    """
    if before is None:
        sizes = read.norm(dim=1)
        return sizes <= _SAME * sizes.max()
    stems = before.repeat_interleave(tokens, 0)
    repeated: Tensor = (read - stems).norm(dim=1) <= _SAME * stems.norm(dim=1)
    return repeated
