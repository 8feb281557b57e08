"""Weight decay, found and taken off: a client that decays its weights sends g + λW, and g's columns sum to zero.

So the columns of what it sent sum to λ times those of W, which gives λ at once: λ = ⟨1ᵀW, 1ᵀ(g + λW)⟩ / ‖1ᵀW‖².
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unsum.equation.noise import Noise, measure_noise, rounding_of_an_entry
from unsum.head import Head

_WITNESSES = 8  # columns below which sums may be proportional by chance
_SEEN = 1e-2  # of the sums that λW must leave at most
_LARGEST = 1e2  # λ of no optimizer


@dataclass(frozen=True)
class Undecayed:
    """The head with its gradient less λW, λ, and the noise, which the rounding of g + λW has part in."""

    head: Head
    decay: float
    noise: Noise


def without_decay(head: Head) -> Undecayed | None:
    """None where the columns' sums tell of no decay."""
    C, H = head.W.shape
    if H < _WITNESSES or not measure_noise(head).added:
        return None
    sums, of_weights = _column_sums(head, head.grad_W), _column_sums(head, head.W)
    size = float(of_weights.square().sum())
    decay = float(sums @ of_weights) / size if size > 0 else 0.0
    if not 0 < abs(decay) < _LARGEST or float((sums - decay * of_weights).norm()) > _SEEN * float(sums.norm()):
        return None
    clean = replace(head, grad_W=head.grad_W.double() - decay * head.W.double(), grad_b=_bias(head, decay))
    rounding = rounding_of_an_entry(head) * head.row_norms(head.grad_W) / H**0.5
    before = replace(measure_noise(replace(clean, grad_W=clean.grad_W.to(head.grad_W.dtype))), added=False)
    level = (before.level.square() + rounding.square()).sqrt()
    left = float((sums - decay * of_weights).norm()) / (C * H) ** 0.5
    if left > 10 * float(level.square().mean().sqrt()):  # there is noise besides
        return None
    relative = float(rounding.norm() * H**0.5) / float(clean.grad_W.norm())
    return Undecayed(clean, decay, Noise(level, False, max(relative, before.relative)))


def _column_sums(head: Head, matrix: Tensor) -> Tensor:
    total = torch.zeros(matrix.shape[1], dtype=torch.float64, device=matrix.device)
    for rows in head.row_blocks():
        total += matrix[rows].double().sum(0)
    return total


def _bias(head: Head, decay: float) -> Tensor | None:
    """Many optimizers spare the bias: its own sum tells."""
    if head.grad_b is None or head.b is None:
        return head.grad_b
    grad_b, b = head.grad_b.double(), head.b.double()
    spared, decayed = float(grad_b.sum().abs()), float((grad_b - decay * b).sum().abs())
    return grad_b if spared <= decayed else grad_b - decay * b
