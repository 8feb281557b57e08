"""Faults of the machine at the command line: one sentence, the right exit code, and how to go
on."""

from __future__ import annotations

import errno
import signal
from pathlib import Path

import pytest
import torch

import unsum
import unsum.commands.main
from unsum.commands import faults

CUDA = getattr(torch, "AcceleratorError", RuntimeError)(
    "CUDA error: unspecified launch failure\nmore lines"
)
FAULTS = [
    (
        OSError(errno.ENOSPC, "No space left on device", "out/report.html"),
        "to 'out/report.html': the disk is full",
    ),
    (OSError(errno.EROFS, "Read-only file system"), "it can only be read"),
    (OSError(errno.EFBIG, "File too large"), "may not become larger"),
    (MemoryError(), "Memory ran out"),
    (
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"
        ),
        "Memory ran out",
    ),
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"), "Memory ran out"),
    (CUDA, "The device failed (CUDA error: unspecified launch failure)"),
]


def _run(monkeypatch: pytest.MonkeyPatch, arguments: list[str], fail: object) -> int:
    monkeypatch.setattr("sys.argv", ["unsum", *arguments])
    monkeypatch.setattr(unsum, "audit", fail)
    monkeypatch.setattr(unsum, "sweep", fail)
    with pytest.raises(SystemExit) as end:
        unsum.commands.main.main()
    assert isinstance(end.value.code, int)
    return end.value.code


@pytest.mark.parametrize(("fault", "sentence"), FAULTS, ids=lambda value: type(value).__name__)
def test_a_fault_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    fault: Exception,
    sentence: str,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise fault

    assert _run(monkeypatch, ["audit", "--out", str(tmp_path / "out")], fail) == 2
    told = capsys.readouterr().err.strip()
    assert told.count("\n") == 0
    assert sentence in told
    assert told.endswith("Nothing was half written: run the same command again.")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "further"),
    [
        (["audit"], "run the same command again"),
        (["audit", "--sweep", "sign"], "goes on with the others"),
    ],
)
def test_ctrl_c_is_no_leak(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: list[str],
    further: str,
) -> None:
    """The command-line library ends with 1 by itself, which a gate would read as a leak above its
    level."""
    before = signal.getsignal(signal.SIGINT)

    def fail(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGINT)

    try:
        assert _run(monkeypatch, [*arguments, "--out", str(tmp_path / "out")], fail) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert further in capsys.readouterr().err


@pytest.mark.parametrize(
    "error", [KeyError("a defect"), SystemExit(1), EOFError(), BrokenPipeError()], ids=repr
)
@pytest.mark.parametrize("verbose", [True, False])
def test_whatever_fails_is_no_leak_and_its_traceback_is_there_for_the_asking(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    error: BaseException,
    verbose: bool,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    asked = ["--verbose"] if verbose else []
    assert _run(monkeypatch, ["audit", *asked, "--out", str(tmp_path / "out")], fail) == 2
    told = capsys.readouterr().err
    assert ("Traceback" in told) is verbose
    assert verbose or told.strip().count("\n") == 0
    assert type(error).__name__ in told
    if isinstance(error, KeyError):
        assert "KeyError: 'a defect'" in told


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train-inverse", "--data", "x"], "from its last checkpoint"),
        (["bench"], "the same command goes on"),
        ([], "run the same command again"),
    ],
)
def test_how_to_go_on(arguments: list[str], sentence: str) -> None:
    assert sentence in faults.go_on(arguments)
