"""`unsum train-inverse` as a user runs it: killed in the middle, continued, used; and on two
processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from unsum.commands import main as cli
from unsum.invert import checkpoint

RUN = ["--model", "default", "--image-size", "16", "--clients", "4,8", "--batch", "8"]
UNSUM = str(Path(sys.executable).parent / "unsum")
SAVING_OFTEN = [
    sys.executable, "-c",
    "from functools import partial; from unsum.commands.main import main; from unsum.invert import "
    "train; train.Training = partial(train.Training, save_every=1.0); main()",
]  # fmt: skip


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "photos.npz"
    images = np.random.default_rng(0).integers(0, 256, (40, 16, 16, 3), dtype=np.uint8)
    np.savez(path, images=images, labels=np.arange(40) % 4)
    return path


def start(*command: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
    )


@pytest.mark.long
def test_a_killed_training_goes_on_and_its_inverse_is_used(tmp_path: Path, data: Path) -> None:
    out = tmp_path / "inverse"
    options = ["train-inverse", *RUN, "--data", str(data), "--out", str(out), "--steps"]
    first = start(*SAVING_OFTEN, *options, "3000")  # a user's saves every half minute
    deadline = time.monotonic() + 120
    while (
        not (out / checkpoint.FILE).exists()
        and time.monotonic() < deadline
        and first.poll() is None
    ):
        time.sleep(0.2)
    assert (out / checkpoint.FILE).exists()
    first.send_signal(signal.SIGKILL)
    first.communicate()
    before = checkpoint.read(out, {})
    assert before is not None
    assert 0 < before["progress"]["step"] < 3000
    text, _ = start(UNSUM, *options, "1").communicate(timeout=120)
    assert "belongs to a run with another steps (3000, now 1)" in " ".join(text.split())


def test_training_ends_with_an_inverse_that_an_audit_takes(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> tuple[object, str]:
        monkeypatch.setattr(sys, "argv", ["unsum", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return stop.value.code, " ".join("".join(capsys.readouterr()).split())

    out = tmp_path / "inverse"
    code, text = run("train-inverse", *RUN, "--data", str(data), "--out", str(out), "--steps", "3")
    assert not code, text
    assert "dB on 2 photos that it was not trained on" in text
    assert list((out / "tensorboard").iterdir())
    with safe_open(out / "inverse.safetensors", framework="pt") as file:
        assert '"photos": 38' in file.metadata()["card"]
    code, text = run(
        "audit", "--inverse", str(out / "inverse.safetensors"), "--out", str(tmp_path / "report")
    )
    assert code == 2
    assert "the inverse reads 512 features of photos of 16², and this head 32768" in text


@pytest.mark.long
def test_two_processes_train_one_inverse(tmp_path: Path, data: Path) -> None:
    out = tmp_path / "inverse"
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--master-port",
        "29613",
    ]
    options = [
        *RUN,
        "--data",
        str(data),
        "--out",
        str(out),
        "--steps",
        "4",
        "--devices",
        "2",
        "--device",
        "cpu",
    ]
    process = start(*torchrun, "--no-python", UNSUM, "train-inverse", *options)
    text, _ = process.communicate(timeout=200)
    assert process.returncode == 0, text
    assert text.count("that it was not trained on") == 1  # one process speaks for both
    with safe_open(out / "inverse.safetensors", framework="pt") as file:
        assert '"photos_seen": 64' in file.metadata()["card"]
