"""Noise on every entry of the update: Gaussian, or as the Laplace mechanism adds it.

It is drawn and added in float32 at least, and the sum is rounded to the precision of the update.
Rounding after the noise only processes what was noisy already, and gives nothing away. Noise that
is itself drawn in half precision takes so few values that sums show which entry was zero before.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from unsum.defend.added import AddedNoise
from unsum.defend.defense import DEFENSES, Axis, Defense, TensorDefense, require


@DEFENSES.register("noise", summary="Gaussian noise of this standard deviation on every entry")
class Noise(TensorDefense):
    """g + N(0, σ²), drawn from torch's global generator (`torch.manual_seed` makes it repeatable).

    Examples:
        >>> import torch, unsum
        >>> update = unsum.Update({"w": torch.tensor([3.0, -4.0, 0.5])})
        >>> _ = torch.manual_seed(0)
        >>> unsum.Noise(0.01)(update).gradients["w"]
        tensor([ 3.0154, -4.0029,  0.4782])
    """

    axis = Axis("standard deviation")

    def __init__(self, std: float) -> None:
        super().__init__(
            require(0 <= std < math.inf, "Noise needs a standard deviation of at least 0", std)
        )

    def changed(self, gradient: Tensor) -> Tensor:
        precise = at_least_float32(gradient)
        return (precise + self.strength * torch.randn_like(precise)).to(gradient.dtype)

    def noise_free(self, samples: int) -> tuple[tuple[Defense, ...], AddedNoise | None]:  # noqa: ARG002
        return (), AddedNoise("gaussian", self.strength) if self.strength else None


@DEFENSES.register(
    "laplace", summary="Laplace noise of this scale b (standard deviation √2·b) on every entry"
)
class Laplace(TensorDefense):
    """g + Laplace(0, b): density e^(−|x|/b) / 2b, drawn from torch's global generator.

    The difference of two exponential variables of mean b has this distribution.

    Examples:
        >>> import torch, unsum
        >>> update = unsum.Update({"w": torch.tensor([3.0, -4.0, 0.5])})
        >>> _ = torch.manual_seed(0)
        >>> unsum.Laplace(0.01)(update).gradients["w"]
        tensor([ 3.0097, -3.9981,  0.4905])
    """

    axis = Axis("scale b")

    def __init__(self, scale: float) -> None:
        super().__init__(
            require(0 <= scale < math.inf, "Laplace noise needs a scale of at least 0", scale)
        )

    def changed(self, gradient: Tensor) -> Tensor:
        precise = at_least_float32(gradient)
        one, other = (
            torch.empty_like(precise).exponential_(),
            torch.empty_like(precise).exponential_(),
        )
        return (precise + self.strength * (one - other)).to(gradient.dtype)

    def noise_free(self, samples: int) -> tuple[tuple[Defense, ...], AddedNoise | None]:  # noqa: ARG002
        return (), AddedNoise("laplace", self.strength) if self.strength else None


def at_least_float32(gradient: Tensor) -> Tensor:
    """The same numbers where noise can be added to them."""
    return gradient.float() if gradient.element_size() < _FLOAT32 else gradient


_FLOAT32 = 4  # [bytes] of an entry
