"""Every case of the table: one sentence or the right values, and no memory taken for what a header
merely promises."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import unsum
from hostile.cases import BIAS, PHOTOS, UPDATES, WEIGHT, Case
from hostile.reading import read_photos_of, read_update_of
from unsum.errors import UnsumError
from unsum.files.limits import Limits
from unsum.files.tensor_file import read_tensors

# bytes that a refusal may take; the largest headers of the table are of 20 MB, refused unread
_MOST = 8 << 20


def _refused(case: Case, path: Path, read: object) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(UnsumError, match=case.sentence) as told:
            read(path)  # type: ignore[operator]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    sentence = str(told.value)
    assert sentence.count("\n") == 0
    assert len(sentence) < 500
    assert sentence.endswith(".")
    assert peak < _MOST


@pytest.mark.parametrize("case", UPDATES, ids=lambda case: f"{case.file}: {case.name}")
def test_updates(case: Case, tmp_path: Path) -> None:
    path = case.lay(tmp_path)
    if case.sentence is not None:
        _refused(case, path, read_update_of)
        assert not (tmp_path / "ran").exists()
        return
    found = read_update_of(path)
    scale = {"denormals": 1e-44, "zeros": 0.0}.get(case.name, 1.0)
    for name, expected in {"fc.weight": WEIGHT, "fc.bias": BIAS}.items():
        if name in found.gradients:
            np.testing.assert_array_equal(
                found.gradients[name].numpy(), (expected * scale).astype(np.float32)
            )
    assert found.gradients["fc.weight"].is_contiguous()


@pytest.mark.parametrize("case", PHOTOS, ids=lambda case: f"{case.file}: {case.name}")
def test_photos(case: Case, tmp_path: Path) -> None:
    path = case.lay(tmp_path)
    if case.sentence is not None:
        _refused(case, path, read_photos_of)
        return
    photos = read_photos_of(path)
    assert len(photos) == (1 if "passed over" in case.name else 2)
    assert sorted(file.name for file in tmp_path.iterdir()) == [case.file]  # nothing was unpacked


class TestLimits:
    def test_they_come_from_the_environment(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        path = tmp_path / "u.npz"
        np.savez(path, a=np.zeros(1000), b=np.zeros(10))
        assert len(read_tensors(path, "update").tensors) == 2
        for name, sentence in {
            "TENSORS": "holds 2 tensors",
            "BYTES": "unpack to",
            "METADATA": "header has",
        }.items():
            with monkeypatch.context() as here:
                here.setenv(f"UNSUM_MAX_{name}", "1")
                with pytest.raises(
                    UnsumError,
                    match=f"'u.npz' is too large to be read: it.*{sentence}.*UNSUM_MAX_{name}",
                ):
                    read_tensors(path, "update")

    def test_they_can_be_given(self, tmp_path: Path) -> None:
        torch.save({"a": torch.zeros(10)}, tmp_path / "u.pt")
        with pytest.raises(UnsumError, match="UNSUM_MAX_BYTES"):
            read_tensors(tmp_path / "u.pt", "update", limits=Limits(bytes=30))

    @pytest.mark.parametrize("text", ["", "-1", "0", "1e9", "many"])
    def test_what_is_no_number_is_said(self, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
        monkeypatch.setenv("UNSUM_MAX_BYTES", text)
        with pytest.raises(UnsumError, match="UNSUM_MAX_BYTES must be a whole number"):
            Limits.from_environment()


# A few of them through the whole command line, in a process that may not grow by more than a few
# hundred megabytes.
_THROUGH_THE_COMMAND = {
    "u.npz: zip bomb", "u.pt: a terabyte by strides", "u.pt: code", "u.safetensors: huge shape",
    "u.npz: NaN", "u.pb: lie",
}  # fmt: skip
_CHILD = """
import json, resource, sys
import unsum.commands.main, torch, torchvision
with open("/proc/self/statm") as file:
    size = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (700 << 20),) * 2)
codes = []
for arguments in json.load(sys.stdin):
    sys.argv = ["unsum", *arguments]
    try:
        unsum.commands.main.main()
        codes.append(0)
    except SystemExit as end:
        codes.append(end.code)
