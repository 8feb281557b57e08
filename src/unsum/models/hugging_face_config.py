"""A `config.json` describes the network that is built before its weights are read: it must not describe more than they hold."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unsum.errors import UnsumError, first_line, shown
from unsum.files.safetensors_header import check_safetensors

_MOST_BYTES = 1 << 20  # of a config; published ones have a few thousand, those with a thousand class names 60,000
_LARGEST_SIDE = 4096  # pixels of a picture that the model is tried out with
_COUNTS = re.compile(r"(?:layers?|depths?|blocks|stages)$")  # num_hidden_layers, n_layer, depths, num_encoder_blocks, …


def check_config(folder: Path) -> None:
    """Refuse a config with more layers than the folder holds tensors, or for pictures of a size that nobody classifies."""
    file = folder / "config.json"
    if file.stat().st_size > _MOST_BYTES:
        raise UnsumError(f"{str(file)!r} has {file.stat().st_size:,} bytes, too many for the settings of a model.")
    try:
        settings = json.loads(file.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UnsumError(f"{str(file)!r} cannot be read as the settings of a model.") from error
    weights = list(folder.glob("*.safetensors"))
    held = sum(_tensors(part) for part in weights)
    for name, count in _numbers(settings):
        if _COUNTS.search(name) and weights and count > held:
            raise UnsumError(
                f"{str(file)!r} describes a model of {shown(count)} layers ({shown(name)}), and the folder holds {held:,} "
                "tensors; save the model again."
            )
        if name == "image_size" and count > _LARGEST_SIDE:
            raise UnsumError(
                f"{str(file)!r} asks for pictures of {shown(count)} pixels a side, and at most {_LARGEST_SIDE:,} are tried; "
                "correct its image_size."
            )


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
