"""What is preferred among pictures that explain the gradient equally well. Each is (R,) values for
R restarts, unweighted.

TotalVariation     mean |x[i+1, j] − x[i, j]| + mean |x[i, j+1] − x[i, j]|
SquaredNorm        mean over samples of ‖x‖²
BatchNormPrior     Σ over BatchNorm layers of ‖mean(x) − running mean‖ + ‖var(x) − running var‖
GroupConsistency   mean over samples of ‖x − mean over restarts of x, shifted onto each other‖²
FeatureTerm        ‖feat(x) − f̂‖² / ‖f̂‖²  or  mean over samples of 1 − cos(feat(x), f̂)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from unsum.errors import needed
from unsum.gradients import TINY, Distance

_FURTHEST = 8  # the side over this


@dataclass(frozen=True)
class Scene:
    """A candidate batch as a regularizer sees it: restarts in front, all differentiable but for
    `consensus`."""

    pictures: Tensor  # (R, B, c, h, w)
    consensus: Tensor  # (B, c, h, w) mean of the pictures over all restarts, a constant
    features: Tensor | None = None  # (R, B, H) what reaches the head
    # (R,) distance to BatchNorm's running statistics, summed over layers
    norm_gap: Tensor | None = None


@dataclass(frozen=True)
class Regularizer(ABC):
    """What costs something to look at is asked for: features, BatchNorm's statistics, the mean over
    restarts."""

    weight: float
    sees_features: ClassVar[bool] = False
    sees_norms: ClassVar[bool] = False
    sees_group: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, scene: Scene) -> Tensor: ...


class TotalVariation(Regularizer):
    def __call__(self, scene: Scene) -> Tensor:
        down, across = scene.pictures.diff(dim=-2), scene.pictures.diff(dim=-1)
        return down.abs().flatten(1).mean(1) + across.abs().flatten(1).mean(1)


class SquaredNorm(Regularizer):
    def __call__(self, scene: Scene) -> Tensor:
        return scene.pictures.square().flatten(2).sum(2).mean(1)


class BatchNormPrior(Regularizer):
    sees_norms = True

    def __call__(self, scene: Scene) -> Tensor:
        return needed(scene.norm_gap, "What BatchNorm's layers read")


class GroupConsistency(Regularizer):
    """The mean is a constant within a step: every restart is drawn to it, none drags it along."""

    sees_group = True

    def __call__(self, scene: Scene) -> Tensor:
        return (scene.pictures - scene.consensus).square().flatten(2).sum(2).mean(1)


@dataclass(frozen=True, eq=False)
class FeatureTerm(Regularizer):
    features: Tensor = field(repr=False)  # (B, H) as separated
    distance: Distance = "l2"
    sees_features = True

    def __call__(self, scene: Scene) -> Tensor:
        features = needed(scene.features, "What the head reads of the pictures")
        if self.distance == "cosine":
            return 1 - cosine_similarity(features, self.features.expand_as(features), dim=2).mean(1)
        apart = (features - self.features).square().flatten(1).sum(1)
        return apart / self.features.square().sum().clamp_min(TINY)


def registered_mean(pictures: Tensor) -> Tensor:
    """(B, c, h, w) the mean over R seeds of (R, B, c, h, w) pictures, each shifted to agree best
    with the plain mean.

    Gradients say what is in a picture better than where it is. The published registration finds a
    flow with a network of its own; here each picture is shifted as a whole, by the peak of its
    correlation with the plain mean over seeds.
    """
    mean = pictures.mean(0)
    h, w = mean.shape[-2:]
    far = (max(1, h // _FURTHEST), max(1, w // _FURTHEST))
    flat, own = (
        mean - mean.mean((-2, -1), keepdim=True),
        pictures - pictures.mean((-2, -1), keepdim=True),
    )
    correlation = torch.fft.irfft2(
        torch.fft.rfft2(flat) * torch.fft.rfft2(own).conj(), s=(h, w)
    ).sum(-3)
    near = torch.roll(correlation, far, dims=(-2, -1))[..., : 2 * far[0] + 1, : 2 * far[1] + 1]
    peak, width = near.flatten(-2).argmax(-1), 2 * far[1] + 1
    down, across = peak // width - far[0], peak % width - far[1]  # (R, B)
    rows = (torch.arange(h, device=pictures.device) - down[..., None]) % h
    columns = (torch.arange(w, device=pictures.device) - across[..., None]) % w
    moved = torch.take_along_dim(pictures, rows[:, :, None, :, None], dim=-2)
    return torch.take_along_dim(moved, columns[:, :, None, None, :], dim=-1).mean(0)
