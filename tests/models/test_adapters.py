"""Folders of adapters, as peft writes them: their base from this disk, and a sentence for whatever
is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch import nn

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


def test_the_tokenizer_is_that_of_the_base_where_the_adapters_have_none(tmp_path: Path) -> None:
    home = tmp_path / "base"
    home.mkdir()
    save_language_model(home)
    made = folder(tmp_path, json.dumps({"base_model_name_or_path": str(home)}))
    read = tokenizer_of(f"hf:{made}")
    assert read.encode(LINES[0]) == tokenizer_of(f"hf:{home}").encode(LINES[0])
    assert tokenizer_of(f"hf:{tmp_path}").special("unk") is None
