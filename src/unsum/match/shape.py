"""The pictures' shape: given, written on the model, or the only one of the usual that the model takes."""

from __future__ import annotations

import torch
from torch import nn

from unsum.errors import UnsumError
from unsum.gradients import main_output

_USUAL = (28, 32, 48, 64, 84, 96, 112, 128, 160, 192, 224, 256, 299, 336, 384)


def picture_shape(model: nn.Module, image_size: int | tuple[int, int, int] | None) -> tuple[int, int, int]:
    """(c, h, w) of one picture."""
    if isinstance(image_size, tuple):
        if len(image_size) != 3 or min(image_size) < 1:
            raise UnsumError(
                f"image_size must be the side of the pictures or (channels, height, width), not {image_size}."
            )
        return image_size
    channels = next((m.in_channels for m in model.modules() if isinstance(m, nn.Conv2d)), 3)
    side = image_size if image_size is not None else getattr(model, "image_size", None)
    if side is not None:
        if not isinstance(side, int) or side < 1:
            raise UnsumError(f"The pictures' side must be a whole number of at least 1, not {side!r}.")
        return channels, side, side
    taken = _taken(model, channels)
    if len(taken) != 1:
        which = f"takes several ({', '.join(map(str, taken))}, …)" if taken else "takes none of the usual ones"
        raise UnsumError(f"The pictures' size is unknown, and the model {which}; give it with image_size=.")
    return channels, taken[0], taken[0]


def _taken(model: nn.Module, channels: int) -> list[int]:
    """The usual sides that the model takes, no more than two of them: one is an answer, two are none."""
    modes = [(module, module.training) for module in model.modules()]
    first = next(model.parameters())
    model.eval()
    taken: list[int] = []
    try:
        for side in _USUAL:
            try:
                with torch.no_grad():
                    main_output(model(torch.zeros(1, channels, side, side).to(first)))
            except (RuntimeError, ValueError, AssertionError):
                continue
            taken.append(side)
            if len(taken) == 2:
                break
    finally:
        for module, training in modes:
            module.training = training
    return taken
