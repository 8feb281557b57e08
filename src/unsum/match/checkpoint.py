"""The state of a run in one safetensors file: written whole or not at all, and refused by another
run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from unsum.errors import UnsumError
from unsum.files.safetensors_header import check_safetensors
from unsum.files.writing import save_tensors, write_whole
from unsum.invert.checkpoint import refuse_another_run


def write(path: Path, run: dict[str, Any], state: Any) -> None:
    """A kill at any moment leaves either the last checkpoint or this one."""
    tensors: dict[str, Tensor] = {}
    skeleton = _packed(state, tensors)
    path.parent.mkdir(parents=True, exist_ok=True)

    def save(part: Path) -> None:
        save_tensors(tensors, part, {"run": json.dumps(run), "state": json.dumps(skeleton)})
        with part.open("rb") as file:
            os.fsync(file.fileno())

    write_whole(path, save)


def read(path: Path, run: dict[str, Any], device: torch.device) -> Any | None:
    """The state that `write` left for the same run, None if there is none. `run` says what must not
    have changed."""
    if not path.exists():
        return None
    try:
        check_safetensors(path)
        with safe_open(path, framework="pt", device=str(device)) as file:
            metadata = file.metadata() or {}
            before, skeleton = dict(json.loads(metadata["run"])), json.loads(metadata["state"])
            # Copied, because products of tensors that begin at odd places, as in a file, round
            # differently.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a dict)
            state = _unpacked(skeleton, tensors)
    except Exception as error:  # a damaged file can make its readers raise nearly anything
        raise UnsumError(
            f"The checkpoint {str(path)!r} cannot be read; delete it to start over."
        ) from error
    refuse_another_run(path, before, run, "file")
    return state


def _packed(value: Any, tensors: dict[str, Tensor]) -> Any:
    """JSON in the shape of `value`, whose tensors it moves into `tensors`."""
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().clone().contiguous()
        return {"tensor": name}
    if isinstance(value, dict):
        return {"items": {key: _packed(item, tensors) for key, item in value.items()}}
    if isinstance(value, list):
        return [_packed(item, tensors) for item in value]
    return value


def _unpacked(skeleton: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(skeleton, dict) and "tensor" in skeleton:
        return tensors[skeleton["tensor"]]
    if isinstance(skeleton, dict):
        return {key: _unpacked(item, tensors) for key, item in skeleton["items"].items()}
    if isinstance(skeleton, list):
        return [_unpacked(item, tensors) for item in skeleton]
    return skeleton
