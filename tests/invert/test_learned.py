from __future__ import annotations

from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import unsum
from unsum.invert import load_inverse
from unsum.models import load_model


def test_pictures_belong_to_their_features(default_audit: unsum.Audit) -> None:
    """Reordering the features reorders the pictures; zero features lose them."""
    model, leak = load_model("default", classes=100).model, default_audit.leak
    order = torch.tensor([3, 1, 0, 2, 7, 6, 5, 4])
    torch.testing.assert_close(
        unsum.invert(model, replace(leak, features=leak.features[order])), leak.images[order]
    )
    blank = unsum.invert(model, replace(leak, features=torch.zeros_like(leak.features)))
    truth = default_audit.truth
    assert unsum.score(replace(leak, images=blank), images=truth.images)["psnr"] < 14


def test_the_card_tells_its_origin() -> None:
    inverse = load_inverse(load_model("default", classes=5).model)
    assert inverse.decoder.size == 128
    assert inverse.card["held_out_psnr_batch_8"] > 20
    assert "8,192" in inverse.photos


def test_another_backbone_is_refused() -> None:
    with pytest.raises(
        unsum.UnsumError, match="the embedded inverse was trained for a backbone with other weights"
    ):
        load_inverse(load_model("torchvision:resnet18", classes=5).model)


def test_photos_of_another_size_are_refused() -> None:
    with pytest.raises(
        unsum.UnsumError, match="reads 32768 features of photos of 128², and this head 2048"
    ):
        load_inverse(load_model("default", classes=5, size=32).model)


def test_an_inverse_from_a_file_is_used(tmp_path: Path) -> None:
    source = files("unsum.invert") / "weights" / "default-inverse.safetensors"
    copy, trained = tmp_path / "mine.safetensors", tmp_path / "inverse.safetensors"
    for path in (copy, trained):
        path.write_bytes(source.read_bytes())
    model = load_model("default", classes=5).model
    assert load_inverse(model, copy).card == load_inverse(model).card
    # the folder of a training
    assert load_inverse(model, tmp_path).card == load_inverse(model).card


@pytest.mark.parametrize("kind", ["missing", "garbage", "no card"])
def test_files_that_are_no_inverse_are_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "inverse.safetensors"
    if kind == "garbage":
        path.write_bytes(b"\x01" * 100)
    if kind == "no card":
        save_file({"w": torch.ones(1)}, path)
    with pytest.raises(unsum.UnsumError, match="is not an inverse written by unsum"):
        load_inverse(load_model("default", classes=5).model, path)
