"""What a defence is: a function from Update to Update with one strength; `a | b` applies a, then b."""

from __future__ import annotations

from abc import ABC, abstractmethod

from unsum.errors import UnsumError
from unsum.registry import Registry
from unsum.update import Update


class Defense(ABC):
    """One defence. Its `repr` shows name and strength; reports print it in the order of application."""

    def __init__(self, strength: float) -> None:
        self.strength = strength

    @abstractmethod
    def __call__(self, update: Update) -> Update: ...

    def __or__(self, after: Defense) -> Chain:
        return Chain(*self.parts(), *after.parts())

    def parts(self) -> tuple[Defense, ...]:
        return (self,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.strength:g})"


class Chain(Defense):
    """Several defences, applied from left to right."""

    def __init__(self, *parts: Defense) -> None:
        self._parts = parts

    def parts(self) -> tuple[Defense, ...]:
        return self._parts

    def __call__(self, update: Update) -> Update:
        for part in self._parts:
            update = part(update)
        return update

    def __repr__(self) -> str:
        return " | ".join(repr(part) for part in self._parts)


DEFENSES: Registry[type[Defense]] = Registry("defence")


def parse_defense(text: str) -> Defense:
    """A defence from its command-line form, `noise:0.01`, or several in order, `noise:0.01|clip:4`."""
    parts = [_parse_one(part.strip()) for part in text.split("|")]
    return parts[0] if len(parts) == 1 else Chain(*parts)


def _parse_one(text: str) -> Defense:
    name, colon, strength = text.partition(":")
    kind = DEFENSES[name]
    try:
        value = float(strength)
    except ValueError:
        example = f"{name}:0.5"
        missing = f"{strength!r} is not a number" if colon else "its strength is missing"
        raise UnsumError(f"The defence {text!r} cannot be read: {missing}; write it as {example!r}.") from None
    return kind(value)
