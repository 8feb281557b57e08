"""What is optimized, and the pictures it makes. Leaves carry the restarts in front; `pictures` is
given one restart's.

Pixels         x = u
LowResolution  x = bicubic(u) from a quarter of the side            (ROG)
Latent         x = generator(u), each sample with a latent of its own (GIAS, GGL)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn.functional import interpolate

Start = Literal["normal", "uniform"]
Shape = tuple[int, int, int]


class Unknown(Protocol):
    """A method of its own is any object with these three; who inherits gets pixels within [0,
    1]."""

    def start(self, count: int, shape: Shape, generator: torch.Generator) -> list[Tensor]:
        """The leaves of one restart for `count` pictures of `shape`, on the CPU."""
        ...

    def pictures(self, leaves: Sequence[Tensor]) -> Tensor:
        """(B, c, h, w) from one restart's leaves, differentiable; no side effects, because `vmap`
        may run it."""
        return leaves[0]

    def project(self, leaves: Sequence[Tensor]) -> None:
        """Bring all restarts' leaves (R, …) back where they may be, in place, after every step."""
        leaves[0].clamp_(0, 1)


@dataclass(frozen=True)
class Pixels(Unknown):
    """`box` keeps pixels in [0, 1], the range in which clients feed pictures to the model."""

    begin: Start = "normal"
    box: bool = True

    def start(self, count: int, shape: Shape, generator: torch.Generator) -> list[Tensor]:
        draw = torch.randn if self.begin == "normal" else torch.rand
        return [draw((count, *shape), generator=generator)]

    def project(self, leaves: Sequence[Tensor]) -> None:
        if self.box:
            leaves[0].clamp_(0, 1)


@dataclass(frozen=True)
class LowResolution(Unknown):
    """Pictures of `factor` times the side of the unknown, cut to `size`: no noise finer than that
    can be drawn."""

    size: tuple[int, int]
    factor: int = 4

    def start(self, count: int, shape: Shape, generator: torch.Generator) -> list[Tensor]:
        height, width = (-(-side // self.factor) for side in self.size)
        return [torch.rand((count, shape[0], height, width), generator=generator)]

    def pictures(self, leaves: Sequence[Tensor]) -> Tensor:
        return interpolate(leaves[0], size=self.size, mode="bicubic", align_corners=False)


@dataclass(frozen=True)
class Latent(Unknown):
    """`generator` turns (B, *shape) latents into (B, c, h, w) pictures; a module in eval mode,
    say."""

    generator: Callable[[Tensor], Tensor]
    shape: tuple[int, ...]

    def start(self, count: int, shape: Shape, generator: torch.Generator) -> list[Tensor]:  # noqa: ARG002
        return [torch.randn((count, *self.shape), generator=generator)]

    def pictures(self, leaves: Sequence[Tensor]) -> Tensor:
        return self.generator(leaves[0])

    def project(self, leaves: Sequence[Tensor]) -> None:
        """A generator takes any latent."""
