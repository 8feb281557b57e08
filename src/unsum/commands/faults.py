"""What goes wrong with the machine rather than with the input, in a sentence that says what is kept
and how to go on."""

from __future__ import annotations

import errno
import signal
import site
import sys
import sysconfig
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

import unsum
from unsum.errors import UnsumError, first_line, shown

FAILED, INTERRUPTED = 2, 130  # exit codes; 1 is kept for a leak above the gate's level
_DISK = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "a file may not become larger",
    errno.EROFS: "it can only be read",
    errno.EACCES: "writing there is not allowed",
    errno.EPERM: "writing there is not allowed",
    errno.EIO: "the disk failed",
    errno.ENAMETOOLONG: "its name is too long",
    errno.ELOOP: "its links lead in a circle",
    errno.ENOTDIR: "a file stands in the place of a folder",
}
_MEMORY = (
    "can't allocate memory",
    "out of memory",
    "bad_alloc",
    "Cannot allocate memory",
    "not enough memory",
    "failed to map segment",
)
_DEVICE = ("CUDA error", "CUDA driver", "HIP error", "cudnn", "CUBLAS_STATUS", "NCCL")


class Interrupt:
    """Remembers Ctrl-C, which the command-line library turns into an exit code of its own."""

    def __init__(self) -> None:
        self.came = False
        self._before = signal.getsignal(signal.SIGINT)

    def __enter__(self) -> Interrupt:
        # else somebody decided otherwise, as a shell's background does
        if self._before is signal.default_int_handler:
            signal.signal(signal.SIGINT, self)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        self.came = True
        raise KeyboardInterrupt


def sentence_of(error: BaseException) -> str:
    """What to tell a person; `--verbose` shows the traceback."""
    if isinstance(error, UnsumError):
        return str(error)
    if hasattr(error, "format_message"):  # the command-line library's own: a wrong option, say
        return _misused(error)
    if isinstance(error, OSError) and error.errno in _DISK:
        where = f" to {shown(str(error.filename))}" if error.filename else ""
        return f"Nothing more could be written{where}: {_DISK[error.errno]}. {go_on()}"
    text = str(error)
    if isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError | ImportError) and any(part in text for part in _MEMORY)
    ):
        return (
            "Memory ran out; a smaller --batch, a smaller model or another --device needs less. "
            f"{go_on()}"
        )
    device = getattr(sys.modules.get("torch"), "AcceleratorError", ())
    if isinstance(error, device) or (
        isinstance(error, RuntimeError) and any(part in text for part in _DEVICE)
    ):
        return f"The device failed ({first_line(error)}); --device cpu does without it. {go_on()}"
    told = f"{type(error).__name__}: {first_line(error)}"
    line = _users_line(error)
    if line is not None:
        return (
            f"The model's own code failed in {line} ({told}); correct it, or see --verbose for the "
            "whole way there."
        )
    return (
        f"The run failed ({told}); --verbose shows where. If the input is right, this is a defect: "
        "please report it."
    )


def _misused(error: Any) -> str:
    """What is wrong with the words of a command, and where the right ones stand."""
    message, context = error.format_message().rstrip("."), getattr(error, "ctx", None)
    if not message or context is None:
        return str(message)
    return f"{message}{'' if message.endswith('?') else '.'} See: {context.command_path} --help"


def _users_line(error: BaseException) -> str | None:
    """The last line that ran of code that is neither ours nor installed."""
    folders = [
        unsum.__path__[0],
        *site.getsitepackages(),
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("purelib"),
    ]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_file() and not any(path.is_relative_to(folder) for folder in folders):
            return f"{path.name!r}, line {frame.lineno}"
    return None


def go_on(arguments: list[str] | None = None) -> str:
    """What is left of the command that was given, and how to continue it."""
    given = sys.argv[1:] if arguments is None else arguments
    command = given[0] if given else ""
    if command == "train-inverse":
        return "The same command goes on from its last checkpoint."
    if command == "audit" and any(part.startswith("--sweep") for part in given):
        return "Strengths that were finished are kept: the same command goes on with the others."
    if command == "audit" and any(part.startswith("--updates") for part in given):
        return "Updates that were finished are kept: the same command goes on with the others."
    if command == "bench":
        return "What was finished is kept: the same command goes on."
    return "Nothing was half written: run the same command again."
