"""How much a file from elsewhere may hold: looked up before any memory is taken for it.

Defaults fit every model that an audit is usually made of. `UNSUM_MAX_TENSORS`, `UNSUM_MAX_BYTES`,
`UNSUM_MAX_METADATA`, `UNSUM_MAX_EXPANSION` and `UNSUM_MAX_PICTURES` in the environment change them,
in whole numbers.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields

from unsum.errors import UnsumError

_PREFIX = "UNSUM_MAX_"
_SMALL = 64 << 20  # bytes that may come out of any file, however small it is


@dataclass(frozen=True)
class Limits:
    """What one file may hold, at most."""

    tensors: int = 100_000
    bytes: int = 64 << 30  # of all tensors together, unpacked
    metadata: int = 16 << 20  # bytes of a header: names, shapes, an archive's list of members
    expansion: int = 200  # times the file's own size, unpacked
    pictures: int = 5_000_000  # members of an archive, files of a folder

    @classmethod
    def from_environment(cls) -> Limits:
        return cls(
            **{
                field.name: _number(field.name)
                for field in fields(cls)
                if _variable(field.name) in os.environ
            }
        )

    def check_count(self, found: int) -> None:
        if found > self.tensors:
            raise _beyond("tensors", f"it holds {found:,} tensors", f"{self.tensors:,}")

    def check_metadata(self, found: int) -> None:
        if found > self.metadata:
            raise _beyond("metadata", f"its header has {found:,} bytes", f"{self.metadata:,}")

    def check_bytes(self, found: int, packed: int | None = None) -> None:
        """`found` bytes of tensors, out of a file of `packed` bytes where they may take more room
        than there."""
        if found > self.bytes:
            raise _beyond("bytes", f"it would unpack to {found:,} bytes", f"{self.bytes:,}")
        if packed is not None and found > max(self.expansion * packed, _SMALL):
            what = f"its {packed:,} bytes would unpack to {found:,}"
            raise _beyond("expansion", what, f"{self.expansion:,} times its size")

    def check_pictures(self, found: int) -> None:
        if found > self.pictures:
            raise _beyond("pictures", "it holds too many files", f"{self.pictures:,}")


class LimitError(UnsumError):
    """A file that is too much of something; the sentence names the variable that would let it
    pass."""


def _beyond(name: str, what: str, most: str) -> LimitError:
    return LimitError(
        f"{what}, and {most} is the most that is read; if you trust it, set {_variable(name)} "
        "higher"
    )


def _variable(name: str) -> str:
    return _PREFIX + name.upper()


def _number(name: str) -> int:
    text = os.environ[_variable(name)]
    if not text.isascii() or not text.isdigit() or int(text[:19]) < 1:
        raise UnsumError(
            f"{_variable(name)} must be a whole number of at least 1, not {text[:40]!r}."
        )
    return int(text[:19])
