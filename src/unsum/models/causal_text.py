"""A causal language model in a folder as Hugging Face's `save_pretrained` writes it: `hf:PATH`. Nothing is downloaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from unsum.errors import UnsumError
from unsum.models.built import Built

_CAUSAL = ("LMHeadModel", "ForCausalLM")


def is_causal_text(path: Path) -> bool:
    """Whether the folder says that its model predicts next tokens."""
    try:
        settings = json.loads((path / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return False
    names = settings.get("architectures") if isinstance(settings, dict) else None
    return any(isinstance(name, str) and name.endswith(_CAUSAL) for name in names or [])


def build_causal_text(path: Path, transformers: Any) -> Built:
    """The language model, called as `model(tokens)`, under the parameter names that its own clients see."""
    loader = transformers.AutoModelForCausalLM
    try:
        model, report = loader.from_pretrained(
            path, local_files_only=True, trust_remote_code=False, use_safetensors=True, output_loading_info=True
        )
    except Exception as error:  # transformers raises nearly anything on a damaged or foreign folder
        reason = (str(error).strip() or type(error).__name__).split("\n")[0].rstrip(".")
        raise UnsumError(f"{str(path)!r} cannot be loaded as a language model: {reason}.") from error
    lacking = sorted(report["missing_keys"])
    if lacking:
        raise UnsumError(f"{str(path)!r} lacks weights of its own model, {lacking[0]!r} among them; save it again.")
    return Built(model.float().eval(), f"{type(model).__name__} of {path.name}", 0, "its own weights")
