"""An image classifier, or a language model (`causal_text`), in a folder as Hugging Face's `save_pretrained` writes it: `hf:PATH`.

Nothing is downloaded.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unsum.errors import UnsumError, first_line
from unsum.head import find_head
from unsum.models.built import USUAL_SIZE, Built, Normalize, fresh_head, optional
from unsum.models.causal_text import build_causal_text, is_causal_text
from unsum.models.hugging_face_config import check_config


def build_hugging_face(path: Path, classes: int, seed: int) -> Built:
    """The classifier, called as `model(images)` for logits, under the parameter names that its own clients see.

    A language model comes as it is. A head with fewer classes than are needed is replaced by a fresh one.
    """
    transformers = optional("transformers", "hf", "Models called hf:PATH")
    if not (path / "config.json").is_file():
        raise UnsumError(f"{str(path)!r} is no folder written by save_pretrained: it holds no config.json.")
    check_config(path)
    if is_causal_text(path):
        return build_causal_text(path, transformers)
    loader = transformers.AutoModelForImageClassification
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # for a head that the folder lacks
            # Without code of the folder's own, and without pickles: a model from elsewhere must not run anything here.
            model, report = loader.from_pretrained(
                path, local_files_only=True, trust_remote_code=False, use_safetensors=True, output_loading_info=True
            )
    except Exception as error:  # transformers raises nearly anything on a damaged or foreign folder
        raise UnsumError(f"{str(path)!r} cannot be loaded as an image classifier: {first_line(error)}.") from error
    model = _called_with_images(model.float())
    size = _size(model.config)
    _check_head(model, path, size)
    name, head = find_head(model)
    lacking = sorted(report["missing_keys"])
    if any(not key.startswith(f"{name}.") for key in lacking):
        raise UnsumError(f"{str(path)!r} lacks weights of its own model, {lacking[0]!r} among them; save it again.")
    if head.out_features < classes:
        fresh_head(model, classes, seed)
    fresh = bool(lacking) or head.out_features < classes
    origin = "its own weights" + (" under a fresh head" if fresh else "")
    normalize = _normalize(path)
    if normalize is not None:
        model.register_forward_pre_hook(normalize)
    return Built(model, f"{type(model).__name__} of {path.name}", size, origin)


def _called_with_images(model: nn.Module) -> nn.Module:
    """The same object under a subclass whose forward returns logits: a wrapper around it would rename every parameter."""
    original = type(model)

    def forward(self: nn.Module, images: Tensor) -> Tensor:
        logits: Tensor = original.forward(self, pixel_values=images, return_dict=True).logits
        return logits

    model.__class__ = type(original.__name__, (original,), {"forward": forward})
    return model.eval()


def _size(config: Any) -> int:
    size = getattr(config, "image_size", USUAL_SIZE)
    return int(size[0] if isinstance(size, list | tuple) else size)


def _check_head(model: nn.Module, path: Path, size: int) -> None:
    """The layer taken for the head must make the logits: these networks can seldom be traced, so it is tried out."""
    _, head = find_head(model)
    seen: list[Tensor] = []
    hook = head.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    try:
        with torch.no_grad():
            logits = model(torch.rand(1, 3, size, size))
    finally:
        hook.remove()
    if not seen or not torch.equal(seen[-1].flatten(), logits.flatten()):
        raise UnsumError(
            f"The classifier in {str(path)!r} has no linear head: its logits are not what its last nn.Linear returns."
        )


def _normalize(path: Path) -> Normalize | None:
    """As the folder's image processor says, if there is one."""
    file = path / "preprocessor_config.json"
    try:
        settings = json.loads(file.read_text("utf-8")) if file.is_file() else {}
        mean, std = settings.get("image_mean"), settings.get("image_std")
        if settings.get("do_normalize", True) and mean and std:
            return Normalize([float(value) for value in mean], [float(value) for value in std])
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UnsumError(f"{str(file)!r} cannot be read as the settings of an image processor.") from error
    return None
