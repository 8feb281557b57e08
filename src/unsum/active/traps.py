"""Trap weights: rows that hardly any input excites, so that the one it does is alone in the row's
gradient.

Half of a row's entries, chosen at random, are −|z|, the other half f·|z| with the same magnitudes,
z ~ N(0, σ²), f a little below one: ⟨w, x⟩ = Σ z (f x_p − x_n) is negative for most inputs, the more
so the brighter they are. Where one sample s alone passes the ReLU,

    ∇W_i = δ_s x_s,   ∇b_i = δ_s,   x_s = ∇W_i / ∇b_i.

**Which rows saw one sample?** Every row acts on the loss in a direction of its own (an angle
between two patterns), so two rows that the same *several* samples excite mix them differently, and
two rows that agree on an input saw that one alone, or several that resemble each other (see
`method`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unsum.active.imprint import PHOTO_BRIGHTNESS
from unsum.active.method import (
    SERVERS,
    Reader,
    Recovered,
    counted,
    gradients_of,
    in_range,
    on_grid,
    random_patterns,
)
from unsum.certify.claim import grant_each
from unsum.errors import UnsumError
from unsum.update import Update

_CONTRAST = 0.23  # of public photos: mean spread within one photo
_RARE = 1.5  # standard deviations above the mean at which a fitted row fires
_AGREE = 1e-4  # relative distance of two readings of one sample, or rounding where that is more
_TOO_ROUGH = 1e-2  # relative error of a reading beyond which it is not used
_RESEMBLES = 0.2  # relative distance within which two readings may be of siblings
_SKETCH = 64  # random projections that readings are compared by


@SERVERS.register(
    "traps", summary="rows that single samples excite (trap weights)", needs="to change the model"
)
def traps(
    shape: tuple[int, ...],
    generator: torch.Generator,
    auxiliary: Tensor | None,
    *,
    rows: int = 256,
    factor: float = 0.0,
    sigma: float = 0.5,
    strength: float = 0.1,
) -> tuple[nn.Module, Reader]:
    """`factor` is f, 0.95 as published; 0 fits it to the number of pixels, since one for all sizes
    fires always or never."""
    size = int(torch.Size(shape).numel())
    if rows < 2 or not sigma > 0 or not strength > 0 or not 0 <= factor <= 1:
        raise UnsumError(
            "Traps need at least two rows, a positive sigma and strength, and a factor between 0 "
            "and 1."
        )
    bright, contrast = PHOTO_BRIGHTNESS[0], _CONTRAST
    if auxiliary is not None:
        bright, contrast = float(auxiliary.mean()), float(auxiliary.flatten(1).std(1).mean())
    f = factor or fitted_factor(size, bright, contrast)
    weight = trap_rows(rows, size, f, sigma, generator)
    angles = 2 * math.pi * torch.rand(rows, generator=generator)
    outgoing = torch.stack([angles.cos(), angles.sin()], 1) / (sigma * math.sqrt(size) * rows)
    photos = (
        ""
        if auxiliary is None
        else f"{len(auxiliary)} auxiliary inputs, for their brightness and contrast"
    )
    layer = TrapLayer(weight, outgoing, random_patterns(2, shape, generator), strength)
    return layer, TrapReader("traps", shape, rows, f, photos=photos)


def fitted_factor(size: int, bright: float, contrast: float) -> float:
    """f at which a row's mean response lies 1.5 of its standard deviations below zero, for inputs
    of independent pixels.

    Over D/2 pairs the mean is −(1 − f) E|z| x̄ D/2 and the spread σ √(D/2 · 2 contrast²), with E|z|
    = σ √(2/π).
    """
    short = (
        _RARE
        * contrast
        * math.sqrt(2)
        / (math.sqrt(2 / math.pi) * max(bright, 1e-3) * math.sqrt(size / 2))
    )
    return max(1 - short, 0.0)


def trap_rows(
    rows: int, size: int, factor: float, sigma: float, generator: torch.Generator
) -> Tensor:
    """(rows, size): every row a random half of −|z| and a half of f |z|, the same magnitudes; an
    odd entry stays 0."""
    half = size // 2
    weight = torch.zeros(rows, size)
    # one permutation at a time: a matrix of them would need twice the memory of the layer
    for row in weight:
        order = torch.randperm(size, generator=generator)
        magnitude = sigma * torch.randn(half, generator=generator).abs()
        row[order[:half]], row[order[half : 2 * half]] = -magnitude, factor * magnitude
    return weight


class TrapLayer(nn.Module):
    """x + strength · Σ_i a_i (cos θ_i · pattern + sin θ_i · other pattern), scaled to be small
    beside x."""

    outgoing: Tensor
    patterns: Tensor

    def __init__(self, weight: Tensor, outgoing: Tensor, patterns: Tensor, strength: float) -> None:
        super().__init__()
        self.rows = nn.utils.skip_init(nn.Linear, weight.shape[1], weight.shape[0])
        self.register_buffer("outgoing", outgoing)
        self.register_buffer("patterns", strength * patterns)
        with torch.no_grad():
            self.rows.weight.copy_(weight)
            self.rows.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        activations = self.rows(x.flatten(1)).relu()
        added: Tensor = activations @ self.outgoing @ self.patterns
        return x + added.view_as(x)


@dataclass(frozen=True, repr=False)
class TrapReader(Reader):
    rows: int
    factor: float

    @property
    def summary(self) -> str:
        return f"{self.rows} rows, factor {self.factor:.4g}"

    def read(self, update: Update) -> Recovered:
        """Row by row the ratio; readings that rows agree on, or that lie on the grid of 8-bit
        pictures, are exact."""
        W, b = gradients_of(update, "rows")
        dtype = update.gradients["front.rows.weight"].dtype
        fired = b.abs() > 1e-12 * b.abs().max()
        places = fired.nonzero().flatten()
        x = W[places] / b[places, None]
        errors = 8 * torch.finfo(dtype).eps * b.abs().max() / b[places].abs()
        usable = in_range(x, self.pixel_range) & (errors < _TOO_ROUGH)
        candidates = usable.nonzero().flatten()
        groups, lone = _agreeing(x[candidates], errors[candidates], on_grid(x[candidates]))
        chosen = candidates[groups]
        proved = on_grid(x[chosen]) | (counted(update, len(chosen)) and _well_apart(x[chosen]))
        sure = grant_each(errors[chosen].masked_fill(~proved, math.inf), above=True)
        notes = [
            f"Of {self.rows} rows {len(places)} were excited; {int(sure.sum())} samples were alone "
            f"in one and read exactly. {lone} other readings are possible pictures that nothing "
            f"vouches for, and {len(places) - len(candidates)} are mixtures."
        ]
        if not bool(sure.all()):
            notes.append(
                f"{int((~sure).sum())} more are one sample, or several that resemble each other, "
                "whose mean is shown: off the grid of 8-bit pictures only the batch size would "
                "tell."
            )
        if len(chosen) == 0:  # an answer all the same, and a flag that says what it is worth
            chosen = errors.argsort()[:1]
            errors = torch.full_like(errors, math.inf)
            sure = grant_each(errors[chosen], above=False)
        return Recovered(
            x[chosen].float().view(-1, *self.shape), sure, errors[chosen], places[chosen], notes
        )


def _well_apart(x: Tensor) -> bool:
    """Whether no reading resembles another, as a sample resembles its mean with a sibling."""
    apart = torch.cdist(x, x).fill_diagonal_(math.inf) / x.norm(dim=1).clamp_min(1e-30)
    return not bool((apart < _RESEMBLES).any())


def _agreeing(x: Tensor, errors: Tensor, grid: Tensor) -> tuple[Tensor, int]:
    """Indices of the best reading of every sample that two rows agree on or the grid proves, and
    how many others there are."""
    generator = torch.Generator().manual_seed(0)
    sketch = torch.randn(x.shape[1], _SKETCH, generator=generator, dtype=torch.float64).to(
        x
    ) / math.sqrt(_SKETCH)
    seen = x @ sketch
    apart = torch.cdist(seen, seen) / seen.norm(dim=1).clamp_min(1e-30)
    limit = torch.maximum(errors[:, None] + errors, torch.full_like(apart, _AGREE))
    alike = apart < limit
    proved = (alike.sum(1) > 1) | grid
    left, best = proved.clone(), []
    # the most precise reading first; the others of its sample leave with it
    for i in torch.argsort(errors).tolist():
        if left[i]:
            best.append(i)
            left &= ~alike[i]
    return torch.tensor(best, dtype=torch.long, device=x.device), int((~proved).sum())
