"""An image classifier or a language model in a folder as Hugging Face's `save_pretrained` writes
it: `hf:PATH`.

Nothing is downloaded.

A `config.json` describes the network that is built before its weights are read: it must not
describe more than they hold.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unsum.errors import UnsumError, first_line, optional, shown
from unsum.files.safetensors_header import check_safetensors
from unsum.head import find_head
from unsum.models.built import FRESH, USUAL_SIZE, Built, Normalize, fresh_head
from unsum.models.from_peft import SETTINGS as ADAPTERS
from unsum.models.from_peft import base_of, with_adapters
from unsum.models.language import is_language_model

# How the names of models of text end, and what loads them.
_OF_TEXT = {
    "ForSequenceClassification": "AutoModelForSequenceClassification",
    "ForMaskedLM": "AutoModelForMaskedLM",
    "ForCausalLM": "AutoModelForCausalLM",
    "LMHeadModel": "AutoModelForCausalLM",
}
_OWN = "its own weights"


def build_hugging_face(path: Path, classes: int, seed: int, *, fresh: bool = False) -> Built:
    """The classifier, called as `model(images)` for logits, under the parameter names that its own
    clients see.

    A language model, called as `model(tokens)`, comes as it is; so does a classifier's head, unless
    a fresh one is asked for.
    """
    transformers = optional("transformers", "hf", "Models called hf:PATH need transformers")
    if (path / ADAPTERS).is_file():
        base = base_of(path)
        built = build_hugging_face(base, classes, seed)
        if not is_language_model(built.model):
            raise UnsumError(
                f"{str(path)!r} holds adapters for no language model; pass a model file that "
                "builds it."
            )
        kind = f"{type(built.model).__name__} of {base.name} with the adapters of {path.name}"
        return replace(built, model=with_adapters(built.model, path), kind=kind)
    if not (path / "config.json").is_file():
        raise UnsumError(
            f"{str(path)!r} is no folder written by save_pretrained: it holds no config.json."
        )
    loader = _loader_of_text(check_config(path))
    if loader is not None:
        model, lacking = _loaded(getattr(transformers, loader), path, "a language model")
        _check_complete(path, lacking)
        return Built(model.eval(), f"{type(model).__name__} of {path.name}", 0, _OWN)
    model, lacking = _loaded(
        transformers.AutoModelForImageClassification, path, "an image classifier"
    )
    model = _called_with_images(model)
    size = _size(model.config)
    _check_head(model, path, size)
    _check_complete(path, lacking, f"{find_head(model)[0]}." if fresh else None)
    if fresh:
        fresh_head(model, classes, seed)
    origin = _OWN + (FRESH if fresh else "")
    normalize = _normalize(path)
    if normalize is not None:
        model.register_forward_pre_hook(normalize)
    return Built(
        model, f"{type(model).__name__} of {path.name}", size, origin, trained_head=not fresh
    )


def _loader_of_text(settings: Any) -> str | None:
    """What loads the folder's model, where it says that this is one of text."""
    names = settings.get("architectures") if isinstance(settings, dict) else None
    known = (
        [name for name in names or [] if isinstance(name, str)] if isinstance(names, list) else []
    )
    return next(
        (loader for end, loader in _OF_TEXT.items() for name in known if name.endswith(end)), None
    )


def is_language_folder(spec: str) -> bool:
    """Whether `hf:PATH` names the folder of a language model."""
    source, _, path = spec.partition(":")
    folder = Path(path)
    if source == "hf" and (folder / ADAPTERS).is_file():
        folder = base_of(folder)
    found = source == "hf" and (folder / "config.json").is_file()
    return found and _loader_of_text(check_config(folder)) is not None


