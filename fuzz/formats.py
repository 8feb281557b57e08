"""What is fuzzed: every kind of file that comes from elsewhere, how it is read, how it is mutated,
and where it begins."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

# the makers of hostile files
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import mutate
from hostile.makers import entry, flower, npy, npz, picture, safetensors, tar, torch_file
from unsum import Update
from unsum.app.order import read_order
from unsum.app.shelf import Shelf
from unsum.audit.sweep.task import pictures_from_file
from unsum.data.pictures import decode
from unsum.data.sources import open_source
from unsum.errors import UnsumError
from unsum.invert import checkpoint
from unsum.invert.method import Inverse
from unsum.match import checkpoint as matching

Image.MAX_IMAGE_PIXELS = None  # Pillow's own warning is not what is tested


@dataclass(frozen=True)
class Format:
    """`share` is the part of all mutations that it gets: by its importance, and by what one
    costs."""

    file: str
    read: Callable[[Path], Any]
    mutate: mutate.Mutator
    seeds: Callable[[], list[bytes]]
    share: float = 1.0


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)


_MODEL = _Model()
_WEIGHT = (np.arange(12, dtype=np.float32) / 8).reshape(3, 4)
_BIAS = np.array([0.5, -0.25, -0.25], dtype=np.float32)
_STATE = {"fc.weight": torch.from_numpy(_WEIGHT), "fc.bias": torch.from_numpy(_BIAS)}


def _update(path: Path) -> None:
    update = Update.load(path, model=_MODEL)
    update.validate(_MODEL)


def _photos(path: Path) -> None:
    source = open_source(path)
    for name, content in zip(source.names[:4], source.pictures(), strict=False):
        decode(name, content, 8)


def _picture(path: Path) -> None:
    decode("photo", path.read_bytes(), 8)


def _order(path: Path) -> None:
    """As the live page's server does it."""
    try:
        wanted = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise UnsumError("A round is asked for with a JSON object.") from None
    read_order(wanted, _shelf(), "a-page-of-the-fuzzer")


def _shelf() -> Shelf:
    global _SHELF
    if _SHELF is None:
        _SHELF = Shelf(128)
    return _SHELF


_SHELF: Shelf | None = None


def _json(content: bytes, random: Any) -> bytes:
    try:
        return json.dumps(mutate._in_tree(json.loads(content), random)).encode()
    except (ValueError, RecursionError):
        return mutate.scribble(content, random)


def _inverse_card(blurred: dict[str, int] | None) -> bytes:
    card = {
        "photos": 9, "size": 8, "architecture": "decoder",
        "layout": {"kind": "vector", "shape": [4]},
        "settings": {"stages": [[4, 1]], "stem": 1, "patch": 2, "compress": True}, "steps": 3,
        "blurred": blurred,
    }  # fmt: skip
    from unsum.invert.blurred import PREFIX
    from unsum.invert.method import build_blurred, build_decoder

    weights = {name: w.half() for name, w in build_decoder(card).state_dict().items()}
    drawn = build_blurred(card)
    parts = {} if drawn is None else drawn.state_dict()
    weights |= {PREFIX + name: part.half() for name, part in parts.items()}
    return _saved(weights, {"card": json.dumps(card)})


