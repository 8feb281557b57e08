"""Options of a separator: read from its signature, refused in one sentence when they do not exist
or make no sense."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterable
from typing import Any

from unsum.errors import UnsumError, nearest

_GIVEN_ANYWAY = ("seed", "progress", "model", "update", "loss")  # arguments of `separate` itself


def options_of(separator: Callable[..., Any]) -> list[str]:
    """The names of a separator's own options, in the order of its signature.

    >>> def halve(head, knowledge, *, seed, steps=10): ...
    >>> options_of(halve)
    ['steps']
    """
    parameters = inspect.signature(separator).parameters.values()
    return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in _GIVEN_ANYWAY]


def takes(separator: Callable[..., Any], argument: str) -> bool:
    """Whether a separator asks for one of the arguments that are given anyway."""
    return argument in inspect.signature(separator).parameters


def steps_of(separator: Callable[..., Any]) -> int | None:
    """How many steps a separator takes unless told otherwise, where it takes a fixed number of
    them."""
    option = inspect.signature(separator).parameters.get("steps")
    return None if option is None else int(option.default)


def check_options(method: str, separator: Callable[..., Any], options: Iterable[str]) -> None:
    """Refuse the first option that the method does not have, and say which ones it has."""
    known = options_of(separator)
    for name in options:
        if name in known:
            continue
        if not known:
            raise UnsumError(f"The attack {method!r} takes no options; leave {name!r} out.")
        raise UnsumError(
            f"The attack {method!r} has no option {name!r}; {nearest(name, known)}Its options: "
            f"{', '.join(known)}."
        )


def choice(name: str, value: Any, allowed: Collection[str]) -> str:
    """`value` if it is one of the words that the option takes."""
    if isinstance(value, str) and value in allowed:
        return value
    raise UnsumError(f"The option {name!r} must be one of {', '.join(allowed)}, not {value!r}.")


def whole(name: str, value: Any, least: int) -> int:
    """`value` if it is a whole number of at least `least`."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        return value
    raise UnsumError(
        f"The option {name!r} must be a whole number of at least {least}, not {value!r}."
    )


def positive(name: str, value: Any) -> float:
    """`value` if it is a positive finite number."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf:
        return float(value)
    raise UnsumError(f"The option {name!r} must be a positive number, not {value!r}.")


def yes_or_no(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise UnsumError(f"The option {name!r} must be True or False, not {value!r}.")


def read_value(text: str) -> Any:
    """An option's value as the command line writes it: a number, true, false, or text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)
