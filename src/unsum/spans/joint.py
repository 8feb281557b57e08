"""The last solve: all samples at once against the gradients of all dense layers.

Σ_i α w_i δ_l(x_i) a_l(x_i)ᵀ = ∇W_l for every layer l, by Gauss–Newton over all unknowns and one α.
What single conditions leave vague, because two samples differ by little, the sum of all still
tells. The Jacobian is never formed: each column is a sum of two outer products, so the normal
equations are products of small Gram matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from unsum.engine.budget import Budget
from unsum.engine.descend import ROUNDING, NonlinearProblem, Normal, descend
from unsum.network.chain import Step
from unsum.spans.basis import rounding_of
from unsum.spans.settle import Moved, Sample

# [unknowns] whose normal equations take a second or two. Chosen by: arbitrary budget.
MOST = 2048
# From where `settle` stops three or four steps lead to the end. Chosen by: arbitrary budget.
_DESCENT = Budget(steps=20, damping=1e-6, patience=1)


@dataclass(frozen=True)
class AllSamples(NonlinearProblem):
    """All samples as unknowns (s of everyone, log α), one row, with targets Y (R, C) and relative
    weights w (R,).

    Those of several local steps met different weights: `samples` has one entry a step, and `counts`
    how many each saw.
    """

    samples: list[Sample]
    counts: list[int]
    steps: list[Step]
    Y: Tensor
    weights: Tensor
    noises: list[float]  # of an entry of every layer's gradient

    @classmethod
    def of(cls, sample: Sample, steps: list[Step], Y: Tensor, weights: Tensor) -> AllSamples:
        known = [sample.condition.here.noise, sample.condition.next.noise]
        noises = [*known, *(rounding_of(step.grad_W) for step in steps[2:])]
        return cls([sample], [len(Y)], steps, Y, weights, noises)

    def costs(self, s: Tensor) -> Tensor:
        """(1,) what all gradients leave, squared, in units of their noise."""
        layers = self._layers(s[0], by=False)
        return torch.stack([rest.square().sum() / noise**2 for rest, *_, noise in layers]).sum()[
            None
        ]

    def linearize(self, s: Tensor) -> Normal:
        (u,) = s
        cost, gradient, N = u.new_zeros(()), torch.zeros_like(u), u.new_zeros(len(u), len(u))
        for rest, sent, read, noise in self._layers(u, by=True):
            model = sent.at.T @ read.at  # the derivative by log α
            k = sent.by.shape[1]
            d, a = sent.by.flatten(0, 1), read.by.flatten(0, 1)  # (R k, …)
            D, A = sent.at.repeat_interleave(k, 0), read.at.repeat_interleave(k, 0)
            cross = (d @ D.T) * (A @ a.T)
            square = (d @ d.T) * (A @ A.T) + cross + cross.T + (D @ D.T) * (a @ a.T)
            N[:-1, :-1] += square / noise**2
            for matrix, into in ((rest, gradient), (model, N[-1])):
                into[:-1] += (((d @ matrix) * A).sum(1) + ((D @ matrix) * a).sum(1)) / noise**2
                into[-1] += (model * matrix).sum() / noise**2
            cost = cost + rest.square().sum() / noise**2
        N[:-1, -1] = N[-1, :-1]
        return Normal(cost[None], gradient[None], N[None], self.costs, ROUNDING)

    def _layers(self, u: Tensor, *, by: bool) -> list[tuple[Tensor, Moved, Moved, float]]:
        """(what is left of ∇W, δ, what was read, noise) of every layer, biases as a last column."""
        s, alpha = u[:-1].view(len(self.Y), -1), u[-1].exp()
        parts = zip(self.samples, s.split(self.counts), self.Y.split(self.counts), strict=True)
        passes = [sample.passes(some, Y, by=by)[:2] for sample, some, Y in parts]
        reads, deltas = (
            [_joined(layer) for layer in zip(*side, strict=True)]
            for side in zip(*passes, strict=True)
        )
        layers = []
        for step, read, delta, noise in zip(self.steps, reads, deltas, self.noises, strict=True):
            factor = (alpha * self.weights)[:, None]
            sent, seen, grad = (
                Moved(factor * delta.at, factor[..., None] * delta.by),
                read,
                step.grad_W.double(),
            )
            if step.grad_b is not None:
                seen = Moved(pad(read.at, (0, 1), value=1.0), pad(read.by, (0, 1)))
                grad = torch.cat([grad, step.grad_b.double()[:, None]], 1)
            layers.append((sent.at.T @ seen.at - grad, sent, seen, noise))
        return layers


def _joined(parts: Sequence[Moved]) -> Moved:
    return Moved(torch.cat([part.at for part in parts]), torch.cat([part.by for part in parts]))


def solve_together(samples: AllSamples, X: Tensor, alpha: float) -> tuple[Tensor, Tensor, float]:
    """(X (R, n), predicted relative errors (R,), α) from a start near the truth."""
    condition = samples.samples[0].condition
    start = condition.unknowns_of(X)
    u = torch.cat([start.flatten(), start.new_tensor([alpha]).log()])
    u = descend(samples, u[None], _DESCENT).s[0]
    at = samples.linearize(u[None])
    cost, N = at.cost[0], at.matrix[0]
    entries = sum(step.grad_W.numel() for step in samples.steps)
    left = (cost / max(entries - len(u), 1)).sqrt().clamp_min(1.0)
    scale = N.diagonal().clamp_min(1e-300).rsqrt()
    covariance = (
        torch.linalg.pinv(N * scale * scale[:, None], hermitian=True).diagonal() * scale.square()
    )
    inputs = condition.inputs(u[:-1].view_as(start))
    deviations = covariance[:-1].view_as(start).clamp_min(0).sum(1).sqrt() * left
    return inputs, deviations / inputs.norm(dim=1).clamp_min(1e-300), float(u[-1].exp())