def _loaded(loader: Any, path: Path, what: str) -> tuple[Any, list[str]]:
    """The model, and the weights that the folder lacks for it."""
    # a bar of its own would stand between our lines of progress
    optional(
        "transformers.utils.logging", "hf", "hf:PATH needs transformers"
    ).disable_progress_bar()
    try:
        # Without code of the folder's own, and without pickles: a model from elsewhere must not run
        # anything here.
        model, report = loader.from_pretrained(
            path,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except Exception as error:  # transformers raises nearly anything on a damaged or foreign folder
        raise UnsumError(
            f"{str(path)!r} cannot be loaded as {what}: {first_line(error)}."
        ) from error
    return model.float(), sorted(report["missing_keys"])


def _check_complete(path: Path, lacking: list[str], head: str | None = None) -> None:
    """Weights may be missing only from a head that is to be made anew."""
    if any(head is None or not key.startswith(head) for key in lacking):
        raise UnsumError(
            f"{str(path)!r} lacks weights of its own model, {lacking[0]!r} among them; save it "
            "again, or add --fresh-head if only its head is missing."
        )


def _called_with_images(model: nn.Module) -> nn.Module:
    """The same object under a subclass whose forward returns logits: a wrapper around it would
    rename every parameter."""
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
    """The layer taken for the head must make the logits: these networks can seldom be traced, so it
    is tried out."""
    _, head = find_head(model)
    seen: list[Tensor] = []
    with (
        head.register_forward_hook(lambda _module, _inputs, output: seen.append(output)),
        torch.no_grad(),
    ):
        logits = model(torch.rand(1, 3, size, size))
    if not seen or not torch.equal(seen[-1].flatten(), logits.flatten()):
        raise UnsumError(
            f"The classifier in {str(path)!r} has no linear head: its logits are not what its last "
            "nn.Linear returns."
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
        raise UnsumError(
            f"{str(file)!r} cannot be read as the settings of an image processor."
        ) from error
    return None


# of a config; published ones have a few thousand, those with a thousand class names 60,000
_MOST_BYTES = 1 << 20
_LARGEST_SIDE = 4096  # pixels of a picture that the model is tried out with
# num_hidden_layers, n_layer, depths, num_encoder_blocks, …
_COUNTS = re.compile(r"(?:layers?|depths?|blocks|stages)$")


def check_config(folder: Path) -> Any:
    """The settings; more layers than the folder holds tensors, or pictures of a size that nobody
    classifies, are refused."""
    file = folder / "config.json"
    if file.stat().st_size > _MOST_BYTES:
        raise UnsumError(
            f"{str(file)!r} has {file.stat().st_size:,} bytes, too many for the settings of a "
            "model."
        )
    try:
        settings = json.loads(file.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UnsumError(f"{str(file)!r} cannot be read as the settings of a model.") from error
    weights = list(folder.glob("*.safetensors"))
    held = sum(_tensors(part) for part in weights)
    for name, count in _numbers(settings):
        if _COUNTS.search(name) and weights and count > held:
            raise UnsumError(
                f"{str(file)!r} describes a model of {shown(count)} layers ({shown(name)}), and "
                f"the folder holds {held:,} tensors; save the model again."
            )
        if name == "image_size" and count > _LARGEST_SIDE:
            raise UnsumError(
                f"{str(file)!r} asks for pictures of {shown(count)} pixels a side, and at most "
                f"{_LARGEST_SIDE:,} are tried; correct its image_size."
            )
    return settings


def _tensors(file: Path) -> int:
    try:
        return len(check_safetensors(file))
    except (OSError, ValueError) as error:
        raise UnsumError(f"{str(file)!r} cannot be read: {first_line(error)}.") from error


def _numbers(settings: Any, name: str = "") -> Iterator[tuple[str, int]]:
    """Every whole number under its own name, however deep; numbers in a list add up."""
    if isinstance(settings, dict):
        for key, value in settings.items():
            yield from _numbers(value, str(key))
    elif isinstance(settings, list):
        whole = [value for value in settings if isinstance(value, int)]
        yield name, sum(whole) if name != "image_size" else max(whole, default=0)
        for value in settings:
            if isinstance(value, dict | list):
                yield from _numbers(value, name)
    elif isinstance(settings, int) and not isinstance(settings, bool):
        yield name, settings
