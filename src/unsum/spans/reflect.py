"""Starts brought near to samples by reflections, where the activation is two straight lines: ReLU and LeakyReLU.

A sample is a pair (z, a) in two sets at once. One is flat: z is an output of the layer for inputs in its span, a lies in the span
of the next. The other is a bent line for each unit: a = act(z). The closest point of either set is a formula, so the two can be
played off against each other: reflect at the bent lines, reflect at the flat set, go along the difference of the two ("difference
map", Elser, Rankenburg and Thibault, 2007). A descent stops in a valley that leads nowhere, as four of five do; this walks on
until it comes to a sample. A step takes four thin products, and a step of Gauss–Newton a hundred times as long.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.deadline import out_of_time
from unsum.peel.activations import Activation
from unsum.spans.roots import Condition

_WEIGHT = 0.25  # of z's distance, squared, against a's: 0.06 to 0.25 arrive as soon, 0.5 three times later
_CHECKED = 25  # steps between two looks at the distances
_NEAR = 0.02  # of a, between the two sets: from where Gauss–Newton does the rest


def slopes(activation: Activation) -> tuple[float, float] | None:
    """(slope below zero, above) of an activation that is two straight lines which meet in zero, or None."""
    at = torch.tensor([-1.0, 1.0, -2.0, 2.0], dtype=torch.float64)
    below, above, *twice = activation.function(at).tolist()
    straight = twice == [2 * below, 2 * above] and -below != above
    return (-below, above) if straight else None


@dataclass(frozen=True)
class Flat:
    """An affine space: origin (m,) orthogonal to the directions (k, m), which are orthonormal."""

    origin: Tensor
    directions: Tensor

    @classmethod
    def of(cls, point: Tensor, directions: Tensor) -> Flat:
        Q = torch.linalg.qr(directions.T)[0].T
        return cls((point - (point @ Q.T) @ Q).float(), Q.float())

    @classmethod
    def read_by_next(cls, condition: Condition) -> Flat:
        """The span of what the next layer reads; with a bias, those of its points beside which stands a 1."""
        rows = condition.next.rows
        if not condition.next.has_bias:
            return cls.of(torch.zeros_like(rows[0]), rows)
        ones = rows[:, -1]
        turned = torch.linalg.qr(ones[:, None], mode="complete")[0][:, 1:].T
        return cls.of((ones / ones.square().sum()) @ rows[:, :-1], turned @ rows[:, :-1])

    def closest(self, points: Tensor) -> Tensor:
        return torch.addmm(self.origin, points @ self.directions.T, self.directions)


def reflected(condition: Condition, s: Tensor, steps: int) -> Tensor:
    """(≤ S, k) unknowns near samples, from starts s (S, k): of those that came near within so many steps."""
    lines = slopes(condition.step.activation)
    assert lines is not None
    outputs, following = Flat.of(condition.c, condition.K), Flat.read_by_next(condition)
    z = (s @ condition.K + condition.c).float()
    a = condition.step.activation.function(z)
    near = []
    for step in range(1, steps + 1):
        z_bent, a_bent = _onto_lines(z, a, lines)
        z_moved = outputs.closest(2 * z_bent - z).sub_(z_bent)
        a_moved = following.closest(2 * a_bent - a).sub_(a_bent)
        z, a = z.add_(z_moved), a.add_(a_moved)
        if step % _CHECKED:
            continue
        apart = (z_moved.square().sum(1) + a_moved.square().sum(1)).sqrt()
        arrived = apart < _NEAR * a_bent.norm(dim=1)
        near.append((z_bent + z_moved)[arrived])
        z, a = z[~arrived], a[~arrived]
        if len(z) == 0 or out_of_time("further reflections of the spans"):
            break
    ends: Tensor = (torch.cat(near).double() - condition.c) @ torch.linalg.pinv(condition.K)
    return ends


def _onto_lines(z: Tensor, a: Tensor, lines: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """The closest (z, a) with a = act(z), entry by entry: the closer one of the closest points of its two half-lines."""
    below, above = ((_WEIGHT * z + slope * a) / (_WEIGHT + slope**2) for slope in lines)
    ends = [(x, slope * x) for x, slope in zip((below.clamp_max(0), above.clamp_min(0)), lines, strict=True)]
    far = [_WEIGHT * (x - z).square() + (y - a).square() for x, y in ends]
    closer = far[1] < far[0]
    return torch.where(closer, ends[1][0], ends[0][0]), torch.where(closer, ends[1][1], ends[0][1])
