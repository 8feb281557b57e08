"""Synthetic last layers with known truth: a linear model whose inputs play the features of a
batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import unsum
from unsum.score import score_samples

KINDS = ("distinct", "random", "half", "same", "smooth", "mixup", "both")


@dataclass(frozen=True)
class Case:
    model: nn.Linear
    update: unsum.Update
    features: Tensor
    targets: Tensor

    def worst_error(self, leak: unsum.Leak) -> float:
        """The largest relative feature error of any sample, true or found.

        With the right batch size samples are paired one to one. Otherwise each is compared with the
        nearest on the other side: n equal samples send the very gradient of one, so their number
        alone is not the attack's mistake.
        """
        if leak.batch_size == len(self.features):
            return max(row.feature_error for row in score_samples(leak, features=self.features))
        true, found = self.features.double(), leak.features.double()
        distances = torch.cdist(true, found) / true.norm(dim=1, keepdim=True)
        return float(torch.maximum(distances.min(0).values.max(), distances.min(1).values.max()))

    @property
    def closest(self) -> float:
        """The smallest relative distance between two samples; infinite for one."""
        features = self.features.double()
        distances = torch.cdist(features, features) / features.norm(dim=1)
        distances.fill_diagonal_(torch.inf)
        return float(distances.min())


def make_case(
    B: int,
    C: int,
    H: int,
    kind: str = "random",
    *,
    seed: int = 0,
    spread: float = 0.5,
    margin: float = 0.0,
    bias: bool = True,
    device: str = "cpu",
) -> Case:
    """A batch of one kind of labels.

    `spread` is how much samples differ from what they share (features of real networks share a
    lot); `margin` raises each sample's own logit by that much, as training does.
    """
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randn(H, generator=generator)
    features = (shared + spread * torch.randn(B, H, generator=generator)).relu()
    with torch.random.fork_rng(devices=[]):
        # another stream than the features': equal bits would make W and F related
        torch.manual_seed(seed + 1_000_003)
        model = nn.Linear(H, C, bias=bias)
    labels = hard_labels(B, C, kind, generator)
    if margin:
        _teach(model, features, labels, margin)
    targets = soft_targets(labels, C, kind, generator)
    model, features = model.to(device), features.to(device)
    return Case(model, unsum.capture(model, features, targets.to(device)), features, targets)


def hard_labels(B: int, C: int, kind: str, generator: torch.Generator) -> Tensor:
    if kind == "distinct":
        # as distinct as B allows
        return torch.randperm(C, generator=generator).repeat(1 + B // C)[:B]
    labels = torch.randint(C, (B,), generator=generator)
    if kind == "same":
        labels[:] = labels[0]
    if kind == "half":
        labels[: (B + 1) // 2] = labels[0]
    return labels


def soft_targets(labels: Tensor, C: int, kind: str, generator: torch.Generator) -> Tensor:
    rows = nn.functional.one_hot(labels, C).float()
    if kind in ("mixup", "both"):
        weight = torch.rand(len(labels), 1, generator=generator)
        rows = weight * rows + (1 - weight) * rows.roll(1, 0)
    if kind in ("smooth", "both"):
        rows = unsum.smooth_labels(rows, 0.05 + 0.4 * float(torch.rand(1, generator=generator)), C)
    return rows


@torch.no_grad()
def _teach(model: nn.Linear, features: Tensor, labels: Tensor, margin: float) -> None:
    """Raise every sample's own logit by about `margin` over the others'."""
    own = features - features.mean(0)
    for direction, label in zip(
        own / own.square().sum(1, keepdim=True).clamp_min(1e-12), labels, strict=True
    ):
        model.weight[label] += margin * direction