print(json.dumps(codes))
"""


@pytest.mark.long
def test_the_command_line_says_it_too_and_ends_with_2_within_its_memory(tmp_path: Path) -> None:
    commands = []
    for case in [*UPDATES, *PHOTOS]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        if f"{case.file}: {case.name}" in _THROUGH_THE_COMMAND:
            commands.append(
                [
                    "attack",
                    "--model",
                    "mlp",
                    "--update",
                    str(case.lay(folder)),
                    "--out",
                    str(folder / "out"),
                ]
            )
        elif case in PHOTOS and case.name in ("bomb", "npz with a lie"):
            commands.append(
                ["audit", "--data", str(case.lay(folder)), "--out", str(folder / "out")]
            )
    assert len(commands) == len(_THROUGH_THE_COMMAND) + 2
    child = subprocess.run(
        [sys.executable, "-c", _CHILD],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert child.returncode == 0, child.stderr
    assert json.loads(child.stdout.splitlines()[-1]) == [2] * len(commands)
    assert "Traceback" not in child.stderr
    sentences = [
        line for line in child.stderr.splitlines() if not line.startswith("unsum: Loading")
    ]
    assert len(sentences) == len(commands)
    assert not list(tmp_path.glob("*/out"))


def test_a_factory_runs_only_when_it_is_named(tmp_path: Path) -> None:
    """A Python file beside the update, or inside its folder, is not looked at."""
    folder = tmp_path / "update"
    folder.mkdir()
    np.save(folder / "fc.weight.npy", WEIGHT)
    for name in ("__init__.py", "model.py", "conftest.py", "config.json"):
        (folder / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    assert set(read_update_of(folder).gradients) == {"fc.weight"}
    assert not (tmp_path / "ran").exists()


def test_published_weights_in_torchs_folder_run_no_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hostile.makers import Runs
    from unsum.models import load_model

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    torch.save(Runs(tmp_path / "ran"), folder / "squeezenet1_1-b8a52dc0.pth")
    with pytest.raises(UnsumError, match="cannot be loaded"):
        load_model("torchvision:squeezenet1_1:DEFAULT", classes=1000)
    assert not (tmp_path / "ran").exists()


def test_pickles_of_data_sets_run_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pickle

    from torchvision.datasets import CIFAR10

    from hostile.makers import Runs
    from unsum.data import open_data

    # as if the digests could be met
    monkeypatch.setattr(CIFAR10, "_check_integrity", lambda _self: True)
    folder = tmp_path / CIFAR10.base_folder
    folder.mkdir()
    for name, _ in CIFAR10.train_list:
        (folder / name).write_bytes(pickle.dumps(Runs(tmp_path / "ran")))
    with pytest.raises(UnsumError, match="runs no code out of files"):
        open_data(f"torchvision:CIFAR10:{tmp_path}")
    with pytest.raises(UnsumError, match="keeps pickles"):
        open_data(f"torchvision:LSUN:{tmp_path}")
    assert not (tmp_path / "ran").exists()


def test_cifar_itself_still_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pickle

    from torchvision.datasets import CIFAR10

    from unsum.data import open_data

    monkeypatch.setattr(CIFAR10, "_check_integrity", lambda _self: True)
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *_: True)
    folder = tmp_path / CIFAR10.base_folder
    folder.mkdir()
    for name, _ in CIFAR10.train_list:
        content = {"data": np.zeros((2, 3072), np.uint8), "labels": [0, 1]}
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    (folder / "batches.meta").write_bytes(
        pickle.dumps({"label_names": list("abcdefghij")}, protocol=2)
    )
    assert len(open_data(f"torchvision:CIFAR10:{tmp_path}").names) == 10


def test_an_inverse_whose_card_asks_for_a_huge_network(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    from unsum.invert.decoder import Decoder
    from unsum.invert.layout import Layout
    from unsum.invert.method import Inverse

    card = {
        "photos": 1,
        "size": 64,
        "architecture": "decoder",
        "layout": {"kind": "vector", "shape": [8]},
    }
    for settings in (
        {"stages": [[1 << 30, 2]]},
        {"stages": [[8, 10**9]]},
        {"stages": [[8, 1]] * 1000},
        [],
        {"patch": 1 << 40},
    ):
        save_file(
            {"gain": torch.ones(())},
            tmp_path / "i.safetensors",
            {"card": json.dumps(card | {"settings": settings})},
        )
        with pytest.raises(UnsumError, match="is not an inverse written by unsum"):
            Inverse.load(tmp_path / "i.safetensors")
    small = Inverse(Decoder(Layout("vector", (8,)), 64, ((8, 1),), compress=False), dict(card))
    small.card["settings"] = small.decoder.settings
    small.save(tmp_path / "good.safetensors")
    assert Inverse.load(tmp_path / "good.safetensors").blurred is None
    # it has no weights of what any of these ask for
    for blurred in ({"width": 1 << 40}, {"width": 1 << 20}, {"width": -1}, {"depth": 1}, {}, [], 3):
        small.card["blurred"] = blurred
        small.save(tmp_path / "i.safetensors")
        with pytest.raises(UnsumError, match="is not an inverse written by unsum"):
            Inverse.load(tmp_path / "i.safetensors")


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"PK\x03\x04" + b"x" * 100])
def test_checkpoints_that_are_damaged(tmp_path: Path, content: bytes) -> None:
    from unsum.invert import checkpoint
    from unsum.match import checkpoint as matching

    (tmp_path / checkpoint.FILE).write_bytes(content)
    with pytest.raises(UnsumError, match="delete it to start over"):
        checkpoint.read(tmp_path, {})
    (tmp_path / "m.safetensors").write_bytes(content)
    with pytest.raises(UnsumError, match="delete it to start over"):
        matching.read(tmp_path / "m.safetensors", {}, torch.device("cpu"))


@pytest.mark.parametrize("value", [0.0, 1e-42, 1e30])
def test_an_update_of_one_value_is_answered_without_a_certificate(value: float) -> None:
    """All zeros are a gradient too, that of nobody."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
    assert unsum.attack(
        model, unsum.capture(model, torch.rand(1, 12), torch.tensor([3]))
    ).exact  # what was sent is claimed
    update = unsum.Update({name: torch.full_like(p, value) for name, p in model.named_parameters()})
    with contextlib.suppress(UnsumError):
        assert not unsum.attack(model, update).exact
