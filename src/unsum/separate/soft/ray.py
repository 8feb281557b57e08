"""The gradient of one sample: a single direction v of features, and for every length λ along it the
label that would explain it.

With one sample ∇W = (p − y) fᵀ has rank one, so every row is a multiple of f. From the largest row
r,

    v = ∇W_r / κ,   f(λ) = λ v,   the truth at λ* = κ/(p_r − y_r),
    ŷ_i(λ) = softmax(W f(λ) + b)_i − ∇W_i[a] / f(λ)[a]      for any entry a with f(λ)[a] ≠ 0.

Σ_i ŷ_i(λ) = 1 for every λ, because the columns of ∇W sum to zero: normalization cannot choose λ.
The bias gradient can: it is p − y itself, so λ* = κ/∇b_r. The published search leaves it out; it is
what a head without a bias offers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.errors import UnsumError
from unsum.head import Head

_VISIBLE = 10.0  # remainders this many times above rounding are noise
_STANDS_OUT = 1.5  # singular values this many times above the largest of white noise are no noise
_POWER_STEPS = 8  # of the power method: the largest direction need only be told from noise


@dataclass(frozen=True)
class Ray:
    """ŷ(λ) = softmax(λ k + b) − u/λ. All float64; k, b and u lie on the CPU, the faster place for a
    few hundred numbers."""

    v: Tensor  # (H,) features per unit of λ
    k: Tensor  # (C,) W v, logits per unit of λ
    b: Tensor  # (C,) zeros where the head has none
    u: Tensor  # (C,) ∇W_i[a]/v[a], the same for every a
    noise_u: float  # standard deviation of an entry of u
    noise_k: float  # and of k, whose v is as noisy
    noisy: bool  # whether they are more than rounding
    bias_length: float | None  # λ*, where the bias gradient tells it

    def labels(self, lengths: Tensor) -> Tensor:
        """(n, C) ŷ for n lengths λ."""
        return torch.softmax(lengths[:, None] * self.k + self.b, dim=1) - self.u / lengths[:, None]


def find_ray(head: Head, batch_size: int | None, coefficient: float) -> Ray:
    """The ray of a gradient of one sample; refuses any other gradient. `coefficient` is κ.

    ∇W = U A with A of unit length stands in for single entries: equal for rank one, and rounding
    averages out. So does the largest |U_r| for the published largest |Σ_k ∇W_rk|, which features of
    zero sum would make 0/0.
    """
    _check(head, batch_size)
    longest = head.row_norms(head.grad_W).argmax()
    factors = head.factorize_rows(longest[None], head.W.new_ones(head.classes, dtype=torch.float64))
    U, A = factors.U[:, 0], factors.A[0]
    # Standard deviation of an entry of ∇W that rank one does not explain.
    blocks = ((head.grad_W[rows].double(), U[rows]) for rows in head.row_blocks())
    square = sum(float((block - torch.outer(part, A)).square().sum()) for block, part in blocks)
    remainder = float((square / head.grad_W.numel()) ** 0.5)
    rounding = torch.finfo(head.grad_W.dtype).eps / 2 * float(U.norm()) / head.grad_W.numel() ** 0.5
    noisy = remainder > _VISIBLE * rounding
    if noisy:
        _check_one_sample(head, U, A, remainder, batch_size)
    unit = float(U[U.abs().argmax()]) / coefficient
    row_size = float(head.row_norms(head.W).square().mean().sqrt())
    length = 0.0
    if head.b is not None and head.grad_b is not None and bool(head.grad_b.any()):
        bias = (
            head.grad_b.double()
        )  # p − y: U is that times the features' length along A, which all rows together tell best
        length = float(U @ bias / (bias @ bias))
    return Ray(
        v=A * unit,
        k=(head.logits(A[None])[0] * unit).cpu(),
        b=torch.zeros(head.classes, dtype=torch.float64)
        if head.b is None
        else head.b.double().cpu(),
        u=(U / unit).cpu(),
        noise_u=remainder / abs(unit),
        noise_k=remainder / float(U.norm()) * abs(unit) * row_size,
        noisy=noisy,
        bias_length=length / unit if length else None,
    )


def _check_one_sample(
    head: Head, U: Tensor, A: Tensor, remainder: float, batch_size: int | None
) -> None:
    """Tell noise, whose directions are all alike, from a second sample, which is a direction of its
    own."""
    C, H = head.grad_W.shape
    noise = remainder * (C**0.5 + H**0.5)  # the largest singular value of white noise
    if float(U.norm()) < _STANDS_OUT * noise:
        raise UnsumError(
            "Nothing in the gradient stands out of its noise; there is no sample to recover."
        )
    if batch_size == 1:
        return
    direction = torch.randn(
        1, H, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    ).to(U.device)
    size = 0.0
    for _ in range(_POWER_STEPS):
        image = head.projected(direction / direction.norm())[:, 0] - U * float(
            A @ direction[0] / direction.norm()
        )
        size = float(image.norm())
        direction = head.mixed_rows(image[None]) - A * float(U @ image)
    if size > _STANDS_OUT * noise:
        raise UnsumError(
            "The gradient holds more than one sample and 'soft' recovers only one; use 'exact'."
        )


def _check(head: Head, batch_size: int | None) -> None:
    if batch_size is not None and batch_size > 1:
        raise UnsumError(
            f"A batch of {batch_size} samples was declared and 'soft' recovers only one; use "
            "'exact'."
        )
    if head.classes < 3:
        raise UnsumError(
            "The attack 'soft' compares entries of a label and needs at least 3 classes, not "
            f"{head.classes}."
        )
    parts = [part for part in (head.W, head.b, head.grad_W, head.grad_b) if part is not None]
    extremes = [extreme for part in parts for extreme in torch.aminmax(part)]
    if not all(bool(torch.isfinite(extreme)) for extreme in extremes):
        raise UnsumError(
            "The head or its gradient holds NaN or Inf; a server would drop it, and so does unsum."
        )
    if not bool(head.grad_W.any()):
        raise UnsumError(
            "The gradient is zero: it says nothing about the sample; ask for another update."
        )
