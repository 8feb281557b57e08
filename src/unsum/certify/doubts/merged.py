"""Samples that look like one: so alike that the gradient does not show them apart.

Two samples f ± δ‖f‖u of equal label differ from two copies of f, to leading order, by α δ²‖f‖² (J W u) uᵀ in ∇W, with J the
curvature of the loss by the logits. That is quadratic in δ: features may differ far more than the precision before a second
direction rises above the noise. A sample that stands for two carries twice the weight of its neighbors and gives itself away
(`nuisance`); but where every sample stands for equally many, as two augmented views of each do, a mean is the same. Nobody who
is not told the batch size can exclude it. More than two share that term among their own directions, n of them among n − 1: each
direction carries less of it.
"""

from __future__ import annotations

from functools import lru_cache

from scipy.special import erfinv
from torch import Tensor

from unsum.certify.question import Question
from unsum.equation.noise import noise_threshold, rounding_threshold
from unsum.equation.observation import Observation
from unsum.head import Head

_TRUSTED_SPREAD = 1e-2  # relative difference from the mean from which a claim would be false
_TOGETHER = 10  # samples at most that are taken to look like one
_FALSE_ALARM = 1e-3  # chance that all classes together answer a direction more weakly than is assumed
_PROPORTIONAL = 1e-4  # of a cosine from 1 within which features are proportional


def doubt_groups(groups: list[list[int]]) -> list[str]:
    """Samples of one label that were found, but of which only the mean is known."""
    return [
        f"Samples {', '.join(map(str, group))} cannot be told apart at the gradient's precision; each is their mean."
        for group in groups
    ]


def doubt_merged(question: Question) -> list[str]:
    """The doubt that every sample stands for several of its label, none of which was found by itself."""
    if question.batch_size is not None:
        return []
    candidate = question.candidate
    spread = hidden_spread(question.head, question.observation, candidate.at.T, candidate.Y, float(candidate.at.alpha))
    return [*_doubt_proportional(question), *doubt_spread(spread)]


def doubt_spread(spread: float) -> list[str]:
    """The doubt that samples of one label which differ by less than `spread` passed as one."""
    if spread <= _TRUSTED_SPREAD:
        return []
    apart = f"that differ by less than {100 * spread:.2g} %" if spread < 1 else "however different"
    return [f"Samples of one label, {apart}, would look like one here: there may be more than were found."]


def hidden_spread(
    head: Head, observation: Observation, T: Tensor, Y: Tensor, alpha: float, limit: Tensor | None = None
) -> float:
    """The largest relative δ at which a few samples may pass as one, for directions u that are nothing special.

    `limit` (C,) is the norm of a row below which nothing was seen, where that was measured; else rounding at its worst.
    """
    size = T.square().sum(1, keepdim=True)  # ‖f‖²
    answer = observation.loss.response(
        T @ observation.K + observation.b, Y, head.W, observation.row_norms
    )  # (B, C): ‖(J W)_c‖, so that |(J W u)_c| is that over √H for a usual u
    response = alpha * size * answer / observation.A.shape[1] ** 0.5
    if observation.noise.added:
        visible = noise_threshold(head, observation.noise) / response.norm(dim=1).clamp_min(1e-300)
    else:
        limit = rounding_threshold(head, observation.noise) if limit is None else limit
        visible = (limit / response.clamp_min(1e-300)).amin(1)
    # Of several heads each answers a direction much as the others do: no more classes than those of one are independent.
    return _share(observation.classes // observation.loss.heads) * float(visible.max().sqrt())


@lru_cache(maxsize=64)
def _share(C: int) -> float:
    """√((n − 1)/x) for the worst n; the largest answer of C − 1 classes to n − 1 directions exceeds x but for a false alarm."""
    worst = 0.0
    for n in range(2, _TOGETHER + 1):
        answers = (C - 1) * (n - 1)
        least = 2**0.5 * float(erfinv(_FALSE_ALARM ** (1 / answers)))
        worst = max(worst, ((n - 1) / least) ** 0.5)
    return worst


def _doubt_proportional(question: Question) -> list[str]:
    """Two samples with proportional features and different labels pass for one with a mixed label, and it for them."""
    observation, T, labels = question.observation, question.candidate.at.T, question.candidate.Y.argmax(1)
    if len(T) <= observation.rank or observation.rank == observation.A.shape[1]:
        return []
    unit = T / T.norm(dim=1, keepdim=True).clamp_min(1e-300)
    alike = (unit @ unit.T > 1 - _PROPORTIONAL) & (labels[:, None] != labels)
    named = ", ".join(map(str, alike.any(1).nonzero()[:, 0].tolist()))
    return [f"Samples {named} have proportional features: some may be one with a mixed label."] if named else []
