"""The one exception a user is meant to read: a sentence that says what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LONGEST_REASON = 200  # characters of another library's message inside a sentence
_LISTABLE = 12  # more valid names than this are listed only when none is near


class UnsumError(ValueError):
    """Wrong input. The message is one sentence for the person at the keyboard; the CLI prints it and exits with 2.

    Examples:
        >>> import unsum
        >>> try:
        ...     unsum.Clip(-1)
        ... except unsum.UnsumError as error:
        ...     print(error)
        Clipping needs a positive norm, not -1.
    """


def unknown_name(kind: str, name: str, valid: Iterable[str]) -> UnsumError:
    """The error for a name that does not exist, with the nearest names that do.

    >>> print(unknown_name("defense", "nosie", ["noise", "clip"]))
    There is no defense 'nosie'; did you mean 'noise'? Known: clip, noise.
    """
    names = sorted(valid)
    hint = nearest(name, names)
    known = "" if hint and len(names) > _LISTABLE else f"Known: {', '.join(names)}."
    return UnsumError(f"There is no {kind} {name!r}; {hint}{known}".rstrip())


def nearest(name: str, valid: Iterable[str]) -> str:
    """`did you mean 'a' or 'b'? `, or nothing when no valid name is near."""
    near = difflib.get_close_matches(name.lower(), list(valid), n=3, cutoff=0.5)
    return f"did you mean {' or '.join(repr(n) for n in near)}? " if near else ""


def first_line(error: BaseException) -> str:
    """The beginning of another library's message, to stand inside a sentence: what a file made it say may be anything.

    >>> print(first_line(OSError("no such thing.\\nTraceback: …")))
    no such thing
    """
    lines = str(error).strip().splitlines() or [""]
    text = "".join(c for c in lines[0] if c.isprintable()).rstrip(".: ")[:_LONGEST_REASON]
    return text or type(error).__name__
