"""Cocktail Party Attack: the first layer's gradient as a mixture of pictures, unmixed by
independent component analysis.

∇W = δᵀ X: every row is a mixture of the B inputs, as a microphone hears all guests at a party.
Nothing but the batch size is used. The rows are whitened to B (unit power, uncorrelated: Z = M ∇W),
and unit vectors v_i are sought so that s_i = v_i Z look like pictures. Published: Adam, from a
random start, on

    − contrast · Σ_i (E[log cosh s_i] − E[log cosh ν])²       far from Gaussian (negentropy)
    + decorrelation · mean_{i≠j} (e^{T |cos(v_i, v_j)|} − 1)       no guest twice
    + smooth · total variation of x̂_i = v_i M ∇W   (where inputs are pictures)
    + sign · mean of the weaker sign's share of x̂_i       pictures are non-negative
    + sparse · mean |x̂_i|

Two things are done differently by default. Z is made of *differences* of neighboring pixels
(`domain="values"` takes centered pixels): those of different photos are sparse and uncorrelated,
pixels are neither. And the negentropy is maximized by FastICA's fixed point, tens of matrix
products instead of thousands of steps (`start="random"` with `iterations` takes Adam's way). With a
bias the scale and sign of every x̂_i follow from ∇b = δᵀ 1; without one the picture is stretched to
[0, 1]. No certificate.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from unsum.certify.claim import grant_each
from unsum.errors import UnsumError, check_name
from unsum.leak import Leak
from unsum.network.chain import Shape, first_linear
from unsum.network.shapes import picture_shape
from unsum.peel.method import PEELERS, Peeled, PeeledLayer
from unsum.separate.cocktail import descend, filtered, fixed_point, scaled, upright, whitening
from unsum.update import Update

_STARTS = ("fixed-point", "random")
_PUBLISHED = 25_000  # iterations from a random start


@PEELERS.register(
    "cocktail",
    summary="the first layer's gradient unmixed by independent component analysis (Cocktail Party)",
    needs="a first Linear; the batch size",
)
def cocktail(
    model: nn.Module,
    update: Update,
    leak: Leak | None,
    *,
    shape: Shape | None,
    seed: int,
    batch_size: int | None = None,
    start: str = "fixed-point",
    domain: str = "differences",
    iterations: int | None = None,
    learning_rate: float = 1e-3,
    contrast: float = 100.0,
    decorrelation: float = 1.0,
    temperature: float = 5.0,
    smooth: float = 0.0,
    sign: float = 0.0,
    sparse: float = 0.0,
) -> Peeled:
    """Unmix the first layer; the batch size comes from the leak, the update or the option."""
    B = batch_size or (leak.batch_size if leak is not None else update.batch_size)
    if B is None:
        raise UnsumError(
            "'cocktail' needs the batch size; give batch_size= or the leak of unsum.separate."
        )
    check_name("start", start, _STARTS)
    step, flattens = first_linear(model, update)
    picture, guessed = picture_shape(step, flattens, shape)
    if min(step.W.shape) < B:
        raise UnsumError(
            f"'cocktail' cannot unmix {B} samples from a layer of {min(step.W.shape)} units."
        )
    rows = filtered(step.grad_W, domain, picture)
    M = whitening(rows, B)
    Z, uncentered = (M @ rows.double()).float(), M @ step.grad_W.double()
    generator = torch.Generator().manual_seed(seed)
    if start == "random":
        V = torch.randn(B, B, generator=generator).to(Z)
    else:
        V = fixed_point(Z, generator)
    count = iterations if iterations is not None else (_PUBLISHED if start == "random" else 0)
    if count:
        V = descend(
            V, Z, uncentered.float(), iterations=count, learning_rate=learning_rate,
            contrast=contrast, decorrelation=decorrelation, temperature=temperature, sign=sign,
            smooth=smooth, sparse=sparse, picture=picture,
        )  # fmt: skip
    x = upright(nn.functional.normalize(V, dim=1).double() @ uncentered)
    if step.grad_b is not None:
        x, scale = (
            scaled(x, step.grad_W, step.grad_b)[0].float(),
            "the scale of every input comes from the bias",
        )
    else:
        low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
        x, scale = (
            ((x - low) / (high - low).clamp_min(1e-30)).float(),
            "scale and offset of every input are guesses",
        )
    note = f"Independent component analysis carries no certificate; {scale}."
    unknown = torch.full((B,), torch.inf, dtype=torch.float64, device=x.device)
    layer = PeeledLayer(step.name, math.inf, math.inf, x.numel(), step.grad_W.numel())
    exact = grant_each(unknown, above=False)
    return Peeled("cocktail", x.view(B, *picture), unknown, exact, True, [layer], [note, *guessed])
