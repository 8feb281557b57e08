"""Proposition 2 of RGLA: the loss that a bias gradient gives away, near initialization.

For a class y that n_y of the B samples carry, ∇b_y = mean_i p_iy − n_y/B. So ∇b_y + n_y/B is the mean probability of y over
the batch; near initialization every sample's own probability is close to that mean, and

    l̂ = −mean_i ln(∇b_{y_i} + n_{y_i}/B)

is close to the cross-entropy. Exact for one sample and wherever p_iy is the same for all samples; trained models, whose
samples differ in p, move it away from the truth.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def estimated_loss(grad_b: Tensor, labels: Tensor) -> Tensor:
    """l̂ (0-dim) from the bias gradient (C,) of a mean loss and hard labels (B,).

    Where noise made ∇b_y + n_y/B negative there is no logarithm: such samples are left out of the mean, and ln C stands for
    a batch of which nothing is left.

    >>> uniform = torch.full((4,), 1 / 4) - torch.tensor([0.0, 0.5, 0.5, 0.0])  # two samples, p = 1/4 everywhere
    >>> round(float(estimated_loss(uniform, torch.tensor([1, 2]))), 4), round(math.log(4), 4)
    (1.3863, 1.3863)
    """
    counts = torch.bincount(labels, minlength=len(grad_b)).to(grad_b)
    mean_p = (grad_b + counts / len(labels))[labels]
    usable = mean_p > 0
    logarithms = torch.where(usable, mean_p, 1).log()
    uniform = grad_b.new_tensor(math.log(len(grad_b)))
    return torch.where(usable.any(), -logarithms.sum() / usable.sum().clamp_min(1), uniform)
