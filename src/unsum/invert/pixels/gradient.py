"""What a client with these pictures would send, in a precision of choice."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from unsum.gradients import main_output, quiet

Gradient = Callable[..., list[Tensor]]


@contextmanager
def computing(model: nn.Module, dtype: torch.dtype, names: list[str]) -> Iterator[Gradient]:
    """The gradient of a batch's loss by the named tensors; `only` one sample's share of it."""
    own = copy.deepcopy(model).to(dtype)
    parameters = [dict(own.named_parameters())[name] for name in names]

    def gradient(
        pictures: Tensor, targets: Tensor, weight: float, only: int | None = None
    ) -> list[Tensor]:
        with torch.enable_grad():
            losses = nn.functional.cross_entropy(
                main_output(own(pictures)), targets, reduction="none"
            )
            loss = weight * (losses.sum() if only is None else losses[only])
            return list(torch.autograd.grad(loss, parameters, materialize_grads=True))

    with quiet(own, names), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield gradient
