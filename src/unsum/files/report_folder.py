"""The folder of a report: one of ours may be written to again, anybody else's files stay as they
are."""

from __future__ import annotations

import json
import os
from pathlib import Path

from unsum.errors import UnsumError, first_line, shown

UNFINISHED = "unfinished"  # the folder of a sweep that was interrupted, inside the report's
# What an audit, a sweep and an attack leave beside their other files, and what must be in it.
_OURS = {
    "result.json": {"schema", "kind", "verdict"},
    "sweep.json": {"schema", "kind", "keep_under"},
    "run.json": {"schema", "kind", "updates"},
    "leak.json": {"model", "granted", "predicted_error"},
}
_LARGEST = 1 << 26  # bytes of such a file


def check_folder(folder: Path, *, force: bool) -> None:
    """Refuse to overwrite, or what cannot be written to, before an audit is run rather than after.

    A folder that an earlier run of ours left may be written to again: its own files are replaced,
    and no others touched.
    """
    check_writable(folder)
    if (
        force
        or not folder.exists()
        or any(keys <= _keys(folder / name) for name, keys in _OURS.items())
    ):
        return
    if any(file.name != UNFINISHED for file in folder.iterdir()):
        raise UnsumError(
            f"The folder {str(folder)!r} exists already, and unsum did not make it; add --force to "
            "write into it, or name another with --out."
        )


def check_writable(folder: Path) -> None:
    """Refuse a folder that cannot be made, or not be written to."""
    try:
        standing = next(
            place
            for place in (folder, *folder.absolute().parents)
            if place.exists() or place.is_symlink()
        )
    except OSError as error:  # a name that is too long, say
        raise UnsumError(
            f"{shown(str(folder))} cannot be a folder: {first_line(error)}; name another."
        ) from error
    if standing.is_symlink() and not standing.exists():
        raise UnsumError(
            f"{shown(str(standing))} is a link that leads nowhere; name another folder with --out."
        )
    if folder.exists() and not folder.is_dir():
        raise UnsumError(f"{str(folder)!r} is a file; name a folder for the report.")
    if not standing.is_dir() or not os.access(standing, os.W_OK | os.X_OK):
        raise UnsumError(
            f"Nothing can be written to {str(standing)!r}; name another folder with --out."
        )


def _keys(path: Path) -> set[str]:
    try:
        content = json.loads(path.read_text("utf-8")) if path.stat().st_size < _LARGEST else {}
    except (OSError, ValueError, RecursionError):
        return set()
    return set(content) if isinstance(content, dict) else set()
