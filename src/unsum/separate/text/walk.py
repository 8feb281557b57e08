"""The walk: prefixes that the client's text begins with, one token longer at every step.

A prefix is one of the client's if what a deep layer reads at its last position lies in the span of that layer's gradient:
causal models read nothing that comes later. Which tokens stand at a position at all is told by the first layer, which sees
token and position alone. That the two tests of one layer's span suffice is DAGER's finding (Petrov et al., NeurIPS 2024).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from unsum.deadline import out_of_time
from unsum.separate.text.network import Layer, read_by

_BLOCK = 16  # positions whose tokens are looked for at once
# Times what noise explains: the first layer only saves work, and a faint direction of its may have drowned.
_LENIENT = 10.0
_ROOMY = 16  # dimensions outside a span in which hardly a stranger is near zero by chance
_TRIALS = 1 << 17  # prefixes worth trying for one more token
_CHANCE = "More prefixes fit the gradient than it can hold: they can no longer be told from chance."
_TOO_MANY = 4  # times H: prefixes of the client span at most H dimensions, more are strangers that slipped in


@dataclass(frozen=True)
class Walk:
    """Prefixes in the order of their length, each with its parent's index (−1 for single tokens) and how far outside the

    span it lies, in units of what noise explains.
    """

    prefixes: list[tuple[int, ...]]
    parents: list[int]
    outside: list[float]
    notes: list[str]

    def children(self, index: int) -> list[int]:
        return [i for i, parent in enumerate(self.parents) if parent == index]

    def at_most(self, number: int) -> Walk:
        """The best `number` of the prefixes: independent ones cannot be more than the span has directions."""
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
        note = f"{len(dropped)} prefixes more than the gradient can hold were dropped, those that fitted worst."
        notes = [*self.notes, note] if dropped else self.notes
        return Walk([self.prefixes[i] for i in kept], parents, [self.outside[i] for i in kept], notes)


class Guide(NamedTuple):
    """The two layers that admit prefixes: the first by token and position, the deep one by the whole prefix."""

    first: Layer
    deep: Layer


def choose_guide(layers: list[Layer]) -> Guide | None:
    """The layer of most directions decides, of several the one where they stand out most; None where every span is full.

    Positions without a label still feed the attention of later ones, so inner layers may see more of them than the head.
    """
    # A square gradient does not tell its noise, and the first layer reads no context.
    oblong = [layer for layer in layers[1:] if layer.gradient.shape[0] != layer.gradient.shape[1]]
    usable = [layer for layer in oblong or layers if not layer.span.full and layer.span.rank > 0]
    if not usable:
        return None
    key = lambda layer: (layer.span.rank, layer.span.room >= _ROOMY, layer.span.clearness)  # noqa: E731
    return Guide(layers[0], max(usable, key=key))


def walk(model: nn.Module, guide: Guide, candidates: Tensor, longest: int) -> Walk:
    """Every prefix that the guide admits, from `candidates` (the tokens that may occur) and up to `longest` tokens."""
    prefixes: list[tuple[int, ...]] = []
    parents: list[int] = []
    outside: list[float] = []
    frontier: list[int] = [-1]
    block: list[Tensor] = []
    limit = _TOO_MANY * guide.deep.gradient.shape[1]
    for depth in range(longest):
        if out_of_time("longer sequences"):
            break
        if depth % _BLOCK == 0:
            block = _tokens_at(model, guide, candidates, depth, min(depth + _BLOCK, longest))
        here = block[depth % _BLOCK]
        stems = [() if index < 0 else prefixes[index] for index in frontier]
        trials = [(*stem, token) for stem in stems for token in here.tolist()]
        origins = [index for index in frontier for _ in range(len(here))]
        if not trials:
            break
        if len(trials) > max(_TRIALS, 16 * len(candidates)):
            return Walk([], [], [], [_CHANCE])
        read = read_by(model, guide.deep.module, torch.tensor(trials, device=candidates.device), -1)
        distances = guide.deep.span.outside(read)
        first = len(prefixes)
        for trial, origin, distance in zip(trials, origins, distances.tolist(), strict=True):
            if distance < 1:
                prefixes.append(trial)
                parents.append(origin)
                outside.append(distance)
        frontier = list(range(first, len(prefixes)))
        if len(prefixes) > limit:
            return Walk([], [], [], [_CHANCE])
        if not frontier:
            break
    return Walk(prefixes, parents, outside, []).at_most(guide.deep.span.rank)


def _tokens_at(model: nn.Module, guide: Guide, candidates: Tensor, first: int, end: int) -> list[Tensor]:
    """The candidates that the first layer admits at each of some positions; all of them where it cannot tell."""
    if guide.first.span.full or not _reads_no_context(model, guide.first):
        return [candidates] * (end - first)
    inside = []
    for part in candidates[:, None].expand(-1, end).split(1024):
        read = read_by(model, guide.first.module, part, slice(first, end))
        inside.append(guide.first.span.outside(read.flatten(0, 1)).view(len(part), -1) < _LENIENT)
    admitted = torch.cat(inside)
    return [candidates[admitted[:, place]] for place in range(end - first)]


def _reads_no_context(model: nn.Module, layer: Layer) -> bool:
    """Whether what the layer reads at a position is the same whatever stands before."""
    device = layer.gradient.device
    other = read_by(model, layer.module, torch.tensor([[0, 0, 1], [1, 2, 1]], device=device), -1)
    return bool(torch.equal(other[0], other[1]))
