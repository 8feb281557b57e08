"""How features scatter about their mean: correlated between channels, and smooth over places.

Where the head reads a flattened map of c channels and h × w places, as after a convolution,
features of inputs that anyone could have are taken apart into channels that do not correlate
(rotation U) and into waves over the places (an orthonormal DCT). Their covariance is then

    Σ = (U ⊗ DCT)ᵀ diag(λ) (U ⊗ DCT),        λ_kw = κ_k π_w / Σ π

with κ the eigenvalues of the channels' covariance and π the power of every wave: few numbers, which
few inputs show. Features without places have channels alone. The channels' covariance is drawn
towards a multiple of the identity, by as much as so few inputs take (Chen, Wiesel, Eldar and Hero
2010).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unsum.photos import cosines

# [channels] whose eigenvectors are looked for. Chosen by: arbitrary budget (two seconds)
_MOST_CHANNELS = 2048


@dataclass(frozen=True)
class Scatter:
    """The covariance of features about their mean, by its eigenvectors."""

    channels: Tensor  # (c, c) U
    down: Tensor  # (h, h) DCT
    across: Tensor  # (w, w) DCT
    variances: Tensor  # (H,) λ, in the order of `rotate`

    @classmethod
    def of(
        cls, features: Sequence[Tensor], mean: Tensor, shape: tuple[int, ...], inputs: int
    ) -> Scatter | None:
        """None where there are too many channels.

        Args:
            features: (n, H) each, of as much weight.
            mean: (H,)
            shape: (c, h, w) of what is flattened, or (H,).
            inputs: how many of the features are of different inputs.
        """
        c, h, w = (shape[0], 1, 1) if len(shape) == 1 else shape
        if c > _MOST_CHANNELS:
            return None
        down, across = cosines(h).to(mean), cosines(w).to(mean)
        covariance, power = mean.new_zeros(c, c), mean.new_zeros(h, w)
        for part in features:
            waves = down @ (part - mean).unflatten(1, (c, h, w)) @ across.T
            flat = waves.transpose(0, 1).flatten(1)
            covariance += flat @ flat.T / (len(part) * len(features))
            power += waves.square().sum((0, 1)) / (len(part) * len(features))
        total = power.sum()
        if not bool(total > 0):
            return None
        values, vectors = torch.linalg.eigh(_shrunk(covariance, inputs * h * w))
        variances = values.clamp_min(0)[:, None, None] * power / total
        return cls(vectors.T.contiguous(), down, across, variances.flatten())

    def rotate(self, rows: Tensor) -> Tensor:
        """(n, H) in coordinates that do not correlate."""
        waves = self.down @ self._maps(rows) @ self.across.T
        return torch.einsum("kc,nchw->nkhw", self.channels, waves).flatten(1)

    def back(self, rotated: Tensor) -> Tensor:
        """(n, H) whose `rotate` this is."""
        waves = torch.einsum("kc,nkhw->nchw", self.channels, self._maps(rotated))
        return (self.down.T @ waves @ self.across).flatten(1)

    def scaled(self, size: float) -> Scatter:
        """The same of features that are `size` times as large."""
        return replace(self, variances=size**2 * self.variances)

    def _maps(self, rows: Tensor) -> Tensor:
        return rows.unflatten(1, (len(self.channels), len(self.down), len(self.across)))


def _shrunk(covariance: Tensor, samples: int) -> Tensor:
    """(c, c) the oracle approximating shrinkage of a covariance of `samples` samples."""
    c = len(covariance)
    trace, square = float(covariance.trace()), float(covariance.square().sum())
    spread = (samples + 1 - 2 / c) * (square - trace**2 / c)
    share = ((1 - 2 / c) * square + trace**2) / spread if spread > 0 else math.inf
    share = min(max(share, 0.0), 1.0)
    even = torch.eye(c, dtype=covariance.dtype, device=covariance.device) * trace / c
    return (1 - share) * covariance + share * even
