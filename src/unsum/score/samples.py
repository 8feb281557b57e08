"""One row of figures per true sample, and their summary.

Which recovered sample stands for which true one is found afterwards, by the pairing that serves the
attack best. Picture quality is one number per picture; averages are taken over these, never over
the batch's pooled pixels.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from statistics import fmean

import numpy as np
import torch
from torch import Tensor

from unsum.client.augment import target_rows
from unsum.errors import UnsumError
from unsum.leak import Leak
from unsum.models.lpips import lpips
from unsum.running.late_scipy import linear_sum_assignment
from unsum.score.labels import pair_labels, same_labels
from unsum.score.pictures import picture_cosine, psnr, ssim
from unsum.score.text import Sequences, score_text


@dataclass(frozen=True)
class SampleScore:
    """How well one true sample was recovered. NaN marks what could not be measured.

    A sample that the attack did not find at all (`found` is None) is scored as what anybody could
    answer: a zero feature vector, a mid-gray picture and a wrong label.
    """

    found: int | None  # index in the leak
    label_correct: float  # whether its label is among those found, each of which counts once
    target_error: float  # largest error of any entry of the target row
    feature_error: float  # ‖f̂ − f‖ / ‖f‖
    feature_cosine: float
    psnr: float
    ssim: float
    lpips: float
    picture_cosine: float = math.nan  # brightness, tint and contrast do not count
    leakage: float = math.nan  # by the strongest attack tried, where an audit measured it
    label_from: int | None = None  # index of the target row that its label was found in


def score(
    leak: Leak,
    images: Tensor | None = None,
    targets: Tensor | None = None,
    features: Tensor | None = None,
    tokens: Sequences | None = None,
) -> dict[str, float]:
    """Compare a leak with the truth; give whatever truth there is.

    Returns means over the true samples (`psnr` is the mean of the per-image values), the worst
    feature error, and how far the batch size is off. Samples are paired by features if given, else
    by images, else by targets. `tokens` are the true sequences of a language model's batch.

    Per sample: PSNR = −10 log₁₀ mean (x̂ − x)² over the (3, h, w) picture, feature error ‖f̂ − f‖ /
    ‖f‖ over the (H,) features.

    Examples:
        >>> import torch, unsum
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Linear(64, 20)
        >>> inputs, labels = torch.randn(3, 64), torch.tensor([4, 4, 1])
        >>> leak = unsum.separate(model, unsum.capture(model, inputs, labels))
        >>> unsum.score(leak, targets=labels)["label_correct"]
        1.0
    """
    text = {} if tokens is None else score_text(leak.tokens, tokens)
    if text and images is None and targets is None and features is None:
        return text
    return summarize(leak, score_samples(leak, images, targets, features)) | text


def summarize(leak: Leak, rows: list[SampleScore]) -> dict[str, float]:
    """Means over the true samples, the worst feature error, and how far the batch size is off;
    without what is NaN."""
    names = [name for name in asdict(rows[0]) if name not in ("found", "label_from", "leakage")]
    summary = {name: fmean(getattr(row, name) for row in rows) for name in names}
    summary["worst_feature_error"] = max(row.feature_error for row in rows)
    summary["samples"] = float(len(rows))
    summary["batch_size_error"] = float(leak.batch_size - len(rows))
    return {name: value for name, value in summary.items() if not math.isnan(value)}


def score_samples(
    leak: Leak,
    images: Tensor | None = None,
    targets: Tensor | None = None,
    features: Tensor | None = None,
) -> list[SampleScore]:
    """One `SampleScore` per true sample, in the truth's order."""
    rows = None if targets is None else target_rows(targets.cpu(), leak.targets.shape[1])
    pictures = None if images is None or leak.images is None else images.cpu().float()
    if (
        pictures is not None
        and leak.images is not None
        and pictures.shape[1:] != leak.images.shape[1:]
    ):
        raise UnsumError(
            f"True images are {tuple(pictures.shape[1:])} but recovered ones "
            f"{tuple(leak.images.shape[1:])}."
        )
    if features is not None:
        partner = assign(leak.features, features)
    elif pictures is not None and leak.images is not None:
        partner = assign(leak.images, pictures)
    elif rows is not None:
        partner = assign(leak.targets, rows)
    else:
        raise UnsumError(
            "score needs at least one of images, targets and features to compare with."
        )
    scores = [
        _score_one(
            leak,
            found,
            *(None if truth is None else truth[i].cpu() for truth in (pictures, features)),
        )
        for i, found in enumerate(partner)
    ]
    return scores if rows is None else label_scores(scores, leak.targets, rows)


def label_scores(scores: list[SampleScore], found: Tensor, true: Tensor) -> list[SampleScore]:
    """The same with their labels scored: found rows (n, C), in no order of theirs, against the true
    ones (B, C)."""
    answers, truth = found.detach().cpu().double(), true.detach().cpu().double()
    if len(answers) == 0:
        answers = answers.new_zeros(0, truth.shape[1])
    pairs = pair_labels(
        answers,
        truth,
        [one.found if one.found is None or one.found < len(answers) else None for one in scores],
    )
    same = same_labels(answers, truth)
    return [
        replace(
            one,
            label_from=j,
            label_correct=float(j is not None and bool(same[i, j])),
            target_error=float(((0 if j is None else answers[j]) - truth[i]).abs().max()),
        )
        for i, (one, j) in enumerate(zip(scores, pairs, strict=True))
    ]


def _score_one(
    leak: Leak, found: int | None, image: Tensor | None, feature: Tensor | None
) -> SampleScore:
    error = cosine = quality = similarity = perceptual = alike = math.nan
    if feature is not None:
        truth = feature.double()
        answer = torch.zeros_like(truth) if found is None else leak.features[found].cpu().double()
        error = float((answer - truth).norm() / truth.norm().clamp_min(1e-30))
        cosine = float(torch.cosine_similarity(answer, truth, dim=0))
    if image is not None and leak.images is not None:
        answer = torch.full_like(image, 0.5) if found is None else leak.images[found].cpu().float()
        quality, similarity, perceptual = (
            psnr(answer, image),
            ssim(answer, image),
            lpips(answer, image),
        )
        alike = picture_cosine(answer, image)
    return SampleScore(
        found, math.nan, math.nan, error, cosine, quality, similarity, perceptual, alike
    )


def assign(found: Tensor, true: Tensor) -> list[int | None]:
    """For every row of `true`, the index of its partner in `found`, or None where `found` has too
    few rows.

    The pairing minimizes the sum of squared distances (Hungarian algorithm), each capped at the
    true row's own squared norm: a hopeless row must not decide where the good ones go.
    """
    a, b = found.flatten(1).double().cpu(), true.flatten(1).double().cpu()
    distances = torch.cdist(b, a).square()
    cost = torch.minimum(distances, b.square().sum(1, keepdim=True).clamp_min(1e-12)).numpy()
    rows, columns = linear_sum_assignment(np.nan_to_num(cost, nan=cost.size and np.nanmax(cost)))
    partner: list[int | None] = [None] * len(b)
    for row, column in zip(rows, columns, strict=True):
        partner[int(row)] = int(column)
    return partner