def _saved(tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> bytes:
    from safetensors.torch import save

    return save(tensors, metadata)


def _safetensors_seeds() -> list[bytes]:
    metadata = {
        "unsum-update": json.dumps(
            {"kind": "gradient", "learning_rate": None, "reduction": "mean", "batch_size": 2}
        )
    }
    header = {"fc.weight": entry("F32", [3, 4], 0, 48), "fc.bias": entry("F32", [3], 48, 60)}
    return [safetensors(header, _WEIGHT.tobytes() + _BIAS.tobytes()), _saved(_STATE, metadata)]


def _legacy() -> bytes:
    return torch_file(_STATE, legacy=True)


def _matching_seed() -> bytes:
    state = json.dumps({"items": {"step": 3, "image": {"tensor": "0"}, "rows": [[1, 2.0]]}})
    return _saved({"0": torch.zeros(2, 2)}, {"run": json.dumps({"seed": 0}), "state": state})


_PHOTOS_NPZ = {"images": np.zeros((64, 2, 2, 3), np.uint8), "labels": np.arange(64) % 2}
_ORDER = {
    "photos": [{"id": "embedded-0"}, {"id": "embedded-1", "label": "dog"}],
    "same_label": 2,
    "defense": {"name": "noise", "stop": 3},
}

FORMATS: dict[str, Format] = {
    "safetensors": Format("u.safetensors", _update, mutate.in_safetensors, _safetensors_seeds, 12),
    "npz": Format("u.npz", _update, mutate.in_zip(mutate.with_tokens("npy")),
    lambda: [npz(**{"fc.weight": _WEIGHT, "fc.bias": _BIAS}), npz(arr_0=_WEIGHT, arr_1=_BIAS)], 4),
    "npy": Format("u", _update, mutate.with_tokens("npy"),
    lambda: [npy("<f4", (3, 4), _WEIGHT.tobytes()), npy(">f8", (3, 4), bytes(96), fortran=True)],
    8),
    "flower": Format("u.pb", _update, mutate.with_tokens("npy"),
    lambda: [flower([("fc.weight", npy("<f4", (3, 4), _WEIGHT.tobytes())),
    ("fc.bias", npy("<f4", (3,), _BIAS.tobytes()))])], 10),
    "pt": Format("u.pt", _update, mutate.in_zip(mutate.with_tokens("pickle")),
    lambda: [torch_file(_STATE), torch_file({"model": _STATE, "epoch": 3}),
    torch_file([_STATE["fc.weight"]])], 2),
    "pt-legacy": Format("u.pt", _update, mutate.with_tokens("pickle"), lambda: [_legacy()], 1),
    "tar": Format("p.tar", _photos, mutate.in_picture_of_tar,
    lambda: [tar([("a/1.png", picture()), ("b/2.png", picture())]),
    tar([("1.jpg", picture(kind="JPEG")), ("1.cls", b"3")])], 3),
    "tar-gz": Format("p.tar.gz", _photos, mutate.in_gzip,
    lambda: [tar([("a/1.png", picture())], "gz")], 1),
    "photos-npz": Format("p.npz", _photos, mutate.in_zip(mutate.with_tokens("npy")),
    lambda: [npz(images=np.zeros((2, 4, 4, 3), np.uint8), labels=np.array([0, 1]),
    classes=np.array(["a", "b"]))], 2),
    "utility-npz": Format("t.npz", pictures_from_file, mutate.in_zip(mutate.with_tokens("npy")),
    lambda: [npz(**_PHOTOS_NPZ)], 1),
    "picture": Format("photo.jpg", _picture, mutate.in_picture,
    lambda: [picture(kind=kind) for kind in ("PNG", "JPEG", "WEBP", "BMP")], 8),
    "inverse": Format("i.safetensors", Inverse.load, mutate.in_safetensors,
    lambda: [_inverse_card(None), _inverse_card({"width": 4})], 0.5),
    "training-checkpoint": Format(checkpoint.FILE,
    lambda path: checkpoint.read(path.parent, {"seed": 0}),
    mutate.in_zip(mutate.with_tokens("pickle")),
    lambda: [torch_file({"run": {"seed": 0}, "decoder": _STATE})], 1),
    "matching-checkpoint": Format("m.safetensors",
    lambda path: matching.read(path, {"seed": 0}, torch.device("cpu")), mutate.in_safetensors,
    lambda: [_matching_seed()], 6),
    "order": Format("order.json", _order, _json, lambda: [json.dumps(_ORDER).encode()], 8),
}  # fmt: skip
