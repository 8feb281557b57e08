"""The walk: prefixes that the client's text begins with, one token longer at every step.

A prefix is one of the client's if what a deep layer reads at its last position lies in the span of that layer's gradient:
causal models read nothing that comes later. Which tokens stand at a position at all is told by the first layer, which sees
token and position alone. That the two tests of one layer's span suffice is DAGER's finding (Petrov et al., NeurIPS 2024).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unsum.separate.text.network import Layer, read_by
from unsum.separate.text.span import Span, span_of

_TOO_MANY = 4  # times H: prefixes of the client span at most H dimensions, more are strangers that slipped in


@dataclass(frozen=True)
class Walk:
    """Prefixes in the order of their length, each with its parent's index (−1 for single tokens)."""

    prefixes: list[tuple[int, ...]]
    parents: list[int]
    notes: list[str]

    def children(self, index: int) -> list[int]:
        return [i for i, parent in enumerate(self.parents) if parent == index]


@dataclass(frozen=True)
class Guide:
    """The two layers that admit prefixes: the first by token and position, the deep one by the whole prefix."""

    first: Layer
    first_span: Span
    deep: Layer
    deep_span: Span


def choose_guide(layers: list[Layer]) -> Guide | None:
    """The layer of most directions decides, the deepest of several; None where every span is full.

    Positions without a label still feed the attention of later ones, so inner layers may see more of them than the head.
    """
    spans = [(layer, span_of(layer.gradient)) for layer in layers]
    roomy = [(layer, span) for layer, span in spans if not span.full and span.rank > 0]
    if not roomy:
        return None
    deep, deep_span = max(reversed(roomy), key=lambda pair: pair[1].rank)
    return Guide(layers[0], spans[0][1], deep, deep_span)


def walk(model: nn.Module, guide: Guide, candidates: Tensor, longest: int) -> Walk:
    """Every prefix that the guide admits, from `candidates` (the tokens that may occur) and up to `longest` tokens."""
    prefixes: list[tuple[int, ...]] = []
    parents: list[int] = []
    frontier: list[int] = [-1]
    limit = _TOO_MANY * guide.deep.gradient.shape[1]
    for depth in range(longest):
        here = _tokens_at(model, guide, candidates, depth)
        stems = [() if index < 0 else prefixes[index] for index in frontier]
        trials = [(*stem, token) for stem in stems for token in here.tolist()]
        origins = [index for index in frontier for _ in range(len(here))]
        if not trials:
            break
        admitted = _admitted(model, guide, torch.tensor(trials, device=candidates.device))
        first = len(prefixes)
        for trial, origin, inside in zip(trials, origins, admitted.tolist(), strict=True):
            if inside:
                prefixes.append(trial)
                parents.append(origin)
        frontier = list(range(first, len(prefixes)))
        if len(prefixes) > limit:
            note = "More prefixes fit the gradient than it can hold: they can no longer be told from chance."
            return Walk([], [], [note])
        if not frontier:
            break
    return Walk(prefixes, parents, [])


def _tokens_at(model: nn.Module, guide: Guide, candidates: Tensor, depth: int) -> Tensor:
    """The candidates that the first layer admits at this position; all of them where its span is full."""
    if guide.first_span.full:
        return candidates
    # The first layer reads token and position alone, so what stands before does not matter.
    tokens = candidates[:, None].expand(-1, depth + 1)
    inside = []
    for part in tokens.split(4096):
        inside.append(guide.first_span.outside(read_by(model, [guide.first.module], part, -1)[0]) < 1)
    return candidates[torch.cat(inside)]


def _admitted(model: nn.Module, guide: Guide, trials: Tensor) -> Tensor:
    return guide.deep_span.outside(read_by(model, [guide.deep.module], trials, -1)[0]) < 1
