"""The learned inverse: a decoder trained on public photos turns features back into pictures."""

from __future__ import annotations

import json
from importlib.resources import as_file, files
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from unsum.errors import UnsumError
from unsum.invert.decoder import Decoder
from unsum.invert.method import INVERTERS, Inverse
from unsum.leak import Leak
from unsum.models.fingerprint import backbone_fingerprint


@INVERTERS.register("learned", summary="decoder trained on public photos", needs="an inverse trained for this backbone")
def learned(model: nn.Module, leak: Leak, *, inverse: str | Path | Inverse | None) -> Tensor:
    """(B, 3, h, w) in [0, 1]: the decoder's picture for each sample's features."""
    loaded = inverse if isinstance(inverse, Inverse) else load_inverse(model, inverse)
    decoder = loaded.decoder.to(leak.features.device)
    with torch.no_grad():
        images: Tensor = decoder(leak.features.float())
    return images


def load_inverse(model: nn.Module, path: str | Path | None = None) -> Inverse:
    """The inverse in `path`, or the embedded one; refused unless it was trained for exactly this backbone."""
    if path is None:
        with as_file(files("unsum.invert") / "weights" / "default-inverse.safetensors") as embedded:
            found = _read(embedded)
    else:
        found = _read(Path(path))
    expected, actual = found.card["backbone"], backbone_fingerprint(model)
    if expected != actual:
        which = "the embedded inverse" if path is None else f"the inverse in {str(path)!r}"
        raise UnsumError(
            f"There are no pictures for this model: {which} was trained for backbone {expected}, and this one is {actual}."
        )
    return found


def _read(path: Path) -> Inverse:
    try:
        with safe_open(path, framework="pt") as file:
            card = json.loads((file.metadata() or {})["card"])
            weights = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118 (not a dict)
        channels, height, width = card["feature_shape"]
        decoder = Decoder((channels, height, width), tuple((w, blocks) for w, blocks in card["stages"]))
        decoder.load_state_dict(weights)
    except (SafetensorError, OSError, KeyError, ValueError, RuntimeError) as error:
        raise UnsumError(f"{str(path)!r} is not an inverse written by unsum: {error}.") from error
    return Inverse(decoder.eval(), card)
