"""Losses as functions of what any network returns, for networks without a linear head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from unsum.errors import UnsumError
from unsum.losses.loss import Loss
from unsum.losses.separable import BinaryCrossEntropy, SquaredError
from unsum.network.passes import main_tensor

LossFunction = Callable[[Any, Any], Tensor]  # (what the model returns, targets) → a number


def function_of(loss: Loss) -> LossFunction | None:
    """The mean over all entries that the loss is; None where it has no meaning beyond rows of
    logits."""
    for kind, of_tensors in _FUNCTIONS.items():
        if isinstance(loss, kind):
            return lambda returned, targets: of_tensors(_alike(returned, targets), targets)
    return None


def _alike(returned: Any, targets: Tensor) -> Tensor:
    """The main output in the targets' shape: a single output of (B, 1) is of (B,) numbers. Anything
    else would be broadcast."""
    output = main_tensor(returned)
    if output is None or output.numel() != targets.numel() or len(output) != len(targets):
        shapes = None if output is None else tuple(output.shape)
        raise UnsumError(
            f"The model returns {shapes}, which does not fit targets of {tuple(targets.shape)}."
        )
    return output.view_as(targets)


_FUNCTIONS: dict[type[Loss], Callable[[Tensor, Tensor], Tensor]] = {
    SquaredError: nn.functional.mse_loss,
    BinaryCrossEntropy: nn.functional.binary_cross_entropy_with_logits,
}
