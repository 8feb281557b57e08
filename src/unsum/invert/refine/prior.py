"""In which way pictures may change: the unknowns of a refinement, and the pictures they make.

Features and gradients leave many directions of a picture open, and an optimizer fills them with
whatever it steps into first. Pixels of equal rank fill them with noise. The other choices make
natural changes the short ones:

    spectrum         x = x₀ + M F⁻¹(S · F u): S falls with 1/frequency, as the spectra of photos do,
                     and M moves the three colors
                     rather together than apart
    decoder-input    x = D(f̂ + u): what the inverse can draw
    decoder-weights  x = D_{θ+u}(f̂): what the inverse could have drawn
    color           x = a x₀ + c with one contrast and one color for the whole batch, which
                    train-mode BatchNorm nearly hides
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from unsum.errors import UnsumError, check_name
from unsum.invert.method import Inverse
from unsum.leak import Leak

Prior = Literal["spectrum", "pixels", "decoder-input", "decoder-weights", "color"]
PRIORS: tuple[Prior, ...] = get_args(Prior)
# Cycles per pixel below which the spectrum of a correction stays level: its error is not one of
# brightness alone.
_FLAT = 1 / 64
_APART = 0.4  # how freely colors move apart, where 1 is as freely as together


@dataclass(frozen=True)
class Correction:
    """Unknowns to optimize, the pictures they make, and the step of Adam that suits them."""

    unknowns: list[Tensor]
    pictures: Callable[[], Tensor]
    rate: float


def correction(prior: Prior, images: Tensor, leak: Leak, inverse: Inverse | None) -> Correction:
    """The unknowns of `prior`, which begin at `images` (at the inverse's own pictures for the
    decoder's priors)."""
    check_name("prior of refinement", prior, PRIORS)
    if prior.startswith("decoder"):
        if inverse is None:
            raise UnsumError(
                f"The prior {prior!r} draws with the inverse; pass inverse=load_inverse(model)."
            )
        features = leak.features.detach().to(images)
        decoder = (
            copy.deepcopy(inverse.decoder)
            .to(images.device)
            .requires_grad_(prior == "decoder-weights")
        )
        if prior == "decoder-weights":
            return Correction(list(decoder.parameters()), lambda: decoder(features), 1e-4)
        changed = features.clone().requires_grad_(True)
        return Correction([changed], lambda: decoder(changed), 1e-2)
    if prior == "color":
        contrast = images.new_zeros((), requires_grad=True)
        shift = images.new_zeros(1, images.shape[1], 1, 1, requires_grad=True)
        return Correction([contrast, shift], lambda: images * (1 + contrast) + shift, 1e-2)
    change = torch.zeros_like(images, requires_grad=True)
    if prior == "pixels":
        return Correction([change], lambda: images + change, 1e-2)
    S, M = spectrum(images), colors(images)
    return Correction(
        [change],
        lambda: images + mix(M, torch.fft.irfft2(S * torch.fft.rfft2(change), s=images.shape[2:])),
        1e-3,
    )


def spectrum(images: Tensor) -> Tensor:
    """(h, w//2 + 1) 1/frequency, level below 1/64 cycles per pixel, of mean one."""
    rows = torch.fft.fftfreq(images.shape[2], device=images.device)[:, None]
    columns = torch.fft.rfftfreq(images.shape[3], device=images.device)[None]
    S = (rows.square() + columns.square() + _FLAT**2).rsqrt()
    return S / S.mean()


def colors(images: Tensor) -> Tensor:
    """(c, c) one along what all channels share, less across it."""
    channels = images.shape[1]
    shared = images.new_full((channels, channels), 1 / channels)
    return shared + _APART * (torch.eye(channels).to(images) - shared)


def mix(M: Tensor, pictures: Tensor) -> Tensor:
    return torch.einsum("ij,bjhw->bihw", M, pictures)
