"""Kills, Ctrl-C, lost devices and clocks that jump: what was finished is kept, and the same command
goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import unsum
from support.inverse_training import SHORT, backbone, photos, seen_by, weights
from unsum.audit.sweep.bench import Bench
from unsum.files.report_folder import UNFINISHED
from unsum.invert import checkpoint
from unsum.invert.train import Run, TrainingState, train_inverse

UNSUM = str(Path(sys.executable).parent / "unsum")
OVER = "noise=1e-4,1e-3,1e-2"


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 10))


def _data() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(4, 3, 4, 4, generator=torch.Generator().manual_seed(1)), torch.arange(4)


def _sweep(folder: Path, **options: Any) -> unsum.Sweep:
    return unsum.sweep(_model(), _data(), over=OVER, utility=False, unfinished=folder, **options)


def _figures(sweep: unsum.Sweep) -> list[Any]:
    return [
        [(s.leakage, s.label_correct) for s in point.samples] for point in sweep.curves[0].points
    ]


@pytest.mark.long
def test_a_sweep_goes_on_with_the_strengths_that_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    defended = Bench.defended

    def counted(self: Bench, chain: Any, strength: float | None) -> Any:
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(repr(chain))
        return defended(self, chain, strength)

    with monkeypatch.context() as here:
        here.setattr(Bench, "defended", counted)
        with pytest.raises(KeyboardInterrupt):
            _sweep(tmp_path)
    assert len(list((tmp_path / UNFINISHED).iterdir())) == 2
    made.clear()
    made.append("one is left")
    with monkeypatch.context() as here:
        here.setattr(Bench, "defended", counted)
        resumed = _sweep(tmp_path)
    assert len(made) == 2
    assert _figures(resumed) == _figures(unsum.sweep(_model(), _data(), over=OVER, utility=False))
    resumed.write(tmp_path)  # a folder with nothing but what is unfinished needs no --force
    assert sorted(file.name for file in tmp_path.iterdir()) == ["sweep.html", "sweep.json"]


@pytest.mark.long
def test_strengths_of_another_sweep_or_damaged_ones_are_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = _sweep(tmp_path)
    made: list[object] = []
    defended = Bench.defended
    monkeypatch.setattr(Bench, "defended", lambda *all_: (made.append(1), defended(*all_))[1])
    for file in (tmp_path / UNFINISHED).iterdir():
        file.write_bytes(b"damaged")
    assert _figures(_sweep(tmp_path)) == _figures(first)
    assert len(made) == 3
    _sweep(tmp_path, seed=1)
    assert len(made) == 6


@pytest.fixture
def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.mark.long
def test_killed_and_interrupted_commands_leave_nothing_half_written(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    """The whole command line: Ctrl-C in the middle of a sweep, then kill -9, then on to the end."""
    out = tmp_path / "sweep"
    command = [
        UNSUM,
        "audit",
        "--sweep",
        "clip=8,4,2,1,0.5,0.25",
        "--no-utility",
        "--batch",
        "2",
        "--out",
        str(out),
    ]
    kept = 0
    for number in (signal.SIGINT, signal.SIGKILL):
        running = subprocess.Popen(
            command, text=True, stderr=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        deadline = time.monotonic() + 300
        while running.poll() is None and time.monotonic() < deadline:
            if out.exists() and len(list((out / UNFINISHED).glob("*.safetensors"))) > kept:
                break
            time.sleep(0.05)
        running.send_signal(number)
        _, told = running.communicate(timeout=120)
        kept = len(list((out / UNFINISHED).glob("*.safetensors")))
        assert kept > 0, told
        assert sorted(file.name for file in out.iterdir()) == [UNFINISHED]
        if number == signal.SIGINT:
            assert running.returncode == 130
            assert "Strengths that were finished are kept" in " ".join(told.split())
            assert "Traceback" not in told
    done = subprocess.run(command, text=True, capture_output=True, timeout=400, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(": attacking") <= 7 - kept  # the reference, and what had not been kept
    assert sorted(file.name for file in out.iterdir()) == ["sweep.html", "sweep.json"]


_WITH_LITTLE_MEMORY = """
import resource, sys
import unsum.commands.main, torch, torchvision
with open("/proc/self/statm") as file:
    size = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (40 << 20),) * 2)
sys.argv = ["unsum", *sys.argv[1:]]
unsum.commands.main.main()
"""


@pytest.mark.long
def test_too_little_memory_is_a_sentence(tmp_path: Path, environment: dict[str, str]) -> None:
    command = [
        sys.executable,
        "-c",
        _WITH_LITTLE_MEMORY,
        "audit",
        "--model",
        "mlp",
        "--out",
        str(tmp_path / "out"),
    ]
    done = subprocess.run(command, text=True, capture_output=True, timeout=300, env=environment)
    assert done.returncode == 2, done.stderr
    assert "memory" in done.stderr.lower()
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_lost_device_costs_the_steps_since_the_last_checkpoint_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Run._step

    def lost(self: Run, number: int) -> Any:
        if number == 5:
            raise getattr(torch, "AcceleratorError", RuntimeError)("CUDA error: device lost")
        return step(self, number)

    with monkeypatch.context() as here:
        here.setattr(Run, "_step", lost)
        with pytest.raises(RuntimeError, match="device lost"):
            train_inverse(
                backbone(), photos(40), photos(8, 1), tmp_path / "a", SHORT, card={"photos": 40}
            )
    steps: list[TrainingState] = []
    resumed = train_inverse(
        backbone(),
        photos(40),
        photos(8, 1),
        tmp_path / "a",
        SHORT,
        card={"photos": 40},
        watch=seen_by(steps),
    )
    assert steps[0].step == 6
    whole = train_inverse(
        backbone(), photos(40), photos(8, 1), tmp_path / "b", SHORT, card={"photos": 40}
    )
    assert torch.equal(weights(resumed), weights(whole))


def test_ctrl_c_saves_the_moment(tmp_path: Path) -> None:
    from dataclasses import replace

    seldom = replace(SHORT, save_every=1e9)

    def stop(progress: TrainingState) -> None:
        if progress.step == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_inverse(
            backbone(), photos(40), photos(8, 1), tmp_path, seldom, card={"photos": 40}, watch=stop
        )
    state = checkpoint.read(tmp_path, {})
    assert state is not None
    assert state["progress"]["step"] == 4
    assert not list(tmp_path.rglob("*.part"))


def test_a_clock_that_jumps_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every duration is measured with a clock that cannot be set."""
    before = unsum.audit(_model(), _data())
    jumps = iter(range(0, -(10**9), -86_400))
    with monkeypatch.context() as here:
        here.setattr(time, "time", lambda: float(next(jumps)))
        result = unsum.audit(_model(), _data())
        train_inverse(backbone(), photos(40), photos(8, 1), tmp_path, SHORT, card={"photos": 40})
    assert 0 <= result.seconds < 60
    assert torch.equal(before.leak.features, result.leak.features)
