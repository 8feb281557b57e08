"""What is drawn of uncertain features: blurred pictures instead of wrong ones.

A decoder takes the features it is given for exact ones, and draws an estimate's errors as if they
were on the photo. Beside it stands a small network that reads the same features and how uncertain
they are, and draws a coarse picture, which is what an uncertain estimate still tells. With the
level ρ, the expected squared error of the features over their variance among public photos,

    picture = fine − w₁(ρ) · details of fine + w₂(ρ) · (coarse − fine's own coarse picture)

where both weights are 0 at ρ = 0 and 1 at ρ = 1: exact features are drawn by the decoder alone, and
of features of which nothing is known beyond what any photo has the answer is the mean of the public
photos. It is trained on features as the posterior means of noisy ones are (`FeatureStatistics`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unsum.invert.layout import Layout

PREFIX = "blurred."  # of its weights' names in an inverse's file
MEAN_SIDE = 16  # [pixels] of the mean picture. Chosen by: arbitrary, means of photos are smooth
_WIDTH = 64  # [channels] Chosen by: arbitrary budget, a twentieth of the embedded decoder's file
_DILATIONS = (1, 2, 4, 1)  # of the residual blocks: together they see a map of 16² whole
_COARSER = 4  # [1] times smaller than the picture is the coarse one. Chosen by: arbitrary
# (a, b) of the weights 1 − (1 − ρᵃ)ᵇ. Chosen by: measurement (least squares over answers of
# `adaptive` for two batches of eight training photos of the embedded inverse, five sizes of noise)
_DETAILS, _SMOOTH = (1.07, 0.67), (6.1, 90.0)
_POWERS = (0.25, 0.5, 1.0, 2.0)  # of the level that the blocks are told

# [1] variance of the simulated noise over that of the features, as a power of ten. Chosen by:
# arbitrary, from what no picture shows to what no picture survives
_QUIETEST, _LOUDEST = -3.0, 2.5
_FEW = 7  # [photos] that an attacker may know the mean of. Chosen by: arbitrary, as a report grants
# [shares of the simulated estimates] Chosen by: arbitrary. Means of two samples that could not be
# told apart; and estimates of solvers that know no prior, whose noise stays as it is
_MERGED, _RAW = 0.15, 0.2


class _CoarseBlock(nn.Module):
    """A residual block that is told the level."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, 1, dilation, dilation)
        self.told = nn.Linear(len(_POWERS), 2 * width)
        self.last = nn.Conv2d(width, width, 3, 1, 1)
        nn.init.zeros_(self.last.weight)

    def forward(self, x: Tensor, powers: Tensor) -> Tensor:
        gain, shift = self.told(powers)[:, :, None, None].chunk(2, 1)
        inner: Tensor = self.last(F.silu(self.first(x) * (1 + gain) + shift))
        return x + inner


