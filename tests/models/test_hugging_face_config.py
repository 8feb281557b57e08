"""Configs that describe more than their weights hold are refused before anything is built."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from unsum.errors import UnsumError
from unsum.models import load_model
from unsum.models.from_hugging_face import check_config

HONEST: dict[str, Any] = {
    "model_type": "vit", "architectures": ["ViTForImageClassification"], "num_hidden_layers": 2,
    "hidden_size": 8, "image_size": 32, "id2label": {"0": "a"}, "layer_norm_eps": 1e-12,
    "block_size": 1024,
}  # fmt: skip


def _folder(path: Path, **changes: Any) -> Path:
    (path / "config.json").write_text(json.dumps(HONEST | changes))
    save_file({f"{i}.weight": torch.zeros(1) for i in range(24)}, path / "model.safetensors")
    return path


def test_an_honest_one_passes(tmp_path: Path) -> None:
    check_config(_folder(tmp_path))
    check_config(_folder(tmp_path, depths=[2, 2, 6, 2], text_config={"n_layer": 24}))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"num_hidden_layers": 10**7},
            r"10,000,000 layers \('num_hidden_layers'\), and the folder holds 24 tensors",
        ),
        ({"depths": [6] * 5}, "a model of 30 layers"),
        ({"text_config": {"n_layer": 10**30}}, "describes a model of"),
        ({"image_size": 10**6}, "pictures of 1,000,000 pixels"),
        ({"image_size": [32, 10**6]}, "pictures of 1,000,000 pixels"),
        ({"id2label": {str(i): "x" * 1000 for i in range(2000)}}, "too many for the settings"),
    ],
)
def test_one_that_describes_more_is_refused_at_once(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    pytest.importorskip("transformers")
    start = time.process_time()
    with pytest.raises(UnsumError, match=sentence) as told:
        load_model(f"hf:{_folder(tmp_path, **changes)}", classes=1)
    assert len(str(told.value)) < 500
    assert time.process_time() - start < 60


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "\udcff"])
def test_one_that_is_no_json(tmp_path: Path, text: str) -> None:
    _folder(tmp_path)
    (tmp_path / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UnsumError, match="cannot be read as the settings"):
        check_config(tmp_path)
