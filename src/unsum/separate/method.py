"""What a separator is: from the head's gradient to every sample's features, logits and labels.

Answers that carry no certificate, and how much of the gradient an answer leaves unexplained.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.registry import Registry


class Separator(Protocol):
    """Takes the head with its gradient and what was granted; `seed` fixes every random choice.

    Further keyword-only arguments with defaults are the method's options: `separate(...,
    name=value)` passes them on and reads their names from the signature. One called `progress` gets
    the caller's `progress`; those called `model` and `update` get these, for methods that need more
    than the head.
    """

    def __call__(self, head: Head, knowledge: Knowledge, *, seed: int) -> Leak: ...


SEPARATORS: Registry[Separator] = Registry("attack", "unsum.attacks")


def working_type(head: Head) -> torch.dtype:
    """The model's own precision, float32 at least."""
    return torch.promote_types(head.W.dtype, torch.float32)


def uncertified(
    method: str,
    head: Head,
    logits: Tensor,
    targets: Tensor,
    features: Tensor,
    notes: list[str],
    *,
    residual: float | None = None,
    predicted_error: float = math.nan,
    scale: float = 1.0,
) -> Leak:
    """A leak that claims no exactness, and no error unless one is given."""
    residual = relative_misfit(head, logits, targets, features) if residual is None else residual
    features = features.to(working_type(head))
    return Leak(
        method,
        targets,
        logits,
        features,
        residual,
        predicted_error,
        False,
        scale=scale,
        notes=notes,
    )


def relative_misfit(head: Head, logits: Tensor, targets: Tensor, features: Tensor) -> float:
    """‖Gᵀ F − ∇W‖ / ‖∇W‖ with G = (softmax(logits) − targets), over B for a mean loss; in float64,
    block by block."""
    size = len(targets) if head.reduction == "mean" else 1
    Gt = ((logits.double().softmax(1) - targets.double()) / size).T
    squares = torch.zeros(2, dtype=torch.float64, device=Gt.device)
    for columns in head.column_blocks():
        gradient = head.grad_W[:, columns].double()
        squares[1] += gradient.square().sum()
        squares[0] += (gradient - Gt @ features[:, columns].double()).square().sum()
    unexplained, whole = squares.sqrt().tolist()
    return float(unexplained / max(whole, torch.finfo(torch.float64).tiny))
