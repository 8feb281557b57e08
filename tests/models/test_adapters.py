"""Folders of adapters, as peft writes them: their base from this disk, and a sentence for whatever
is missing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import unsum
from separate.text_families import PeftModel
from support.text_folder import LINES, save_language_model
from unsum.errors import UnsumError
from unsum.models import load_model
from unsum.models.from_hugging_face import is_language_folder
from unsum.models.from_peft import base_of, with_adapters
from unsum.models.language import tokenizer_of


def folder(place: Path, settings: str) -> Path:
    made = place / "adapter"
    made.mkdir()
    (made / "adapter_config.json").write_text(settings)
    return made


def base(place: Path, architecture: str) -> Path:
    place.mkdir()
    (place / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    return place


def test_the_base_is_where_the_settings_say_or_beside_the_adapters(tmp_path: Path) -> None:
    elsewhere = base(tmp_path / "elsewhere", "LlamaForCausalLM")
    made = folder(tmp_path, json.dumps({"base_model_name_or_path": str(elsewhere)}))
    assert base_of(made) == elsewhere
    beside = base(tmp_path / "base", "LlamaForCausalLM")
    (made / "adapter_config.json").write_text("{}")
    assert base_of(made) == beside
    assert is_language_folder(f"hf:{made}")


def test_what_is_missing_is_said_in_a_sentence(tmp_path: Path) -> None:
    made = folder(tmp_path, json.dumps({"base_model_name_or_path": "meta/large"}))
    with pytest.raises(
        UnsumError,
        match=r"'meta/large', which is no folder of a model on this disk; save the base model",
    ):
        load_model(f"hf:{made}", classes=1)
    (made / "adapter_config.json").write_text("[")
    with pytest.raises(UnsumError, match="cannot be read as the settings of adapters"):
        base_of(made)


def test_adapters_in_a_pickle_or_without_peft_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = folder(tmp_path, "{}")
    (made / "adapter_model.bin").write_bytes(b"")
    monkeypatch.setattr("unsum.models.from_peft.optional", lambda *_names: None)
    with pytest.raises(
        UnsumError, match=r"holds no adapter_model.safetensors; save the adapters again"
    ):
        with_adapters(nn.Identity(), made)
    monkeypatch.undo()
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    with pytest.raises(
        UnsumError,
        match=r"Folders of adapters need peft; install it with: pip install 'unsum\[peft\]'",
    ):
        with_adapters(nn.Identity(), made)


RANK = 4


def saved(place: Path) -> Path:
    """Adapters of a small GPT-2 laid out by hand as peft's `save_pretrained` does: without the name
    of the adapters, and every matrix at a value of its own."""
    home = place / "base"
    home.mkdir()
    save_language_model(home)
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(home),
        "r": RANK,
        "lora_alpha": 8,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": ["c_attn"],
        "fan_in_fan_out": True,
        "inference_mode": True,
    }
    made = folder(place, json.dumps(settings))
    weights = {}
    for layer in range(2):
        name = f"base_model.model.transformer.h.{layer}.attn.c_attn"
        weights[f"{name}.lora_A.weight"] = torch.full((RANK, 48), 0.01 * (layer + 1))
        weights[f"{name}.lora_B.weight"] = torch.full((144, RANK), 0.02 * (layer + 1))
    save_file(weights, made / "adapter_model.safetensors")
    return made


class StandIn:
    """In the place of `peft.PeftModel`, which need not be installed: the same names, filled from
    the same file."""

    @staticmethod
    def from_pretrained(model: nn.Module, path: str, *, is_trainable: bool) -> nn.Module:
        assert is_trainable
        settings = json.loads((Path(path) / "adapter_config.json").read_text())
        wrapped = PeftModel(model, settings["r"], settings["lora_alpha"])
        held = load_file(Path(path) / "adapter_model.safetensors")
        named = {name.replace(".weight", ".default.weight"): held[name] for name in held}
        unknown = wrapped.load_state_dict(named, strict=False).unexpected_keys
        assert not unknown
        return wrapped


@pytest.mark.parametrize("library", ["stand-in", "peft"])
def test_a_folder_is_loaded_with_its_adapters_and_what_they_leave_open_is_said(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if library == "peft":
        pytest.importorskip("peft")
    else:
        monkeypatch.setitem(sys.modules, "peft", SimpleNamespace(PeftModel=StandIn))  # type: ignore[arg-type]
    loaded = load_model(f"hf:{saved(tmp_path)}", classes=1)
    assert "with the adapters of adapter" in loaded.name
    trained = {n: w for n, w in loaded.model.named_parameters() if w.requires_grad}
    assert len(trained) == 4
    name = "base_model.model.transformer.h.1.attn.c_attn"
    assert torch.equal(
        trained[f"{name}.lora_B.default.weight"].detach(), torch.full((144, RANK), 0.04)
    )
    update = unsum.capture_text(loaded.model, torch.tensor([[3, 1, 4, 1, 5]]), train=False)
    assert set(update.gradients) == set(trained)
    verdict = unsum.audit(loaded.model, update=update).verdict
    assert verdict.state == "not decidable"
    assert verdict.headline == (
        "Not decidable: clients that train adapters alone send no gradient of the last linear "
        "layer, where every attack here starts."
    )
    assert verdict.details[0].startswith("Treat what they send as the samples themselves")
    assert verdict.details[0].endswith("is 'base_model.model.transformer.wte.weight'.")


def test_the_tokenizer_is_that_of_the_base_where_the_adapters_have_none(tmp_path: Path) -> None:
    home = tmp_path / "base"
    home.mkdir()
    save_language_model(home)
    made = folder(tmp_path, json.dumps({"base_model_name_or_path": str(home)}))
    read = tokenizer_of(f"hf:{made}")
    assert read.encode(LINES[0]) == tokenizer_of(f"hf:{home}").encode(LINES[0])
    assert tokenizer_of(f"hf:{tmp_path}").special("unk") is None
