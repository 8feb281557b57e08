"""Uniform quantization: every tensor on a grid of 2ⁿ values between its smallest and its largest
entry."""

from __future__ import annotations

from torch import Tensor

from unsum.defend.defense import DEFENSES, Axis, TensorDefense, whole_number
from unsum.errors import UnsumError


@DEFENSES.register(
    "quantize", summary="round each tensor to this many bits, evenly between its extremes"
)
class Quantize(TensorDefense):
    """min + Δ · round((g − min)/Δ) with Δ = (max − min)/(2ⁿ − 1): no entry moves by more than Δ/2.

    Examples:
        >>> import torch, unsum
        >>> update = unsum.Update({"w": torch.tensor([3.0, -4.0, 0.5])})
        >>> unsum.Quantize(1)(update).gradients["w"]
        tensor([ 3., -4.,  3.])
    """

    example = 8
    axis = Axis("bits", spacing="linear", rising=False, whole=True)

    def __init__(self, bits: float) -> None:
        super().__init__(whole_number(bits, 1, "Quantization needs a number of bits"))
        if bits > 24:
            raise UnsumError(
                f"Quantization to {bits:g} bits is finer than float32; choose 24 or fewer."
            )

    def changed(self, gradient: Tensor) -> Tensor:
        exact = gradient.double()  # 24 bits leave float32 no digit for the arithmetic
        lowest = exact.min()
        spacing = (exact.max() - lowest) / (2**self.strength - 1)
        if not float(spacing) > 0:
            return gradient
        return (lowest + spacing * ((exact - lowest) / spacing).round()).to(gradient.dtype)
