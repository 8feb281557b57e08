"""What is preferred among pictures that explain the gradient equally well. Each is (R,) values for R restarts, unweighted.

TotalVariation     mean |x[i+1, j] − x[i, j]| + mean |x[i, j+1] − x[i, j]|
SquaredNorm        mean over samples of ‖x‖²
BatchNormPrior     Σ over BatchNorm layers of ‖mean(x) − running mean‖ + ‖var(x) − running var‖
GroupConsistency   mean over samples of ‖x − mean over restarts of x, shifted onto each other‖²
FeatureTerm        ‖feat(x) − f̂‖² / ‖f̂‖²  or  mean over samples of 1 − cos(feat(x), f̂)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor
from torch.nn.functional import cosine_similarity

from unsum.gradients import TINY, Distance
from unsum.match.scene import Scene


class Regularizer(Protocol):
    """What costs something to look at is asked for: features, BatchNorm's statistics, the mean over restarts."""

    sees_features: ClassVar[bool]
    sees_norms: ClassVar[bool]
    sees_group: ClassVar[bool]

    @property
    def weight(self) -> float: ...

    def __call__(self, scene: Scene) -> Tensor: ...


@dataclass(frozen=True)
class TotalVariation:
    weight: float
    sees_features: ClassVar[bool] = False
    sees_norms: ClassVar[bool] = False
    sees_group: ClassVar[bool] = False

    def __call__(self, scene: Scene) -> Tensor:
        down, across = scene.pictures.diff(dim=-2), scene.pictures.diff(dim=-1)
        return down.abs().flatten(1).mean(1) + across.abs().flatten(1).mean(1)


@dataclass(frozen=True)
class SquaredNorm:
    weight: float
    sees_features: ClassVar[bool] = False
    sees_norms: ClassVar[bool] = False
    sees_group: ClassVar[bool] = False

    def __call__(self, scene: Scene) -> Tensor:
        return scene.pictures.square().flatten(2).sum(2).mean(1)


@dataclass(frozen=True)
class BatchNormPrior:
    weight: float
    sees_features: ClassVar[bool] = False
    sees_norms: ClassVar[bool] = True
    sees_group: ClassVar[bool] = False

    def __call__(self, scene: Scene) -> Tensor:
        assert scene.norm_gap is not None
        return scene.norm_gap


@dataclass(frozen=True)
class GroupConsistency:
    """The mean is a constant within a step: every restart is drawn to it, none drags it along."""

    weight: float
    sees_features: ClassVar[bool] = False
    sees_norms: ClassVar[bool] = False
    sees_group: ClassVar[bool] = True

    def __call__(self, scene: Scene) -> Tensor:
        return (scene.pictures - scene.consensus).square().flatten(2).sum(2).mean(1)


@dataclass(frozen=True, eq=False)
class FeatureTerm:
    weight: float
    features: Tensor  # (B, H) as separated
    distance: Distance = "l2"
    sees_features: ClassVar[bool] = True
    sees_norms: ClassVar[bool] = False
    sees_group: ClassVar[bool] = False

    def __repr__(self) -> str:
        return f"FeatureTerm(weight={self.weight}, distance={self.distance!r})"

    def __call__(self, scene: Scene) -> Tensor:
        assert scene.features is not None
        if self.distance == "cosine":
            return 1 - cosine_similarity(scene.features, self.features.expand_as(scene.features), dim=2).mean(1)
        apart = (scene.features - self.features).square().flatten(1).sum(1)
        return apart / self.features.square().sum().clamp_min(TINY)
