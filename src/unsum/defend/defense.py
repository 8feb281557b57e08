"""What a defense is: a function from Update to Update with one strength; `a | b` applies a, then b.

Some defenses need more than the update: they change the batch, the way the gradient is computed, or
need the model to know what they change. These are `ClientDefense`s and work only inside the client,
through `unsum.capture(..., defenses=…)`.

What the one number of a defense means: how to space several of them, and which way the defense gets
stronger.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, cast

from torch import Tensor

from unsum.client.step import ClientStep, Stage
from unsum.defend.added import AddedNoise
from unsum.errors import UnsumError
from unsum.registry import Registry
from unsum.update import Update


@dataclass(frozen=True)
class Axis:
    """`meaning` completes "strength: …". `rising` says that larger numbers change the update more;
    a norm to clip to does the opposite. `whole` numbers are counts, of bits or levels."""

    meaning: str
    spacing: Literal["geometric", "linear"] = "geometric"
    rising: bool = True
    whole: bool = False


SCALE = Axis("scale")
NORM = Axis("largest norm that is let through", rising=False)
FRACTION = Axis("fraction", spacing="linear")


class Defense(ABC):
    """One defense. Its `repr` shows name and strength; reports print it in the order of
    application."""

    stage: Stage = Stage.UPDATE
    example: float = 0.5  # a strength for the sentence that says how to write it
    axis: Axis = SCALE
    sees_batch: bool = False  # whether `after` looks at the samples

    def __init__(self, strength: float) -> None:
        self.strength = strength

    @abstractmethod
    def __call__(self, update: Update) -> Update: ...

    def before(self, step: ClientStep) -> ClientStep:
        """The client's step as this defense wants it computed."""
        return step

    def after(self, update: Update, step: ClientStep) -> Update:  # noqa: ARG002 (for those that need the batch)
        """What becomes of the update, with the model and the batch at hand."""
        return self(update)

    def noise_free(self, samples: int) -> tuple[tuple[Defense, ...], AddedNoise | None]:  # noqa: ARG002 (DP-SGD divides by it)
        """What is played in its place where the noise is left out, and the noise it adds after
        that."""
        return (self,), None

    def __or__(self, after: Defense) -> DefenseChain:
        return DefenseChain(*self.parts(), *after.parts())

    def parts(self) -> tuple[Defense, ...]:
        return (self,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.strength:g})"


class TensorDefense(Defense):
    """A defense that changes every tensor of the update by itself."""

    def __call__(self, update: Update) -> Update:
        return update.map(lambda _name, gradient: self.changed(gradient))

    @abstractmethod
    def changed(self, gradient: Tensor) -> Tensor: ...


class ClientDefense(Defense):
    """A defense that cannot be applied to an update alone; it overrides `before`, `after` or
    both."""

    sees_batch = True

    def __call__(self, update: Update) -> Update:  # noqa: ARG002 (refused whatever it is)
        raise UnsumError(
            f"{self!r} works inside the client, where the model and the batch are; "
            "pass it to unsum.capture(..., defenses=...)."
        )

    def after(self, update: Update, step: ClientStep) -> Update:  # noqa: ARG002 (for those that need the batch)
        return update


class Switch(Defense):
    """A defense that is on or off: no strength to choose. Its `repr` shows whatever else it was
    given."""

    def __init__(self) -> None:
        super().__init__(1.0)

    def __repr__(self) -> str:
        said = ", ".join(
            f"{name}={value}" for name, value in vars(self).items() if name != "strength"
        )
        return f"{type(self).__name__}({said})"


class DefenseChain(Defense):
    """Several defenses, applied from left to right."""

    def __init__(self, *parts: Defense) -> None:
        self._parts = tuple(single for part in parts for single in part.parts())

    def parts(self) -> tuple[Defense, ...]:
        return self._parts

    def __call__(self, update: Update) -> Update:
        for part in self._parts:
            update = part(update)
        return update

    def __repr__(self) -> str:
        return " | ".join(repr(part) for part in self._parts)


PLATFORMS = ("flower", "nvflare", "opacus")
DEFENSES: Registry[type[Defense]] = Registry("defense", "unsum.defenses")


def parse_defense(text: str) -> Defense:
    """A defense from its command-line form, `noise:0.01`, or several in order,
    `noise:0.01|clip:4|sign`."""
    parts = [_parse_one(part.strip()) for part in text.split("|")]
    return parts[0] if len(parts) == 1 else DefenseChain(*parts)


def require(allowed: bool, what: str, value: float) -> float:
    """`value`, or one sentence; `what` says what the defense asks for: "Clipping needs a positive
    norm"."""
    if not allowed:
        raise UnsumError(f"{what}, not {value}.")
    return value


def whole_number(value: float, least: int, what: str) -> int:
    """`value` as an int, or one sentence; `what` names the defense and its unit: "QSGD needs a
    number of levels"."""
    if not (math.isfinite(value) and value == int(value) and value >= least):
        raise UnsumError(f"{what} that is whole and at least {least}, not {value:g}.")
    return int(value)


def has_strength(kind: type[Defense]) -> bool:
    """Whether the command line must give a number; `sign` and `drop-bias` are on or off."""
    return any(
        p.kind is p.POSITIONAL_OR_KEYWORD for p in inspect.signature(kind).parameters.values()
    )


def _parse_one(text: str) -> Defense:
    name, colon, strength = text.partition(":")
    if name in PLATFORMS:  # its filters carry the platform's name before a colon of their own
        name, colon, strength = text, "", ""
    kind = DEFENSES[name]
    if not has_strength(kind):
        if colon:
            raise UnsumError(
                f"The defense {text!r} cannot be read: it takes no strength; write it as {name!r}."
            )
        return cast("type[Switch]", kind)()
    try:
        value = float(strength)
    except ValueError:
        example = f"{name}:{kind.example:g}"
        missing = f"{strength!r} is not a number" if colon else "its strength is missing"
        raise UnsumError(
            f"The defense {text!r} cannot be read: {missing}; write it as {example!r}."
        ) from None
    return kind(value)
