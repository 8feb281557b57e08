"""Activations that can be undone: from their output back to their input, and the slope there.

Let y = a(z). A method that goes on below needs the slope a′(z), and for convolutions z itself.
There are three families:

- one-to-one (LeakyReLU, ELU, Tanh, Sigmoid, none at all): z = a⁻¹(y), one slope per entry;
- ReLU: z = y where y > 0, slope 1; elsewhere only z ≤ 0 is known, slope 0;
- folded (GELU, SiLU): they fall to a minimum at z₀ < 0 and rise after it, so that every y < 0 has
  two z, and two slopes. The layer below decides which of the two holds
  (`peel.dense.resolve_slopes`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from unsum.network.layers import departure

Family = Literal["one-to-one", "relu", "folded"]
# [halvings] of an interval of width 60. Chosen by: float64's precision.
_BISECTIONS = 60
# [of z] beyond which GELU and SiLU are the identity or zero.
# Chosen by: e⁻⁴⁰ is below float64's precision.
_FAR = 40.0


@dataclass(frozen=True)
class Activation:
    """`function` works entry by entry; `inverse` is there for the one-to-one family alone."""

    name: str
    function: Callable[[Tensor], Tensor]
    family: Family
    inverse: Callable[[Tensor], Tensor] | None = None
    # Where it is simple: automatic differentiation takes ten times as long.
    derivative: Callable[[Tensor], Tensor] | None = None

    def slope(self, z: Tensor) -> Tensor:
        """a′(z), and differentiable itself."""
        if self.derivative is not None:
            return self.derivative(z)
        return torch.func.grad(lambda t: self.function(t).sum())(z)

    def branches(self, y: Tensor) -> list[Tensor]:
        """The pre-activations that give y: one tensor, or two where the activation is folded.

        The two are equal for y ≥ 0. For ReLU the entries with y ≤ 0 are y itself, of which only
        the sign is right.
        """
        if self.family != "folded":
            return [y if self.inverse is None else self.inverse(y)]
        zero = y.new_zeros(())
        # The slope turns positive once between −3 and 0. Rounding leaves some y below the minimum,
        # which are taken for it.
        bottom = bisect(self.slope, zero, zero - 3, zero, rising=True)
        right = bisect(
            self.function, y, bottom, torch.maximum(y.abs() + 1, bottom + _FAR), rising=True
        )
        left = bisect(self.function, y, bottom - _FAR, bottom, rising=False)
        return [right, torch.where(y < 0, left, right)]


def activation_of(module: nn.Module) -> Activation | None:
    """The activation that a module is, or None."""
    if departure(module):
        return None
    slope = getattr(module, "negative_slope", 0.0)
    if isinstance(module, nn.LeakyReLU) and slope > 0:
        return leaky_relu(slope)
    if isinstance(module, nn.GELU):
        approximate = module.approximate
        if approximate == "none":
            return GELU
        return Activation(
            "GELU", lambda z: nn.functional.gelu(z, approximate=approximate), "folded"
        )
    if isinstance(module, nn.ELU) and module.alpha > 0:
        return elu(module.alpha)
    plain: dict[type[nn.Module], Activation] = {
        nn.ReLU: RELU,
        nn.Tanh: TANH,
        nn.Sigmoid: SIGMOID,
        nn.SiLU: SILU,
    }
    return plain.get(type(module))


def leaky_relu(slope: float) -> Activation:
    return Activation(
        "LeakyReLU",
        lambda z: nn.functional.leaky_relu(z, slope),
        "one-to-one",
        lambda y: torch.where(y > 0, y, y / slope),
        lambda z: torch.where(z > 0, 1.0, slope).to(z),
    )


def elu(alpha: float) -> Activation:
    def inverse(y: Tensor) -> Tensor:
        return torch.where(y > 0, y, torch.log1p((y / alpha).clamp(_above(y, -1), 0)))

    return Activation("ELU", lambda z: nn.functional.elu(z, alpha), "one-to-one", inverse)


def _above(like: Tensor, bound: float) -> float:
    """The least number that is still inside an open range: rounding must not turn into infinity."""
    return bound + torch.finfo(like.dtype).eps


IDENTITY = Activation("none", lambda z: 1.0 * z, "one-to-one")
RELU = Activation("ReLU", torch.relu, "relu", derivative=lambda z: (z > 0).to(z))
TANH = Activation(
    "Tanh",
    torch.tanh,
    "one-to-one",
    lambda y: y.clamp(_above(y, -1), -_above(y, -1)).atanh(),
    lambda z: 1 - torch.tanh(z).square(),
)
SIGMOID = Activation(
    "Sigmoid", torch.sigmoid, "one-to-one", lambda y: torch.logit(y, eps=torch.finfo(y.dtype).eps)
)
SILU = Activation("SiLU", nn.functional.silu, "folded")
GELU = Activation(
    "GELU",
    nn.functional.gelu,
    "folded",
    derivative=lambda z: (
        torch.special.ndtr(z) + z * torch.exp(-z.square() / 2) / (2 * torch.pi) ** 0.5
    ),
)


def bisect(
    function: Callable[[Tensor], Tensor], y: Tensor, low: Tensor, high: Tensor, *, rising: bool
) -> Tensor:
    """The z between `low` and `high` where a function that rises (or falls) through y is y."""
    low, high = low.expand_as(y).clone(), high.expand_as(y).clone()
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        go_up = (function(middle) < y) == rising
        low, high = torch.where(go_up, middle, low), torch.where(go_up, high, middle)
    return (low + high) / 2
