"""Starts brought near to samples by reflections, where the activation is two straight lines: ReLU
and LeakyReLU.

A sample is a pair (z, a) in two sets at once. One is flat: z is an output of the layer for inputs
in its span, a lies in the span of the next. The other is a bent line for each unit: a = act(z). The
closest point of either set is a formula, so the two can be played off against each other: reflect
at the bent lines, reflect at the flat set, go along the difference of the two ("difference map",
Elser, Rankenburg and Thibault, 2007). A descent stops in a valley that leads nowhere, as four of
five do; this walks on until it comes to a sample. A step takes four thin products, and a step of
Gauss–Newton a hundred times as long.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.network.activations import Activation
from unsum.running.deadline import out_of_time
from unsum.spans.basis import LayerSpan
from unsum.spans.roots import Condition

SCALE = 0.5  # of z against a in distances: 0.25 to 0.5 arrive as soon, 0.7 three times later
_CHECKED = 25  # steps between two looks at the distances
_NEAR = 0.01  # of (z, a), between the two sets: from where Gauss–Newton does the rest


def slopes(activation: Activation) -> tuple[float, float] | None:
    """(slope below zero, above) of an activation that is two straight lines which meet in zero, or
    None."""
    at = torch.tensor([-1.0, 1.0, -2.0, 2.0], dtype=torch.float64)
    below, above, *twice = activation.function(at).tolist()
    straight = twice == [2 * below, 2 * above] and -below != above
    return (-below, above) if straight else None


def walkable(condition: Condition) -> bool:
    """Whether all activations between the condition's spans are straight lines."""
    return all(slopes(step.activation) is not None for step in condition.steps)


@dataclass(frozen=True)
class Flat:
    """An affine space: origin (m,) orthogonal to the directions (k, m), which are orthonormal."""

    origin: Tensor
    directions: Tensor

    @classmethod
    def of(cls, point: Tensor, directions: Tensor) -> Flat:
        Q = torch.linalg.qr(directions.T)[0].T
        return cls((point - (point @ Q.T) @ Q).float(), Q.float())

    def closest(self, points: Tensor) -> Tensor:
        return torch.addmm(self.origin, points @ self.directions.T, self.directions)


def _read_by(span: LayerSpan) -> tuple[Tensor, Tensor]:
    """(a point, directions) of what a layer reads: its span, or, with a bias, those points of it
    beside which stands a 1."""
    rows = span.rows[:, :-1] if span.has_bias else span.rows
    origin, directions = span.points
    return origin @ rows, directions @ rows


def flats(condition: Condition) -> list[Flat]:
    """Of z and a; of two layers, of z₁, of (a₁, z₂), which are one as z₂ = W₂ a₁ + b₂, and of a₂.
    Every z is scaled."""
    outputs = Flat.of(SCALE * condition.c, condition.K)
    point, directions = _read_by(condition.next)
    if condition.further is None:
        return [outputs, Flat.of(point, directions)]
    step, zero = condition.further.step, torch.zeros_like(point)
    written, offset = step.linear(torch.stack([point, zero]))
    both = torch.cat([directions, SCALE * (step.linear(directions) - offset)], 1)
    joint = Flat.of(torch.cat([point, SCALE * written]), both)
    return [outputs, joint, Flat.of(*_read_by(condition.further.span))]


def reflected(condition: Condition, s: Tensor, steps: int) -> Tensor:
    """(≤ S, k) unknowns near samples, from starts s (S, k): of those that came near within so many
    steps."""
    lines = [[slope / SCALE for slope in slopes(step.activation) or ()] for step in condition.steps]
    widths = [len(step.W) for step in condition.steps for _ in ("z", "a")]

    def onto(point: Tensor) -> Tensor:
        layers = zip(point.split(widths, 1)[::2], point.split(widths, 1)[1::2], lines, strict=True)
        return torch.cat([part for z, a, line in layers for part in _onto_lines(z, a, line)], 1)

    near = walked(flats(condition), onto, begin(condition, s), steps)
    return condition.unknowns_at(near[:, : condition.K.shape[1]].double() / SCALE)


def walked(sets: list[Flat], onto: Callable[[Tensor], Tensor], point: Tensor, steps: int) -> Tensor:
    """(≤ S, …) points of the flat sets that are near to the bent ones, from points (S, …); `onto`
    gives the closest bent ones."""
    sizes, near = [len(flat.origin) for flat in sets], [point[:0]]
    for step in range(1, steps + 1):
        bent = onto(point)
        parts = zip(sets, torch.lerp(point, bent, 2.0).split(sizes, 1), strict=True)
        moved = torch.cat([flat.closest(part) for flat, part in parts], 1).sub_(bent)
        point = point.add_(moved)
        if step % _CHECKED:
            continue
        arrived = moved.norm(dim=1) < _NEAR * bent.norm(dim=1)
        near.append((bent + moved)[arrived])
        point = point[~arrived]
        if len(point) == 0 or out_of_time("further reflections of the spans"):
            break
    return torch.cat(near)


def begin(condition: Condition, s: Tensor) -> Tensor:
    """(S, …) z and a of every layer, one after the other."""
    read = condition.reads(s)
    written = [
        s @ condition.K + condition.c,
        *(step.linear(a) for step, a in zip(condition.steps[1:], read, strict=False)),
    ]
    return torch.cat(
        [part for z, a in zip(written, read, strict=True) for part in (SCALE * z, a)], 1
    ).float()


def _onto_lines(z: Tensor, a: Tensor, lines: list[float]) -> tuple[Tensor, Tensor]:
    """The closest (z, a) with a = act(z), entry by entry: the closer one of the closest points of
    its two half-lines.

    The closer one is the one farther out: (z, a) and its closest point on a line make a right angle
    at that point.
    """
    lengths = [(1 + slope**2) ** 0.5 for slope in lines]
    below, above = (
        torch.add(z, a, alpha=slope).div_(length)
        for slope, length in zip(lines, lengths, strict=True)
    )
    below, above = below.clamp_max_(0), above.clamp_min_(0)
    closer = above > -below
    x = torch.where(closer, above.div_(lengths[1]), below.div_(lengths[0]))
    return x, x * torch.where(closer, lines[1], lines[0])
