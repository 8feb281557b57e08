"""What the head's gradient says once it is factored: the known side of the equation, with its noise."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.head import Head
from unsum.separate.exact.equation import Equation, Unknowns
from unsum.separate.exact.rank import Noise, factorize, measure_noise, rounding_of_an_entry


@dataclass(frozen=True)
class Observation:
    """∇W = U A and K = A Wᵀ, all in float64 on the head's device."""

    U: Tensor  # (C, R)
    A: Tensor  # (R, H)
    K: Tensor  # (R, C)
    b: Tensor  # (C,) zeros where the head has none
    grad_b: Tensor | None  # (C,)
    noise: Noise
    weight: Tensor  # (C,) one over the standard deviation of an entry of U
    beta: float  # the constant feature's value that gives ∇b the same standard deviation as U
    reduction: str
    row_norms: Tensor  # (C,) of W
    client_precision: float  # relative error of one operation at the client

    @property
    def rank(self) -> int:
        return self.A.shape[0]

    @property
    def classes(self) -> int:
        return len(self.b)

    def equation(self) -> Equation:
        """The unlabeled equation over all rows."""
        U = self.U if self.grad_b is None else torch.cat([self.U, self.beta * self.grad_b[:, None]], dim=1)
        return Equation(self.K, self.b, U, self.weight, self.beta)

    def weights_at(self, at: Unknowns, Y: Tensor) -> Tensor:
        """(C,) weights from the noise model at a solution.

        The client's logits err by its precision times ‖f‖‖W_c‖, its P by as much relatively, its P − Y by that of 1
        where Y is 1: errors of all samples that U collects in proportion to their features.
        """
        sizes = at.T.norm(dim=1, keepdim=True)
        P = torch.softmax(at.T @ self.K + self.b, dim=1)
        relative = (P * (1 + 0.5 * sizes * self.row_norms)).square() + Y.square()
        client = self.client_precision * at.alpha * (relative * sizes.square()).sum(0).sqrt()
        return torch.rsqrt(self.noise.level.square() + client.square())

    def alpha(self, scale: float, B: int) -> float:
        """The factor in front of P − Y for a gradient that was multiplied by `scale`."""
        return scale / B if self.reduction == "mean" else scale

    def scale(self, alpha: float, B: int) -> float:
        return alpha * B if self.reduction == "mean" else alpha


def observe(head: Head, batch_size: int | None, noise: Noise | None = None) -> Observation:
    """Measure the noise unless it is known, choose the rank and factor the gradient; a granted `batch_size` caps the rank."""
    noise = noise or measure_noise(head)
    factors = factorize(head, noise, batch_size)
    K = head.logits(factors.A)
    b = K.new_zeros(head.classes) if head.b is None else head.b.double()
    grad_b = _complete_bias(head, factors.U)
    # The client's own softmax, computed in W's precision, errs alike in every column: no averaging over columns.
    client_precision = torch.finfo(head.W.dtype).eps / 2
    client = client_precision * factors.U.norm(dim=1)
    deviation = (noise.level.square() + client.square()).sqrt()
    beta = 1.0
    if grad_b is not None:
        added = float(noise.level.min()) if noise.added else 0.0
        precision = max(rounding_of_an_entry(head), client_precision)
        bias_deviation = (added**2 + (precision * grad_b).square()).sqrt()
        beta = float((deviation / bias_deviation.clamp_min(1e-12 * bias_deviation.max())).median())
    row_norms = head.row_norms(head.W)
    return Observation(
        factors.U, factors.A, K, b, grad_b, noise, 1 / deviation, beta, head.reduction, row_norms, client_precision
    )


def _complete_bias(head: Head, U: Tensor) -> Tensor | None:
    """∇b, unless entries were frozen or pruned away: zero there although the same row of ∇W is not."""
    if head.grad_b is None or bool(((head.grad_b == 0) & (U.norm(dim=1) > 0)).any()):
        return None
    return head.grad_b.double()
