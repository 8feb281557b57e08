"""The gradient of one sample: a single direction v of features, and for every length λ along it the label that would explain it.

With one sample ∇W = (p − y) fᵀ has rank one, so every row is a multiple of f. From the largest row r,

    v = ∇W_r / κ,   f(λ) = λ v,   the truth at λ* = κ/(p_r − y_r),
    ŷ_i(λ) = softmax(W f(λ) + b)_i − ∇W_i[a] / f(λ)[a]      for any entry a with f(λ)[a] ≠ 0.

Σ_i ŷ_i(λ) = 1 for every λ, because the columns of ∇W sum to zero: normalisation cannot choose λ. The bias gradient can: it is
p − y itself, so λ* = κ/∇b_r. The published search leaves it out; it is what a head without a bias offers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.errors import UnsumError
from unsum.head import Factors, Head
from unsum.separate.exact.rank import Noise, factorise, measure_noise

_BLOCK = 1 << 22  # entries of ∇W looked at together
_VISIBLE = 10.0  # remainders this many times above rounding are noise


@dataclass(frozen=True)
class Ray:
    """ŷ(λ) = softmax(λ k + b) − u/λ. All float64; k, b and u lie on the CPU, the faster place for a few hundred numbers."""

    v: Tensor  # (H,) features per unit of λ
    k: Tensor  # (C,) W v, logits per unit of λ
    b: Tensor  # (C,) zeros where the head has none
    u: Tensor  # (C,) ∇W_i[a]/v[a], the same for every a
    noise_u: float  # standard deviation of an entry of u
    noise_k: float  # and of k, whose v is as noisy
    noisy: bool  # whether they are more than rounding
    bias_length: float | None  # λ*, where the bias gradient tells it

    def probabilities(self, lengths: Tensor) -> Tensor:
        """(n, C) for n lengths λ."""
        return torch.softmax(lengths[:, None] * self.k + self.b, dim=1)

    def labels(self, lengths: Tensor) -> Tensor:
        """(n, C) ŷ for n lengths λ."""
        return self.probabilities(lengths) - self.u / lengths[:, None]


def find_ray(head: Head, batch_size: int | None, coefficient: float) -> Ray:
    """The ray of a gradient of one sample; refuses any other gradient. `coefficient` is κ."""
    _check(head, batch_size)
    noise = measure_noise(head)
    # In noise a declared batch size says more than the count of directions; in a clean gradient the count does.
    factors = factorise(head, noise, batch_size if noise.added else None)
    rank = factors.A.shape[0]
    if rank > 1:
        raise UnsumError("The gradient holds more than one sample and 'soft' recovers only one; use 'exact'.")
    if rank == 0:
        raise UnsumError("Nothing in the gradient stands out of its noise; there is no sample to recover.")
    return _ray(head, factors, noise, coefficient)


def _ray(head: Head, factors: Factors, noise: Noise, coefficient: float) -> Ray:
    """∇W = U A with A of unit length in place of single entries: equal for rank one, and rounding averages out.

    So is the largest |U_r| in place of the published largest |Σ_k ∇W_rk|, which features of zero sum would make 0/0.
    """
    U, A = factors.U[:, 0], factors.A[0]
    remainder = _remainder(head, U, A)
    rounding = torch.finfo(head.grad_W.dtype).eps / 2 * float(U.norm()) / head.grad_W.numel() ** 0.5
    row = int(U.abs().argmax())
    largest = float(U[row])
    b = U.new_zeros(head.classes) if head.b is None else head.b.double()
    return Ray(
        v=A * (largest / coefficient),
        k=(head.logits(factors.A)[0] * (largest / coefficient)).cpu(),
        b=b.cpu(),
        u=(U * (coefficient / largest)).cpu(),
        noise_u=abs(coefficient / largest) * remainder,
        noise_k=abs(largest / coefficient)
        * remainder
        / float(U.norm())
        * float(head.row_norms(head.W).square().mean().sqrt()),
        noisy=remainder > _VISIBLE * rounding,
        bias_length=_bias_length(head, U, largest / coefficient),
    )


def _remainder(head: Head, U: Tensor, A: Tensor) -> float:
    """Standard deviation of an entry of ∇W that rank one does not explain.

    The columns' sums, the exact solver's measure, would take a label for noise whose float32 entries do not sum to 1 exactly.
    """
    step = max(1, _BLOCK // A.numel())
    blocks = zip(head.grad_W.split(step), U.split(step), strict=True)
    square = sum(float((rows.double() - torch.outer(part, A)).square().sum()) for rows, part in blocks)
    return float((square / head.grad_W.numel()) ** 0.5)


def _bias_length(head: Head, U: Tensor, unit: float) -> float | None:
    """λ* from ∇b = p − y: U is ∇b times the features' length along A, which all rows together tell best."""
    if head.b is None or head.grad_b is None or not bool(head.grad_b.any()):
        return None
    bias = head.grad_b.double()
    length = float(U @ bias / (bias @ bias))
    return length / unit if length != 0 else None


def _check(head: Head, batch_size: int | None) -> None:
    if batch_size is not None and batch_size > 1:
        raise UnsumError(f"A batch of {batch_size} samples was declared and 'soft' recovers only one; use 'exact'.")
    if head.classes < 3:
        raise UnsumError(
            f"The attack 'soft' compares entries of a label and needs at least 3 classes, not {head.classes}."
        )
    extremes = [extreme for part in (head.grad_W, head.W) for extreme in torch.aminmax(part)]
    if not all(bool(torch.isfinite(extreme)) for extreme in extremes):
        raise UnsumError("The head or its gradient holds NaN or Inf; a server would drop it, and so does unsum.")
    if not bool(head.grad_W.any()):
        raise UnsumError("The gradient is zero: it says nothing about the sample; ask for another update.")
