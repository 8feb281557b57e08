"""The figures of a cell: what was found beside the truth, with samples paired by `unsum.score`
alone."""

from __future__ import annotations

import io
import math
import statistics

import torch
from PIL import Image
from torch import Tensor

from unsum.audit.leakage import leakages
from unsum.audit.round import Compared, compare_with_truth
from unsum.head import find_head
from unsum.leak import Leak
from unsum.peel import Peeled
from unsum.score import SampleScore, score_samples
from unsum.separate.rgla.objective import WEIGHTS
from unsum_bench.declare import Cell
from unsum_bench.measure.attack import Answer, FoundLabels
from unsum_bench.measure.round import CellRound

_RECOVERED = 0.01  # relative error of features below which a sample counts as recovered
_NEAR_THE_END = 10.0  # a run has arrived where its loss is within this factor of its last
_GAP = 2  # pixels between two pictures of a strip


def figures(cell: Cell, played: CellRound, found: Answer) -> tuple[dict[str, float], bytes | None]:
    """Every figure that this kind of answer has, without what cannot be measured; and a strip where
    the cell wants one."""
    # the share of the batch's labels that were found, duplicates counted
    if isinstance(found, FoundLabels):
        both = (labels.long().cpu() for labels in (played.drawn.labels, found.labels))
        true, answered = (torch.bincount(labels, minlength=cell.network.classes) for labels in both)
        return {"labels": float(torch.minimum(true, answered).sum()) / int(true.sum())}, None
    compared = _compared(cell, played, found)
    leak, rows = compared.leak, compared.samples
    values = {
        name: statistics.mean(getattr(row, name) for row in rows)
        for name in ("psnr", "ssim", "lpips")
    }
    values["leakage"] = statistics.mean(compared.leakages)
    if isinstance(found, Leak):
        values |= _features(rows, leak, played) | {"worst_leakage": max(compared.leakages)}
    values |= _convergence(leak) | {
        "predicted_error": leak.predicted_error,
        "exact": float(leak.exact),
    }
    known = {name: value for name, value in values.items() if math.isfinite(value)}
    return known, _strip(played, compared) if cell.pictures else None


def _compared(cell: Cell, played: CellRound, found: Leak | Peeled) -> Compared:
    sent = played.sent
    if isinstance(found, Leak):
        return compare_with_truth(sent, found)
    # A peeler's answer as a leak that is scored by its pictures.
    pictures, error, exact = (
        found.inputs.float().clamp(0, 1),
        float(found.errors.max()),
        bool(found.exact.all()),
    )
    empty = torch.zeros(len(pictures), cell.network.classes, dtype=torch.float64)
    leak = Leak(
        found.method,
        empty,
        empty,
        empty,
        math.nan,
        error,
        exact,
        images=pictures,
        pictures_first=True,
    )
    rows = score_samples(leak, images=sent.images)
    return Compared(leak, rows, leakages(leak, rows, sent.truth))


def _features(rows: list[SampleScore], leak: Leak, played: CellRound) -> dict[str, float]:
    errors = [row.feature_error for row in rows]
    return {
        "labels": statistics.mean(row.label_correct for row in rows),
        "target_error": max(row.target_error for row in rows),
        "feature_error": statistics.mean(errors),
        "median_feature_error": statistics.median(errors),
        "worst_feature_error": max(errors),
        "recovered": statistics.mean(error < _RECOVERED for error in errors),
        "cosine": statistics.mean(row.feature_cosine for row in rows),
        "logit_error": _logit_error(rows, leak, played),
        "batch_size_error": float(leak.batch_size - len(rows)),
    }


def _logit_error(rows: list[SampleScore], leak: Leak, played: CellRound) -> float:
    """‖Ŷ′ − Ŷ‖² over the batch; a sample that was not found counts with all of its logits."""
    head = find_head(played.sent.model)[1]
    with torch.no_grad():
        true = head(played.sent.features).double().cpu()
    found = leak.logits.double().cpu()
    answers = [
        torch.zeros_like(t) if row.found is None else found[row.found]
        for row, t in zip(rows, true, strict=True)
    ]
    return float((torch.stack(answers) - true).square().sum())


def _convergence(leak: Leak) -> dict[str, float]:
    """Of RGLA: the weighted sum of its losses at the end, and the first noted step within a factor
    of it."""
    if not all(f"loss_{name}" in leak.history for name in WEIGHTS):
        return {}
    sums = torch.stack(
        [weight * leak.history[f"loss_{name}"] for name, weight in WEIGHTS.items()]
    ).sum(0)
    arrived = leak.history["step"][sums <= _NEAR_THE_END * sums[-1]]
    return {"loss": float(sums[-1]), "arrived": float(arrived[0]) if len(arrived) else math.nan}


def _strip(played: CellRound, compared: Compared) -> bytes | None:
    """A JPEG: the client's pictures above, below each what was recovered of it (gray where nothing
    was)."""
    leak, rows = compared.leak, compared.samples
    if leak.images is None:
        return None
    images = played.sent.images.detach().cpu().float()
    found = [
        torch.full_like(image, 0.5)
        if row.found is None
        else leak.images[row.found].detach().cpu().float().clamp(0, 1)
        for row, image in zip(rows, images, strict=True)
    ]
    strip = torch.cat([_row(list(images)), _row(found)], 1)
    pixels = (strip.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=80)
    return buffer.getvalue()


def _row(pictures: list[Tensor]) -> Tensor:
    gap = torch.ones(3, pictures[0].shape[1], _GAP)
    joined = torch.cat([part for picture in pictures for part in (picture, gap)], 2)
    return torch.cat([joined, torch.ones(3, _GAP, joined.shape[2])], 1)
