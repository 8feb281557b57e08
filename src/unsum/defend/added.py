"""The noise that a chain of defenses adds, and what the client computes before it is added.

What follows the noise only processes what was sent, so that it hides nothing further from anyone
who sees the noisy update. A defense that looks at the batch again is the exception: what it does to
the noisy update depends on the samples, without noise. So may a plain function: nobody can see what
it holds, and it counts as one that looks.

What noise a defense adds is taken from its `noise_free`, and only where the class that says so also
says how the noise is added. A subclass that adds it otherwise is played as it is, and its noise
counts for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from unsum.client.step import AnyDefense, InsideClient, ordered


@dataclass(frozen=True)
class AddedNoise:
    """Independent noise on every entry: Gaussian of standard deviation `scale`, or Laplace of scale
    b.

    `every_step`: it is added to the gradient of every local step, not once to what is sent.
    `processed`: something else follows, which may leave little of the noise of a larger update.
    """

    kind: Literal["gaussian", "laplace"]
    scale: float
    every_step: bool = False
    processed: bool = False

    def __str__(self) -> str:
        return f"{self.kind.capitalize()} noise of {self.scale:.3g} on every entry"


def split_at_noise(
    defenses: Iterable[AnyDefense] | AnyDefense, samples: int
) -> tuple[list[AnyDefense], AddedNoise | None]:
    """The defenses up to the first noise, as the client plays them without it, and that noise.

    Gaussian noises that follow each other directly are one noise. `samples` is the batch size.
    Where a defense after the noise looks at the batch (Soteria) or is a plain function, no noise is
    counted.

    >>> from unsum import Clip, Noise, Prune
    >>> split_at_noise([Clip(1), Noise(3), Noise(4), Prune(0.5)], 8)
    ([Clip(1)], AddedNoise(kind='gaussian', scale=5.0, every_step=False, processed=True))
    """
    played: list[AnyDefense] = []
    found: AddedNoise | None = None
    parts, direct = ordered(defenses), True
    for part in parts:
        if found is not None and sees_batch(part):
            return [*parts], None
        before, noise = (
            part.noise_free(samples)
            if hasattr(part, "noise_free") and says_its_noise(part)
            else ((part,), None)
        )
        if found is None:
            played += before
            found = noise
        elif before or noise is None or noise.kind != "gaussian" or found.kind != "gaussian":
            direct = False
            found = replace(found, processed=True)
        elif direct and not found.every_step:
            found = AddedNoise("gaussian", math.hypot(found.scale, noise.scale))
    return played, found


def sees_batch(part: AnyDefense) -> bool:
    """Whether what a defense does to the update depends on the samples other than through it; of a
    plain function nobody knows."""
    return not isinstance(part, InsideClient) or bool(getattr(part, "sees_batch", True))


def ends_in_a_function(defenses: Iterable[AnyDefense] | AnyDefense, samples: int) -> bool:
    """Whether a plain function follows noise: what it holds is the same in every world that is
    played, so that playing it shows nothing."""
    parts = ordered(defenses)
    functions = [k for k, part in enumerate(parts) if not isinstance(part, InsideClient)]
    return bool(functions) and split_at_noise(parts[: functions[-1]], samples)[1] is not None


def says_its_noise(part: object) -> bool:
    """Whether the class that defines `noise_free` defines as well, or inherits, all else that it
    does to an update: a subclass may change its name and its arguments alone."""
    classes = type(part).__mro__
    place = next((k for k, one in enumerate(classes) if "noise_free" in vars(one)), len(classes))
    below = {name for one in classes[:place] for name in vars(one)} | set(vars(part))
    return not any(
        callable(getattr(part, name, None)) or isinstance(getattr(type(part), name, None), property)
        for name in below - _HARMLESS
    )


# Names that a subclass may define without changing what noise there is.
_HARMLESS = {"__init__", "__repr__", "__doc__", "__annotate__", "__annotate_func__"}
