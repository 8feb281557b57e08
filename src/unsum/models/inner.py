"""What a convolution inside a model reads."""

from __future__ import annotations

from torch import Tensor, nn

from unsum.errors import UnsumError


class Tap(nn.Module):
    """In the place of a convolution: does what it does, and remembers what it read.

    A 1×1 convolution with a stride passes places over: only those it looks at count.
    """

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        self.convolution = convolution
        self.seen: Tensor | None = None

    def forward(self, maps: Tensor) -> Tensor:
        layer = self.convolution
        rows, columns = layer.stride if layer.kernel_size == (1, 1) else (1, 1)
        self.seen = maps[:, :, ::rows, ::columns]
        output: Tensor = layer(maps)
        return output


def tap(model: nn.Module, layer: str) -> Tap:
    """Put a `Tap` in the place of the convolution `layer`; changes `model`."""
    try:
        convolution = model.get_submodule(layer)
    except AttributeError as error:
        raise UnsumError(
            f"The model has no layer {layer!r}; name a convolution as model.named_modules() does."
        ) from error
    if not isinstance(convolution, nn.Conv2d):
        raise UnsumError(f"{layer!r} is a {type(convolution).__name__}; an inner layer must be a Conv2d.")
    tapped = Tap(convolution)
    model.set_submodule(layer, tapped)
    return tapped
