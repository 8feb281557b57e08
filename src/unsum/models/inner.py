"""What a layer inside a model reads."""

from __future__ import annotations

from torch import Tensor, nn

from unsum.errors import UnsumError


class Tap(nn.Module):
    """In the place of a convolution or a dense layer: does what it does, and remembers what it
    read.

    A 1×1 convolution with a stride passes places over: only those it looks at count.
    """

    def __init__(self, tapped: nn.Conv2d | nn.Linear) -> None:
        super().__init__()
        self.tapped = tapped
        self.seen: Tensor | None = None

    @property
    def read(self) -> Tensor:
        """What the layer read, in a model that asks it."""
        if self.seen is None:
            raise UnsumError(
                "The model does not ask this layer for anything; name one that its forward pass "
                "goes through."
            )
        return self.seen

    def forward(self, inputs: Tensor) -> Tensor:
        layer, self.seen = self.tapped, inputs
        if isinstance(layer, nn.Conv2d) and layer.kernel_size == (1, 1):
            rows, columns = layer.stride
            self.seen = inputs[:, :, ::rows, ::columns]
        output: Tensor = layer(inputs)
        return output


def tap(model: nn.Module, layer: str) -> Tap:
    """Put a `Tap` in the place of `layer`; changes `model`."""
    try:
        inner = model.get_submodule(layer)
    except AttributeError as error:
        raise UnsumError(
            f"The model has no layer {layer!r}; name a convolution or a dense layer as "
            "model.named_modules() does."
        ) from error
    if not isinstance(inner, nn.Conv2d | nn.Linear):
        raise UnsumError(
            f"{layer!r} is a {type(inner).__name__}; an inner layer must be a Conv2d or a Linear."
        )
    tapped = Tap(inner)
    model.set_submodule(layer, tapped)
    return tapped
