"""The strengths of a sweep that are done, on disk until the page is written: an interrupted sweep goes on with the others."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import safe_open

from unsum.audit.point import Point, SampleLeak
from unsum.audit.result import UNFINISHED
from unsum.audit.sweep.task import Accuracy
from unsum.files.safetensors_header import check_safetensors
from unsum.files.writing import save_tensors, write_whole


class Unfinished:
    """Points by their name; one that was made under other settings is made anew. `folder` None keeps nothing."""

    def __init__(self, folder: Path | None, settings: str) -> None:
        self._folder = None if folder is None else folder / UNFINISHED
        self._settings = hashlib.sha256(settings.encode()).hexdigest()[:16]

    def __call__(self, name: str, make: Callable[[], Point]) -> Point:
        if self._folder is None:
            return make()
        path = self._folder / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.safetensors"
        found = _read(path, self._settings)
        if found is None:
            found = make()
            self._folder.mkdir(parents=True, exist_ok=True)
            write_whole(path, lambda part: _write(found, part, self._settings))
        return found


def _write(point: Point, path: Path, settings: str) -> None:
    content = asdict(point) | {"pictures": None}
    tensors = {"none": torch.zeros(1)}
    if point.pictures is not None:
        original, recovered = point.pictures
        tensors = {"original": original.cpu().contiguous()}
        if recovered is not None:
            tensors["recovered"] = recovered.cpu().contiguous()
    save_tensors(tensors, path, {"settings": settings, "point": json.dumps(content)})


def _read(path: Path, settings: str) -> Point | None:
    """The point, or None if there is none, it is damaged, or it belongs to another sweep."""
    try:
        check_safetensors(path)
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata["settings"] != settings:
                return None
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        content = json.loads(metadata["point"])
        content["samples"] = [SampleLeak(**row) for row in content["samples"]]
        accuracy = content["accuracy"]
        content["accuracy"] = None if accuracy is None else Accuracy(**accuracy)
        if "original" in tensors:
            content["pictures"] = tensors["original"], tensors.get("recovered")
        return Point(**content)
    except Exception:  # whatever is wrong with it, it can be made again
        return None
