"""The one exception a user is meant to read: a sentence that says what to do."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar

_T = TypeVar("_T")
_LONGEST_REASON = 200  # characters of another library's message inside a sentence
_LONGEST_SHOWN = 80  # characters of a name or number from elsewhere
_LISTABLE = 12  # more valid names than this are listed only when none is near


class UnsumError(ValueError):
    """Wrong input. The message is one sentence for the person at the keyboard; the CLI prints it
    and exits with 2.

    Examples:
        >>> import unsum
        >>> try:
        ...     unsum.Clip(-1)
        ... except unsum.UnsumError as error:
        ...     print(error)
        Clipping needs a positive norm, not -1.
    """


class NoHeadError(UnsumError):
    """The model is no classifier with a linear head, which the attacks on it need; `why` is a
    clause."""

    def __init__(self, message: str, why: str = "") -> None:
        super().__init__(message)
        self.why = why


def unknown_name(kind: str, name: str, valid: Iterable[str]) -> UnsumError:
    """The error for a name that does not exist, with the nearest names that do.

    >>> print(unknown_name("defense", "nosie", ["noise", "clip"]))
    There is no defense 'nosie'; did you mean 'noise'? Known: clip, noise.
    """
    names = sorted(valid)
    hint = nearest(name[:_LONGEST_SHOWN], names)
    known = (
        ""
        if hint and len(names) > _LISTABLE
        else f"{'K' if hint else 'k'}nown: {', '.join(names)}."
    )
    return UnsumError(f"There is no {kind} {shown(name)}; {hint}{known}".rstrip())


def check_name(kind: str, name: str, valid: Collection[str]) -> None:
    """Refuse a name that does not exist."""
    if name not in valid:
        raise unknown_name(kind, name, valid)


def refuse(reasons: Mapping[str, object]) -> None:
    """Raise the first sentence that holds."""
    for sentence, holds in reasons.items():
        if holds:
            raise UnsumError(sentence)


def needed(value: _T | None, what: str) -> _T:
    """`value`, or a sentence where it is missing.

    >>> needed(3, "The batch size")
    3
    """
    if value is None:
        raise UnsumError(
            f"{what} is missing, and this cannot be done without; give it, or choose another "
            "method."
        )
    return value


def nearest(name: str, valid: Iterable[str]) -> str:
    """`did you mean 'a' or 'b'? `, or nothing when no valid name is near."""
    near = difflib.get_close_matches(name.lower(), list(valid), n=3, cutoff=0.5)
    return f"did you mean {' or '.join(repr(n) for n in near)}? " if near else ""


def shown(value: object) -> str:
    """A name, number or shape from elsewhere, to stand inside a sentence: on one line, and cut
    where it is long.

    >>> print(shown("fc.weight"), shown(10**9))
    'fc.weight' 1,000,000,000
    >>> print(shown("a" * 1000))
    'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa…'
    """
    if isinstance(value, str):
        return repr(value if len(value) <= _LONGEST_SHOWN else value[:_LONGEST_SHOWN] + "…")
    if isinstance(value, int) and not isinstance(value, bool):
        return (
            f"{value:,}"
            if abs(value) < 10**_LONGEST_SHOWN
            else f"a number of more than {_LONGEST_SHOWN} digits"
        )
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "…"


def optional(module: str, extra: str, who: str) -> Any:
    """A library that only some users need, or a sentence that says who needs it and how to get
    it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UnsumError(f"{who}; install it with: pip install 'unsum[{extra}]'.") from error


def first_line(error: BaseException) -> str:
    """The beginning of another library's message, to stand inside a sentence: what a file made it
    say may be anything.

    >>> print(first_line(OSError("no such thing.\\nTraceback: …")))
    no such thing
    """
    lines = str(error).strip().splitlines() or [""]
    text = "".join(c for c in lines[0] if c.isprintable()).rstrip(".: ")[:_LONGEST_REASON]
    return text or type(error).__name__
