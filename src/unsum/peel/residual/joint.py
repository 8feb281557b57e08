"""Gradients and outputs together: the maps that explain both, where gradients alone do not
determine them.

What a convolution read satisfies the equations of its gradient (`shared`) and, where its output is
known because it is positive behind the ReLU, the convolution itself:

    W ∗ x = z   at known places,      z = μ + σ (y − β)/γ .

In train mode μ and σ are two more unknowns for each output channel, so only what a fit by them
leaves of z counts. Together they are a least-squares problem for all channels at once, solved by
conjugate gradients without its matrix. The preconditioner is exact for the first kind (one matrix K
for all channels) and for the mean of the second (one matrix M for all places): (K ⊗ 1 + 1 ⊗ M)⁻¹,
by the eigenvectors of both.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import torch
from torch import Tensor

from unsum.engine.conjugate import conjugate_gradients
from unsum.network.unit import Unit, wide
from unsum.peel.residual.shared import DEAD, PlaceClass, Shared

_ITERATIONS = 400  # of conjugate gradients: systems that are determined take some 60
# Of the right side. Steps are taken in float32, many times faster; the fixed point, in float64,
# comes back to what is left.
_TOLERANCE = 1e-2
_ROUNDS = 3  # of that tolerance: what is left then is seen by nothing
_UNSEEN = 1e-2  # share of a random map above which the equations do not determine it
_PLACES = (0, 2, 3)  # the axes of a map but its channels


class Output:
    """What a unit wrote: y (B, O, h', w') behind its BatchNorm, at places where it is `known`."""

    def __init__(self, unit: Unit, y: Tensor, known: Tensor) -> None:
        self.unit = unit
        normal = known * (y - wide(unit.beta)) / wide(unit.divisor)
        sigma = wide((unit.variance + unit.eps).sqrt())
        alive = unit.gamma.abs() > DEAD * unit.gamma.abs().median()
        # relative to the size of the outputs, as rounding is
        self.weight = known * wide(alive) / sigma
        self.target = wide(unit.mean) + sigma * normal
        one, slope = _normalized(self.weight), self.weight * normal
        self.basis = [one, _normalized(slope - one * (one * slope).sum(_PLACES, keepdim=True))]

    def in_float32(self) -> Output:
        narrow = copy.copy(self)
        narrow.unit = replace(self.unit, W=self.unit.W.float())
        narrow.weight, narrow.basis = self.weight.float(), [basis.float() for basis in self.basis]
        return narrow

    def fitted(self, values: Tensor) -> Tensor:
        """Weighted values, in train mode less their fit by 1 and x̂."""
        for basis in self.basis if self.unit.batch_statistics else ():
            values = values - basis * (basis * values).sum(_PLACES, keepdim=True)
        return values

    def misfit(self, maps: Tensor) -> Tensor:
        """What the output of `maps` lacks, weighted."""
        z = self.unit.linear(maps)
        return self.fitted(self.weight * (-z if self.unit.batch_statistics else self.target - z))

    def back(self, values: Tensor, size: torch.Size) -> Tensor:
        """The transpose of x ↦ fitted(weight · W ∗ x)."""
        return self.unit.spread(self.weight * self.fitted(values), size)

    def normal(self, maps: Tensor) -> Tensor:
        return self.back(self.weight * self.unit.linear(maps), maps.shape)


class Joint:
    """The equations of `shared` and of `outputs`, for the entries of the maps that are `free`."""

    def __init__(self, shared: Shared, outputs: list[Output], free: Tensor) -> None:
        self.shared, self.outputs, self.free = shared, outputs, free
        self.narrow, self.grams = (
            [output.in_float32() for output in outputs],
            [p.gram.float() for p in shared.parts],
        )
        self.factors = [self._factor(part) for part in shared.parts]
        self.trace, self.condition = self._amplified()
        self.unseen = (
            self._unseen()
            if math.isfinite(self.condition)
            else torch.full_like(self.trace, math.inf)
        )

    @property
    def determined(self) -> bool:
        return bool(self.unseen.median() < _UNSEEN)

    def solve(self, told: list[Tensor], lacking: list[Tensor]) -> Tensor:
        """(B, I, h, w) the step that adds `told` to the readers' gradients and `lacking` to the
        outputs."""
        right = torch.zeros(self.shared.size, dtype=told[0].dtype, device=told[0].device)
        for part in self.shared.parts:
            part.put(right, part.transposed(told))
        for output, values in zip(self.outputs, lacking, strict=True):
            right += output.back(values, right.shape)
        return self._inverse(right)[0]

    def errors(self, noise: float, maps: Tensor) -> Tensor:
        """(B,) relative errors where every equation errs by `noise`, and what no equation sees."""
        return (
            noise * self.trace.sqrt() / maps.flatten(1).norm(dim=1).clamp_min(1e-300) + self.unseen
        )

    def _amplified(self) -> tuple[Tensor, float]:
        """(B,) the trace of the inverse, by one random probe, and the mean amplification, infinite
        without convergence."""
        probe = self._random().sign()
        found, converged = self._inverse(probe)
        trace = (probe * found).flatten(1).sum(1).clamp_min(0)
        squares = float(trace.sum() * (probe * self._normal(probe.float())).sum())
        return trace, math.sqrt(squares) / max(int(self.free.sum()), 1) if converged else math.inf

    def _unseen(self) -> Tensor:
        """(B,) the share of random maps that does not come back out of its own equations."""
        maps = self.free * self._random()
        left = maps
        for _ in range(_ROUNDS):
            left = left - self._inverse(self._normal(left.float()).double())[0]
        return left.flatten(1).norm(dim=1) / maps.flatten(1).norm(dim=1).clamp_min(1e-300)

    def _random(self) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        return torch.randn(self.shared.size, dtype=torch.float64, generator=generator).to(
            self.free.device
        )

    def _inverse(self, right: Tensor) -> tuple[Tensor, bool]:
        size = float(right.abs().max().clamp_min(1e-300))
        found, converged = conjugate_gradients(
            lambda v: self._normal(v.view(right.shape)).flatten(),
            lambda v: self._precondition(v.view(right.shape)).flatten(),
            (self.free * right / size).float().flatten(),
            _TOLERANCE,
            _ITERATIONS,
        )
        return size * found.view(right.shape).double(), converged

    def _normal(self, maps: Tensor) -> Tensor:
        maps = self.free * maps
        product = torch.zeros_like(maps)
        for part, gram in zip(self.shared.parts, self.grams, strict=True):
            part.put(product, gram @ part.take(maps))
        for output in self.narrow:
            product += output.normal(maps)
        return self.free * product

    def _precondition(self, maps: Tensor) -> Tensor:
        maps, product = self.free * maps, torch.zeros_like(maps)
        for part, (Q, P, inverse) in zip(self.shared.parts, self.factors, strict=True):
            part.put(product, Q @ (inverse * (Q.T @ part.take(maps) @ P)) @ P.T)
        return self.free * product

    def _factor(self, part: PlaceClass) -> tuple[Tensor, Tensor, Tensor]:
        M = part.gram.new_zeros(self.shared.size[1], self.shared.size[1])
        for output in self.outputs:
            unit, squares = output.unit, output.weight.square().mean(_PLACES)
            for tap in unit.taps(self.shared.step, part.corner):
                W = unit.W.flatten(2)[:, :, tap]
                M += (W.T * squares) @ W / (unit.stride // self.shared.step) ** 2
        values, Q = torch.linalg.eigh(part.gram)
        others, P = torch.linalg.eigh(M)
        sums = values.clamp_min(0)[:, None] + others.clamp_min(0)
        return Q.float(), P.float(), (1 / sums.clamp_min(1e-10 * sums.max())).float()


def _normalized(values: Tensor) -> Tensor:
    return values / values.square().sum(_PLACES, keepdim=True).sqrt().clamp_min(1e-300)
