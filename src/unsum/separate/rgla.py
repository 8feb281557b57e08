"""RGLA: optimise the logits until they explain the head's gradient, then solve for the features.

With targets Y known and D = (softmax(Ŷ) − Y)/B, the paper minimises over Ŷ (B×C)

    L_w = ‖∇W Wᵀ − Dᵀ(Ŷ − b)‖²      ∇W Wᵀ = Gᵀ F Wᵀ, and F Wᵀ = Ŷ − b
    L_b = ‖∇b − Dᵀ1‖²
    L_loss = (CE(Ŷ, y) − l̂)²         l̂ = −mean_i ln(∇b_{y_i} + n_{y_i}/B), the loss the gradient gives away
    1e4 L_w + L_b + 100 L_loss        Adam, rate 1e-3, 20 000 steps, start from standard normal logits

and then takes F = pinv(Dᵀ) ∇W. L_loss keeps it away from twin solutions near the labels. D is differentiated.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsum.errors import UnsumError
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.labels.bias_sign import bias_sign
from unsum.leak import Leak
from unsum.separate.method import SEPARATORS
from unsum.separate.misfit import relative_misfit

WEIGHT_W, WEIGHT_B, WEIGHT_LOSS = 1e4, 1.0, 100.0
RATE, STEPS = 1e-3, 20_000


@SEPARATORS.register(
    "rgla", summary="logits by 20 000 steps of Adam (RGLA)", needs="bias gradient, hard labels, early training"
)
def rgla(head: Head, knowledge: Knowledge, *, seed: int, steps: int = STEPS) -> Leak:
    """Logits by optimisation, features by the Moore–Penrose inverse. Labels come from `bias-sign` unless granted."""
    if head.b is None or head.grad_b is None:
        raise UnsumError("The attack 'rgla' needs the head's bias and its gradient; use 'exact', which does not.")
    granted = knowledge.targets(head.classes)
    labels = bias_sign(head, knowledge.batch_size) if granted is None else granted.argmax(1).to(head.W.device)
    Y = torch.nn.functional.one_hot(labels, head.classes).to(head.W)
    grad_W_Wt = head.grad_W.to(head.W) @ head.W.T
    logits = _optimise(head.b, grad_W_Wt, head.grad_b.to(head.W), labels, Y, seed, steps)
    D = (logits.softmax(1) - Y) / len(Y)
    features = torch.linalg.lstsq(
        D.T.double(), head.grad_W.double(), driver="gelsd" if D.device.type == "cpu" else None
    )
    found = features.solution
    return Leak(
        method="rgla",
        targets=Y.double(),
        logits=logits.double(),
        features=found.to(head.W),
        residual=relative_misfit(head, logits.double(), Y.double(), found),
        predicted_error=float("nan"),
        exact=False,
        notes=["RGLA carries no certificate: its features are approximate and their error is not predicted."],
    )


def _optimise(b: Tensor, grad_W_Wt: Tensor, grad_b: Tensor, labels: Tensor, Y: Tensor, seed: int, steps: int) -> Tensor:
    """(B, C) the logits at which Adam ends."""
    estimated_loss = _estimated_loss(grad_b, labels)
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(Y.shape, generator=generator).to(Y).requires_grad_()
    optimiser = torch.optim.Adam([logits], RATE, fused=True)  # one kernel per step: the fastest form on any device
    for _ in range(steps):
        log_p = logits.log_softmax(1)
        D = (log_p.exp() - Y) / len(Y)
        loss_W = (grad_W_Wt - D.T @ (logits - b)).square().sum()
        loss_b = (grad_b - D.sum(0)).square().sum()
        loss_value = (-(log_p * Y).sum(1).mean() - estimated_loss).square()
        (logits.grad,) = torch.autograd.grad(WEIGHT_W * loss_W + WEIGHT_B * loss_b + WEIGHT_LOSS * loss_value, logits)
        optimiser.step()
    return logits.detach()


def _estimated_loss(grad_b: Tensor, labels: Tensor) -> Tensor:
    """l̂: near initialisation p_y ≈ ∇b_y + n_y/B for every sample of class y, because ∇b_y = mean_i p_iy − n_y/B."""
    counts = torch.bincount(labels, minlength=len(grad_b)).to(grad_b)
    return -(grad_b + counts / len(labels))[labels].clamp_min(torch.finfo(grad_b.dtype).tiny).log().mean()
