"""Cocktail Party Attack: the first layer's gradient as a mixture of pictures, unmixed by independent component analysis.

∇W = δᵀ X: every row is a mixture of the B inputs, as a microphone hears all guests at a party. Nothing but the batch size
is used. Each row is centred, the rows are whitened to B (unit variance, uncorrelated: X_w = M ∇W), and unit vectors v_i are
sought so that s_i = v_i X_w look like pictures. Minimised with Adam:

    − mean_i E[log²cosh(a s_i)]/a²       far from Gaussian (negentropy)
    + decorrelation · mean_{i≠j} (e^{T |cos(v_i, v_j)|} − 1)       no guest twice
    + smooth · total variation of s_i   (where inputs are pictures)
    + sign · mean of the weaker sign's share of x̂_i = v_i M ∇W, uncentred       pictures are non-negative
    + sparse · mean |s_i|

The unmixed x̂_i has lost its scale: it is returned with its prevailing sign and stretched to [0, 1]. No certificate.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from unsum.errors import UnsumError
from unsum.leak import Leak
from unsum.peel.chain import first_linear
from unsum.peel.method import PEELERS, Peeled, PeeledLayer
from unsum.peel.shapes import picture_shape
from unsum.update import Update


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
    shape: tuple[int, ...] | None,
    seed: int,
    batch_size: int | None = None,
    iterations: int = 25_000,
    learning_rate: float = 1e-3,
    sharpness: float = 1.0,
    decorrelation: float = 1.0,
    temperature: float = 5.0,
    smooth: float = 0.1,
    sign: float = 1.0,
    sparse: float = 0.0,
) -> Peeled:
    """Unmix the first layer; the batch size comes from the leak, the update or the option."""
    B = batch_size or (leak.batch_size if leak is not None else update.batch_size)
    if B is None:
        raise UnsumError("'cocktail' needs the batch size; give batch_size= or the leak of unsum.separate.")
    step, flattens = first_linear(model, update)
    picture = picture_shape(step, flattens, shape)
    if min(step.W.shape) < B:
        raise UnsumError(f"'cocktail' cannot unmix {B} samples from a layer of {min(step.W.shape)} units.")
    mixed, centred = _whitened(step.grad_W.float(), B)
    generator = torch.Generator().manual_seed(seed)
    V = torch.randn(B, B, generator=generator).to(mixed).requires_grad_()
    optimiser = torch.optim.Adam([V], lr=learning_rate)
    with torch.enable_grad():
        for _ in range(iterations):
            optimiser.zero_grad()
            unit = nn.functional.normalize(V, dim=1)
            loss = -_negentropy(unit @ centred, sharpness) + decorrelation * _alike(unit, temperature)
            loss = loss + sign * _weaker_sign(unit @ mixed) + sparse * (unit @ centred).abs().mean()
            if len(picture) == 3 and smooth:
                loss = loss + smooth * _variation((unit @ centred).view(B, *picture))
            loss.backward()
            optimiser.step()
    x = _stretched(nn.functional.normalize(V.detach(), dim=1) @ mixed)
    unknown = torch.full((B,), torch.inf, dtype=torch.float64, device=x.device)
    layer = PeeledLayer(step.name, math.inf, math.nan, x.numel(), step.grad_W.numel())
    notes = ["Independent component analysis carries no certificate; scale and offset of every input are guesses."]
    return Peeled("cocktail", x.view(B, *picture), unknown, unknown < 1, True, [layer], notes)


def _whitened(grad_W: Tensor, B: int) -> tuple[Tensor, Tensor]:
    """(B, D) whitened mixtures, uncentred and centred, through the small Gram matrix of the centred rows."""
    rows = grad_W - grad_W.mean(1, keepdim=True)
    gram = (rows.double() @ rows.T.double()) / rows.shape[1]
    values, vectors = torch.linalg.eigh(gram)
    whitening = (vectors[:, -B:] / values[-B:].clamp_min(1e-30).sqrt()).T.float()
    return whitening @ grad_W, whitening @ rows


def _negentropy(s: Tensor, a: float) -> Tensor:
    scaled = a * s
    log_cosh = scaled.abs() + torch.log1p(torch.exp(-2 * scaled.abs())) - math.log(2)
    return log_cosh.square().mean() / a**2


def _alike(unit: Tensor, temperature: float) -> Tensor:
    others = ~torch.eye(len(unit), dtype=torch.bool, device=unit.device)
    cosines = (unit @ unit.T)[others]
    return torch.expm1(temperature * cosines.abs()).mean() if len(unit) > 1 else unit.sum() * 0


def _weaker_sign(x: Tensor) -> Tensor:
    positive, negative = x.clamp_min(0).mean(1), (-x).clamp_min(0).mean(1)
    return torch.minimum(positive, negative).mean()


def _variation(pictures: Tensor) -> Tensor:
    return pictures.diff(dim=-1).abs().mean() + pictures.diff(dim=-2).abs().mean()


def _stretched(x: Tensor) -> Tensor:
    x = x * x.mean(1, keepdim=True).sign()
    low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
    return (x - low) / (high - low).clamp_min(1e-30)