class Blurred(nn.Module):
    """Draws pictures of size² from features (B, H) and their level (B,)."""

    def __init__(self, layout: Layout, size: int, width: int = _WIDTH) -> None:
        super().__init__()
        self.layout, self.size = layout, size
        self.settings = {"width": width}
        channels, side, _ = layout.grid
        stem: list[nn.Module] = [nn.Conv2d(channels, width, 1), nn.SiLU()]
        if side == 1:
            side = max(2, round(size / 32))
            stem += [nn.ConvTranspose2d(width, width, side), nn.SiLU()]
        patch = 1 << max(0, math.floor(math.log2(max(size / (_COARSER * side), 1))))
        self.coarse_side = side * patch
        self.stem = nn.Sequential(*stem)
        self.blocks = nn.ModuleList(_CoarseBlock(width, dilation) for dilation in _DILATIONS)
        self.last = nn.Sequential(nn.Conv2d(width, 3 * patch**2, 3, 1, 1), nn.PixelShuffle(patch))
        self.gain: Tensor
        self.spread: Tensor
        self.mean: Tensor
        self.register_buffer("gain", torch.ones(()))
        self.register_buffer("spread", torch.ones(()))  # standard deviation of a feature
        self.register_buffer("mean", torch.full((3, MEAN_SIDE, MEAN_SIDE), 0.5))

    def calibrate(self, statistics: FeatureStatistics, photos: Tensor) -> None:
        """From the training features, and the photos (N, 3, s, s) in bytes."""
        square = statistics.variance + statistics.mean.square()
        self.gain.copy_(1 / square.mean().sqrt().clamp(min=1e-12))
        self.spread.copy_(statistics.variance.mean().sqrt())
        parts = [F.adaptive_avg_pool2d(part.float() / 255, MEAN_SIDE) for part in photos.split(512)]
        self.mean.copy_(torch.cat([part.sum(0, keepdim=True) for part in parts]).sum(0))
        self.mean.div_(len(photos))

    def level(self, errors: Tensor) -> Tensor:
        """(B,) from the relative errors expected of posterior means. An error that is no number
        says nothing, and the features are drawn as they are."""
        # of a photo of which nothing is known, whose features are expected at their mean
        unknown = (self.gain * self.spread).square()
        square = errors.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).square()
        return (square / unknown.clamp_min(1e-12)).clamp_max(1)

    def forward(self, features: Tensor, level: Tensor) -> Tensor:
        """(B, 3, c, c) coarse pictures."""
        maps = self.layout.as_map(features * self.gain)
        x = self.stem(maps.sign() * maps.abs().log1p())
        powers = torch.stack([level**power for power in _POWERS], 1)
        for block in self.blocks:
            x = block(x, powers)
        mean = _resized(self.mean[None].to(x), self.coarse_side)
        coarse: Tensor = mean + _column(1 - level).sqrt() * self.last(x)
        return coarse

    def blank(self, size: int) -> Tensor:
        """(3, size, size) the mean of the photos, as it is drawn where nothing is known."""
        return _resized(_resized(self.mean[None], self.coarse_side), size)[0].clamp(0, 1)

    def draw(self, features: Tensor, level: Tensor, fine: Tensor) -> Tensor:
        """Pictures, from what a decoder made of the features."""
        own = _resized(F.adaptive_avg_pool2d(fine, self.coarse_side), fine.shape[-1])
        coarse = _resized(self(features, level), fine.shape[-1])
        details, smooth = (_column(_share(level, *powers)) for powers in (_DETAILS, _SMOOTH))
        return (fine - details * (fine - own) + smooth * (coarse - own)).clamp(0, 1)


def _share(level: Tensor, a: float, b: float) -> Tensor:
    return 1 - (1 - level**a) ** b


def _column(values: Tensor) -> Tensor:
    return values[:, None, None, None]


def _resized(images: Tensor, size: int) -> Tensor:
    return F.interpolate(images, (size, size), mode="bilinear", align_corners=False)


@dataclass(frozen=True)
class FeatureStatistics:
    """Mean and variance (H,) of each feature over public photos."""

    mean: Tensor
    variance: Tensor
    non_negative: bool

    @classmethod
    def of(cls, features: Tensor) -> FeatureStatistics:
        """From the features (N, H) of some photos."""
        features = features.float()
        return cls(features.mean(0), features.var(0), bool((features >= 0).all()))

    def estimated(
        self, features: Tensor, generator: torch.Generator, draws: int = 1
    ) -> tuple[Tensor, Tensor]:
        """What an attack would answer where noise of a random size is on the features (B, H), and
        the level of each: the posterior mean of a normal prior, whose mean is guessed from all
        photos and a few of the others. Draw after draw, (draws B, H) and (draws B,)."""
        B, device = len(features), features.device

        def uniform() -> Tensor:
            return torch.rand(draws * B, 1, device=device, generator=generator)

        few = torch.rand(B, B, device=device, generator=generator).fill_diagonal_(-1.0)
        few = (few.argsort(1).argsort(1) >= B - min(_FEW, B)).to(features)
        guessed = few @ features / few.sum(1, keepdim=True)
        features, guessed = features.repeat(draws, 1), guessed.repeat(draws, 1)
        prior = self.mean + uniform() * (guessed - self.mean)
        merged, raw = uniform() < _MERGED, uniform() < _RAW
        partner = features.roll(1, 0)
        features = torch.where(merged, (features + partner) / 2, features)
        # the mean of two samples has half the variance of one, and is as far from either
        variance = torch.where(merged, self.variance / 2, self.variance)
        power = _QUIETEST + (_LOUDEST - _QUIETEST) * uniform()
        noise = self.variance.mean() * 10**power
        drawn = torch.randn(features.shape, device=device, generator=generator)
        noisy = features + noise.sqrt() * drawn
        share = variance / (variance + noise).clamp_min(1e-30)
        means = prior + share * (noisy - prior)
        means = means.clamp_min(0) if self.non_negative else means
        left = (share * noise).sum(1) + torch.where(merged[:, 0], variance.sum(1), 0.0)
        level = (left / self.variance.sum().clamp_min(1e-30)).clamp_max(1)
        return torch.where(raw & (power < 0), noisy, means), level
