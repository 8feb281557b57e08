"""RGLA's figure 3: solutions that are right, and twins: others that explain the gradient nearly as
well.

Every draw is a batch of its own. A solution is a twin where the features of one of its samples are
far from every true sample of that label; the figures are those of right solutions and of twins,
beside each other.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from unsum.head import Head
from unsum.running.progress import SILENT
from unsum.separate.rgla.method import RATE, Record, minimize
from unsum.separate.rgla.objective import LogitObjective, stacked
from unsum_bench.declare import Cell
from unsum_bench.material import Material
from unsum_bench.measure.many import HeadRound, backbone, rounds
from unsum_bench.measure.pictures import PictureScores, pictures_for

POINTS = ("error", "w", "entropy", "psnr")
_WRONG = 0.05  # relative error of a sample's features from which its solution is a twin
_SURE = 10.0  # logits of a start near the labels: p = 0.996 for a hundred classes


@dataclass(frozen=True)
class TwinPoint:
    """One batch's end: the worst sample's feature error, the losses, the cross-entropies found and
    true, the pictures' PSNR."""

    error: float
    w: float
    b: float
    entropy: float
    true_entropy: float
    psnr: float  # NaN without an inverse

    @property
    def twin(self) -> bool:
        return not self.error < _WRONG


def twins(cell: Cell, material: Material) -> dict[str, float]:
    """How many solutions are twins, and the medians of both kinds."""
    found = solutions(cell, material)
    kinds = {
        "right": [one for one in found if not one.twin],
        "twin": [one for one in found if one.twin],
    }
    values = {"twins": len(kinds["twin"]) / len(found), "batches": float(len(found))}
    for kind, members in kinds.items():
        for name in ("error", "w", "b", "entropy", "psnr") if members else ():
            middle = statistics.median(getattr(one, name) for one in members)
            values |= {f"{kind}_{name}": middle} if math.isfinite(middle) else {}
    for number, one in enumerate(found):  # the points of the figure
        values |= {
            f"{name}_of_{number}": getattr(one, name)
            for name in POINTS
            if math.isfinite(getattr(one, name))
        }
    return values | {"true_entropy": statistics.median(one.true_entropy for one in found)}


def solutions(cell: Cell, material: Material) -> list[TwinPoint]:
    """RGLA's end on every draw of the cell, in the form and from the start that it declares."""
    options: dict[str, Any] = dict(cell.attack.options)
    played = list(rounds(cell, material))
    heads = [Head.of(one.head, one.update) for one in played]
    parts = [
        LogitObjective.of(head, one.labels, options["objectives"], torch.float32)
        for head, one in zip(heads, played, strict=True)
    ]
    objective = replace(stacked(parts), constant_D=options["constant_D"])
    record = Record(objective, SILENT)
    start = torch.randn(objective.Y.shape, generator=torch.Generator().manual_seed(cell.seed)).to(
        objective.Y
    )
    if options["start"] == "labels":
        start = start + _SURE * objective.Y
    how: dict[str, Any] = {"every": options["steps"], "stop_below": None, "record": record}
    logits = minimize(objective, start, steps=options["steps"], rate=RATE, **how)
    pictures = pictures_for(backbone(cell.network, material), cell.network.size, material)
    answers = zip(played, heads, parts, logits, record.losses[-1].tolist(), strict=True)
    return [
        _solution(one, head, part, found, losses, pictures)
        for one, head, part, found, losses in answers
    ]


@torch.no_grad()
def _solution(
    one: HeadRound,
    head: Head,
    part: LogitObjective,
    logits: Tensor,
    losses: list[float],
    pictures: PictureScores,
) -> TwinPoint:
    D = part.difference(logits.double().softmax(1))
    features = head.mixed_rows(torch.linalg.pinv(D.mT))
    # Samples of one label may change places: each is held against the nearest of its label.
    distances = (
        torch.cdist(one.features.double(), features) / one.features.double().norm(dim=1)[:, None]
    )
    distances[one.labels[:, None] != one.labels] = torch.inf
    w, b, _ = losses
    entropy, true_entropy = (
        float(functional.cross_entropy(z, one.labels)) for z in (logits, one.head(one.features))
    )
    nearest = distances.min(1)
    drawn = pictures.scores(
        features[nearest.indices].float(), torch.zeros_like(nearest.indices).bool(), one.images
    )
    return TwinPoint(
        float(nearest.values.max()), w, b, entropy, true_entropy, drawn.get("psnr", math.nan)
    )
