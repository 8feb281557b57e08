"""The learned inverse: a decoder trained on public photos turns features back into pictures."""

from __future__ import annotations

import math
from importlib.resources import as_file, files
from pathlib import Path

import torch
from torch import Tensor, nn

from unsum.errors import UnsumError
from unsum.head import find_head
from unsum.invert.method import INVERTERS, Inverse
from unsum.leak import Leak
from unsum.models.fingerprint import backbone_fingerprint

_AT_ONCE = 32  # pictures decoded together, so that a large batch needs no more memory than a small one


@INVERTERS.register("learned", summary="decoder trained on public photos", needs="an inverse trained for this backbone")
def learned(model: nn.Module, leak: Leak, *, inverse: str | Path | Inverse | None) -> Tensor:
    """(B, 3, h, w) in [0, 1]: the decoder's picture for each sample's features."""
    loaded = inverse if isinstance(inverse, Inverse) else load_inverse(model, inverse)
    read = leak.features
    if loaded.layer is not None:
        if loaded.layer not in leak.inner:
            raise UnsumError(
                f"This inverse reads what {loaded.layer!r} reads, which this leak does not hold; peel it first "
                f"(unsum.attack does, or unsum.peel with method='residual')."
            )
        read = leak.inner[loaded.layer].flatten(1)
    decoder = loaded.decoder.to(read.device)
    with torch.no_grad():
        return torch.cat([decoder(features) for features in read.float().split(_AT_ONCE)])


def load_inverse(model: nn.Module, path: str | Path | None = None) -> Inverse:
    """The inverse in `path`, or the embedded one; refused unless it was trained for exactly this backbone."""
    if path is None:
        with as_file(files("unsum.invert") / "weights" / "default-inverse.safetensors") as embedded:
            found = Inverse.load(embedded)
    else:
        found = Inverse.load(Path(path))
    expected, actual = found.card["backbone"], backbone_fingerprint(model)
    if expected != actual:
        which = "the embedded inverse" if path is None else f"the inverse in {str(path)!r}"
        raise UnsumError(
            f"There are no pictures for this model: {which} was trained for backbone {expected}, and this one is {actual}."
        )
    if found.layer is not None:
        return found
    features, reads = find_head(model)[1].in_features, math.prod(found.card["layout"]["shape"])
    if features != reads:
        raise UnsumError(
            f"There are no pictures for this model: the inverse reads {reads} features of photos of {found.card['size']}², "
            f"and this head {features}."
        )
    return found
