"""A folder of adapters (LoRA), as peft's `save_pretrained` writes it: its base model from this
disk, with the adapters in."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

from torch import nn

from unsum.errors import UnsumError, first_line, optional, shown

SETTINGS = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"
_MOST_BYTES = 1 << 20  # of its settings: real ones have a thousand


def base_of(path: Path) -> Path:
    """The folder of the model that the adapters are for: as the settings name it, or beside the
    adapters."""
    file = path / SETTINGS
    if file.stat().st_size > _MOST_BYTES:
        raise UnsumError(
            f"{str(file)!r} has {file.stat().st_size:,} bytes, too many for the settings of "
            "adapters."
        )
    try:
        settings: Any = json.loads(file.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UnsumError(f"{str(file)!r} cannot be read as the settings of adapters.") from error
    named = settings.get("base_model_name_or_path") if isinstance(settings, dict) else None
    name = named if isinstance(named, str) and named else "base"
    for folder in (Path(name), path / name, path.parent / name):
        if (folder / "config.json").is_file():
            return folder
    raise UnsumError(
        f"{str(path)!r} holds adapters for {shown(name)}, which is no folder of a model on this "
        f"disk; save the base model, and write its folder into {SETTINGS} "
        "(base_model_name_or_path)."
    )


def with_adapters(model: nn.Module, path: Path) -> nn.Module:
    """The base model with the folder's adapters, which alone are trained, under the names that peft
    gives."""
    peft = optional("peft", "peft", "Folders of adapters need peft")
    if not (path / _WEIGHTS).is_file():  # anything else is a pickle
        raise UnsumError(
            f"{str(path)!r} holds no {_WEIGHTS}; save the adapters again, with "
            "safe_serialization=True."
        )
    try:
        with warnings.catch_warnings():  # that peft uses what transformers is about to rename
            warnings.simplefilter("ignore", FutureWarning)
            wrapped: nn.Module = peft.PeftModel.from_pretrained(model, str(path), is_trainable=True)
    except Exception as error:  # peft raises nearly anything on a damaged or foreign folder
        raise UnsumError(
            f"{str(path)!r} cannot be loaded as adapters: {first_line(error)}."
        ) from error
    return wrapped
