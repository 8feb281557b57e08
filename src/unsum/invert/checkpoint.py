"""The state of a training run on disk: written whole or not at all, and refused by another run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from unsum.errors import UnsumError, first_line
from unsum.files.torch_file import load_tensors_only
from unsum.files.writing import write_whole

FILE = "checkpoint.pt"


def write(folder: Path, state: dict[str, Any]) -> None:
    """A kill at any moment leaves either the last checkpoint or this one."""

    def save(part: Path) -> None:
        with part.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())

    try:
        write_whole(folder / FILE, save)
    except (OSError, RuntimeError) as error:  # torch turns a full disk into an error of its own
        raise UnsumError(
            f"The checkpoint {str(folder / FILE)!r} could not be written ({first_line(error)}); "
            "make room, and the same command goes on from the one before it."
        ) from error


def read(folder: Path, run: dict[str, Any]) -> dict[str, Any] | None:
    """The state that `write` left for the same run, None if there is none. `run` says what must not
    have changed."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        state: dict[str, Any] = load_tensors_only(path)
        before = dict(state["run"])
    except Exception as error:  # torch raises whatever its readers raise on a damaged file
        raise UnsumError(
            f"The checkpoint {str(path)!r} cannot be read; delete it to start over."
        ) from error
    refuse_another_run(path, before, run, "--out")
    return state


def refuse_another_run(
    path: Path, before: dict[str, Any], run: dict[str, Any], choose: str
) -> None:
    """A checkpoint serves only a run in which nothing of this has changed."""
    changed = sorted(key for key in run if before.get(key) != run[key])
    if changed:
        raise UnsumError(
            f"The checkpoint {str(path)!r} belongs to a run with another {changed[0]} "
            f"({str(before.get(changed[0]))[:80]}, now {run[changed[0]]}); choose another "
            f"{choose}, or delete it to start over."
        )
