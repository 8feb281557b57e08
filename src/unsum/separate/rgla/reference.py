"""RGLA's step 1 as the paper writes it, in plain autograd: to be read beside the paper, and what
the fast form is tested against.

symbol in the paper          here
Ŷ, Y, D = (softmax(Ŷ)−Y)/B   logits, one-hot labels, D
∇W, ∇b, W, b                 head.grad_W, head.grad_b, head.W, head.b
α1, α2, α3                   weights["w"], weights["b"], weights["loss"]
l̂ (Proposition 2)            estimated_loss(grad_b, labels)
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from unsum.head import Head
from unsum.separate.rgla.objective import WEIGHTS, estimated_loss


def total_loss(
    logits: Tensor,
    head: Head,
    labels: Tensor,
    weights: Mapping[str, float] = WEIGHTS,
    *,
    constant_D: bool = True,
) -> Tensor:
    """α1 L_w + α2 L_b + α3 L_loss for (B, C) logits, of the gradient of a mean loss."""
    W, b, grad_W, grad_b = (
        part.to(logits) for part in (head.W, head.of_bias[0], head.grad_W, head.of_bias[1])
    )
    Y = functional.one_hot(labels, head.classes).to(logits)
    D = (logits.softmax(1) - Y) / len(labels)
    D = D.detach() if constant_D else D  # the released code's backward pass; L_b then has none
    # Proposition 1: zero at the true logits
    L_w = (grad_W @ W.T - D.T @ (logits - b)).square().sum()
    L_b = (grad_b - D.sum(0)).square().sum()
    L_loss = (functional.cross_entropy(logits, labels) - estimated_loss(grad_b, labels)).square()
    return weights["w"] * L_w + weights["b"] * L_b + weights["loss"] * L_loss


def minimize_plainly(
    head: Head,
    labels: Tensor,
    start: Tensor,
    *,
    steps: int,
    rate: float,
    weights: Mapping[str, float] = WEIGHTS,
    constant_D: bool = True,
) -> Tensor:
    """(B, C) logits after the paper's Adam."""
    logits = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([logits], rate)
    for _ in range(steps):
        optimizer.zero_grad()
        total_loss(logits, head, labels, weights, constant_D=constant_D).backward()
        optimizer.step()
    return logits.detach()
