"""How much of the gradient an answer leaves unexplained."""

from __future__ import annotations

import torch
from torch import Tensor

from unsum.head import Head

_BLOCK = 1 << 24  # values converted to float64 at a time: 128 MB, whatever the gradient's size


def relative_misfit(head: Head, logits: Tensor, targets: Tensor, features: Tensor) -> float:
    """‖Gᵀ F − ∇W‖ / ‖∇W‖ with G = (softmax(logits) − targets), over B for a mean loss; in float64, block by block."""
    size = len(targets) if head.reduction == "mean" else 1
    Gt = ((logits.double().softmax(1) - targets.double()) / size).T
    squares = torch.zeros(2, dtype=torch.float64, device=Gt.device)
    step = max(1, _BLOCK // head.classes)
    for start in range(0, head.grad_W.shape[1], step):
        columns = slice(start, start + step)
        gradient = head.grad_W[:, columns].double()
        squares[1] += gradient.square().sum()
        squares[0] += (gradient - Gt @ features[:, columns].double()).square().sum()
    unexplained, whole = squares.sqrt().tolist()
    return float(unexplained / max(whole, torch.finfo(torch.float64).tiny))
