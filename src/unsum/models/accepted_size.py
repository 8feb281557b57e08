"""Which photos does a model take? It is asked: one empty photo of every likely side goes in."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from unsum.errors import UnsumError, first_line
from unsum.gradients import in_eval_mode

# Sides of pictures, the likeliest first: the first that fits is taken.
_USUAL = (224, 32, 28, 64, 96, 128, 160, 192, 256, 299, 384, 512)
_CHANNELS = 3  # of a photo


def accepted_size(model: nn.Module, likely: Sequence[int], what: str) -> int:
    """The first side that `model` takes, of the `likely` ones, what its first layer says, and the
    usual ones."""
    first = next((m for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d)), None)
    if isinstance(first, nn.Conv2d) and first.in_channels != _CHANNELS:
        raise UnsumError(
            f"The first layer of {what} reads {first.in_channels} channels, and photos have "
            f"{_CHANNELS}; give your own tensors in Python: unsum.audit(model, (images, targets))."
        )
    told = (
        [side]
        if isinstance(first, nn.Linear) and (side := math.isqrt(first.in_features // _CHANNELS))
        else []
    )
    reasons = []
    for side in dict.fromkeys([*likely, *told, *_USUAL]):
        reason = refusal(model, side)
        if reason is None:
            return side
        reasons.append(reason)
    raise UnsumError(
        f"No side of photos that was tried suits {what} (with the first: {reasons[0]}); say which "
        "it takes with --image-size, or as the model's own attribute image_size."
    )


def refusal(model: nn.Module, side: int, channels: int = _CHANNELS) -> str | None:
    """Why the model does not take a picture of this side, or None if it does."""
    parameter = next(model.parameters(), torch.empty(0))
    photo = torch.zeros(1, channels, side, side, device=parameter.device, dtype=parameter.dtype)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), in_eval_mode(model):
            model(photo)
    except Exception as error:  # the user's own forward
        return f"{type(error).__name__}: {first_line(error)}"
    return None
