"""How much of the gradient an answer leaves unexplained."""

from __future__ import annotations

import torch
from torch import Tensor

from unsum.head import Head


def relative_misfit(head: Head, logits: Tensor, targets: Tensor, features: Tensor) -> float:
    """‖Gᵀ F − ∇W‖ / ‖∇W‖ with G = (softmax(logits) − targets), over B for a mean loss; all in float64."""
    size = len(targets) if head.reduction == "mean" else 1
    G = (logits.softmax(1) - targets) / size
    gradient = head.grad_W.double()
    return float((G.T @ features - gradient).norm() / gradient.norm().clamp_min(torch.finfo(torch.float64).tiny))
