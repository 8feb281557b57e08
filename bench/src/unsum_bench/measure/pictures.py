"""Features → pictures → their scores, many at a time and on the device that holds them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from unsum.errors import UnsumError, needed
from unsum.invert import Inverse
from unsum.invert.layout import feature_layout
from unsum.invert.method import load_inverse
from unsum.models.built import backbone_fingerprint
from unsum.models.lpips import lpips_network, lpips_status, weights_file
from unsum.score.pictures import structural_similarity
from unsum_bench.material import Material

_AT_ONCE = 64  # pictures decoded and scored together
_GRAY = 0.5  # the picture of a sample that was not found
_LEAST = 1e-10  # mean squared error below which a picture counts as 100 dB


@dataclass(frozen=True)
class PictureScores:
    """An inverse, or the reason why there is none."""

    decoder: nn.Module | None
    reason: str = ""

    def required(self) -> PictureScores:
        if self.decoder is None:
            raise UnsumError(self.reason)
        return self

    @torch.no_grad()
    def __call__(self, features: Tensor) -> Tensor:
        """(B, 3, h, w) in [0, 1]."""
        decoder = needed(self.decoder, "The inverse")
        return torch.cat([decoder(part) for part in features.split(_AT_ONCE)]).clamp(0, 1)

    def scores(self, features: Tensor, missing: Tensor, images: Tensor) -> dict[str, float]:
        """Mean PSNR, SSIM and LPIPS over the batch's pictures; nothing without an inverse."""
        if self.decoder is None:
            return {}
        drawn = self(features)
        drawn[missing] = _GRAY
        errors = (drawn - images).square().flatten(1).mean(1).clamp_min(_LEAST)
        found = {
            "psnr": float((-10 * errors.log10()).mean()),
            "ssim": float(structural_similarity(drawn, images)),
        }
        if lpips_status() is None:
            network = lpips_network(str(images.device), str(weights_file()))
            parts = zip(drawn.split(_AT_ONCE), images.split(_AT_ONCE), strict=True)
            distances = torch.cat([network(a, b, normalize=True).flatten() for a, b in parts])
            found["lpips"] = float(distances.mean())
        return found


@lru_cache(maxsize=4)
def pictures_for(model: nn.Module, size: int, material: Material) -> PictureScores:
    """The inverse of the run for photos of this size, or the embedded one where it belongs to this
    model.

    A convolutional inverse of another size reads the larger map as it is.
    """
    try:
        inverse = (
            load_inverse(model)
            if material.inverse is None
            else _given(model, size, material.inverse)
        )
    except UnsumError as reason:
        return PictureScores(None, str(reason))
    return PictureScores(inverse.decoder.to(material.device))


def _given(model: nn.Module, size: int, path: str) -> Inverse:
    inverse = Inverse.load(Path(path))
    if inverse.layer is not None or inverse.card["backbone"] != backbone_fingerprint(model):
        raise UnsumError(
            f"The inverse in {path!r} is not one of this network's features; give another with "
            "--inverse."
        )
    return inverse.at(size, feature_layout(model, size))
