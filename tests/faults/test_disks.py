"""Disks that are full or can only be read: what was there stays, nothing half written is left, and
one sentence says why."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import unsum.commands.audit
import unsum.commands.main
from support.audits import synthetic
from unsum import UnsumError, Update
from unsum.audit.leak_folder import write_leak
from unsum.audit.sweep.bench import Point
from unsum.audit.sweep.run import Unfinished
from unsum.files.report_folder import check_folder
from unsum.files.writing import write_text
from unsum.invert import checkpoint
from unsum.match import checkpoint as matching

LARGE = torch.arange(50_000.0)
_LIBC = ctypes.CDLL(None, use_errno=True)


@contextmanager
def full_disk(size: int = 4096) -> Iterator[None]:
    """No file may become larger: the kernel's answer is that of a full disk, with another
    number."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 64 kB, where tests may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    if (
        os.geteuid() != 0
        or _LIBC.mount(b"none", str(place).encode(), b"tmpfs", 0, b"size=64k") != 0
    ):
        pytest.skip("Only root may mount a small disk.")
    yield place
    _LIBC.umount2(str(place).encode(), 2)


def _update(folder: Path) -> None:
    Update({"weight": LARGE}).save(folder / "file.safetensors")


def _training(folder: Path) -> None:
    checkpoint.write(folder, {"run": {}, "weights": LARGE})


def _matching(folder: Path) -> None:
    matching.write(folder / "file.safetensors", {}, {"image": LARGE})


def _leak(folder: Path) -> None:
    write_leak(synthetic().leak, folder, model="tiny net")


def _report(folder: Path) -> None:
    synthetic().write(folder, force=True)


def _strength(folder: Path) -> None:
    pictures = (torch.rand(3, 99, 99), None)
    Unfinished(folder, "")("sign", lambda: Point("sign", None, [], pictures=pictures))


WRITERS = [_update, _training, _matching, _leak, _report, _strength]


@pytest.mark.parametrize("write", WRITERS)
def test_a_file_that_may_not_grow_leaves_no_half(
    tmp_path: Path, write: Callable[[Path], None]
) -> None:
    with full_disk(1024), pytest.raises((OSError, UnsumError)) as told:
        write(tmp_path)
    assert isinstance(told.value, UnsumError) or told.value.errno in (errno.EFBIG, errno.ENOSPC)
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("write", WRITERS)
def test_a_disk_that_is_full_leaves_no_half(
    small_disk: Path, write: Callable[[Path], None]
) -> None:
    (small_disk / "fill").write_bytes(bytes(60_000))
    with pytest.raises((OSError, UnsumError)):
        write(small_disk)
    assert not list(small_disk.rglob("*.part"))


def test_what_was_there_stays(tmp_path: Path) -> None:
    checkpoint.write(tmp_path, {"run": {"step": 1}})
    write_text(tmp_path / "result.json", "old")
    with full_disk(1024):
        with pytest.raises(
            UnsumError, match=r"could not be written .*goes on from the one before it"
        ):
            _training(tmp_path)
        with pytest.raises(OSError, match="File too large"):
            write_text(tmp_path / "result.json", "new" * 1000)
    assert checkpoint.read(tmp_path, {}) == {"run": {"step": 1}}
    assert (tmp_path / "result.json").read_text() == "old"
    assert sorted(file.name for file in tmp_path.iterdir()) == [checkpoint.FILE, "result.json"]


def test_a_report_that_finds_no_room_is_kept_elsewhere(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attack may have taken hours."""
    (small_disk / "fill").write_bytes(bytes(60_000))
    with pytest.raises(UnsumError, match=r"No space left on device.*the report is in") as told:
        unsum.commands.audit._written(synthetic(), small_disk / "report", False)
    elsewhere = Path(str(told.value).rpartition(" in ")[2].strip("'.").replace("'", ""))
    assert (elsewhere / "result.json").exists()
    for file in elsewhere.iterdir():
        file.unlink()
    elsewhere.rmdir()


def test_a_folder_that_cannot_be_written_to_is_refused_before_anything_runs(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # again, to be read only
    assert _LIBC.mount(b"none", str(small_disk).encode(), None, 32 | 1, None) == 0
    monkeypatch.setattr("sys.argv", ["unsum", "audit", "--out", str(small_disk / "report")])
    monkeypatch.setattr(unsum, "audit", lambda *_, **__: pytest.fail("it ran"))
    with pytest.raises(SystemExit) as end:
        unsum.commands.main.main()
    assert end.value.code == 2
    assert "Nothing can be written to" in capsys.readouterr().err


def test_a_file_in_the_place_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnsumError, match=r"Nothing can be written to .*name another folder"):
        check_folder(tmp_path / "file" / "report", force=True)


def test_a_leak_that_finds_no_room_leaves_not_even_a_folder(tmp_path: Path) -> None:
    """Its figures would fit; its tensors and pictures do not."""
    with full_disk(1024), pytest.raises(OSError, match=r"os error|File too large"):
        _leak(tmp_path / "deep" / "leak")
    assert not list(tmp_path.iterdir())


def test_a_leak_that_finds_no_room_leaves_an_earlier_one_as_it_was(tmp_path: Path) -> None:
    _leak(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert {"leak.safetensors", "leak.json", "sample-1.png"} <= before.keys()
    with full_disk(100), pytest.raises(OSError, match=r"os error|File too large"):
        write_leak(replace(synthetic().leak, images=None), tmp_path, model="another")
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    write_leak(replace(synthetic().leak, images=None), tmp_path, model="another")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["leak.json", "leak.safetensors"]


def _out(tmp_path: Path, name: str) -> Path:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    return tmp_path / name


@pytest.mark.parametrize("command", ["audit", "attack"])
@pytest.mark.parametrize(
    ("name", "sentence"),
    [("link", "a link that leads nowhere"), ("link/inside", "a link that leads nowhere"),
    ("x" * 5000, "File name too long")],
)  # fmt: skip
def test_a_folder_that_cannot_be_made_is_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    name: str,
    sentence: str,
) -> None:
    monkeypatch.setattr("sys.argv", ["unsum", command, "--out", str(_out(tmp_path, name))])
    with pytest.raises(SystemExit) as end:
        unsum.commands.main.main()
    told = capsys.readouterr().err
    assert end.value.code == 2
    assert sentence in told
    assert len(told) < 500
    assert sorted(file.name for file in tmp_path.iterdir()) == ["link"]


def test_an_update_has_no_place_behind_a_link_to_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "sys.argv", ["unsum", "capture", "--out", str(_out(tmp_path, "link/u.safetensors"))]
    )
    with pytest.raises(SystemExit) as end:
        unsum.commands.main.main()
    assert end.value.code == 2
    assert "is a link that leads nowhere" in capsys.readouterr().err


def test_a_name_that_is_too_long_for_an_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "sys.argv", ["unsum", "capture", "--out", str(tmp_path / f"{'x' * 5000}.safetensors")]
    )
    with pytest.raises(SystemExit) as end:
        unsum.commands.main.main()
    assert end.value.code == 2
    assert "its name is too long" in capsys.readouterr().err
