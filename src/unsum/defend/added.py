"""The noise that a chain of defenses adds, and what the client computes before it is added.

What follows the noise only processes what was sent, so that it hides nothing further from anyone who
sees the noisy update.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from unsum.client.step import AnyDefense, ordered


@dataclass(frozen=True)
class AddedNoise:
    """Independent noise on every entry: Gaussian of standard deviation `scale`, or Laplace of scale b.

    `every_step`: it is added to the gradient of every local step, not once to what is sent.
    """

    kind: Literal["gaussian", "laplace"]
    scale: float
    every_step: bool = False

    def __str__(self) -> str:
        return f"{self.kind.capitalize()} noise of {self.scale:.3g} on every entry"


def split_at_noise(
    defenses: Iterable[AnyDefense] | AnyDefense, samples: int
) -> tuple[list[AnyDefense], AddedNoise | None]:
    """The defenses up to the first noise, as the client plays them without it, and that noise.

    Gaussian noises that follow each other directly are one noise. `samples` is the batch size.

    >>> from unsum import Clip, Noise, Prune
    >>> split_at_noise([Clip(1), Noise(3), Noise(4), Prune(0.5)], 8)
    ([Clip(1)], AddedNoise(kind='gaussian', scale=5.0, every_step=False))
    """
    played: list[AnyDefense] = []
    found: AddedNoise | None = None
    for part in ordered(defenses):
        before, noise = part.noise_free(samples) if hasattr(part, "noise_free") else ((part,), None)
        if found is None:
            played += before
            found = noise
        elif before or noise is None or noise.kind != "gaussian" or found.kind != "gaussian":
            break
        elif not found.every_step:
            found = AddedNoise("gaussian", math.hypot(found.scale, noise.scale))
    return played, found
