"""Answers that fit the noise: a solver that knows of none explains it by features, whose size is
the noise's.

With known softmax rows P and targets Y, features are a linear fit to ∇W = α (P − Y)ᵀ F + noise of
σ, and no unbiased one has a smaller error than

    σ² diag((α² (P − Y) (P − Y)ᵀ)⁻¹)    in each feature of each sample

Where that is more than features of public inputs differ among themselves, their mean is nearer to
the client's features than the answer is, and it says nothing about them. Nor does an answer that is
far larger than features and noise together.
"""

from __future__ import annotations

import torch

from unsum.equation.noise import measure_noise
from unsum.head import Head
from unsum.labels.feature_prior import FeaturePrior
from unsum.leak import Leak

# [1] times the mean square of public features beside the noise. Chosen by: arbitrary, the client's
# are up to twice as large
_LARGE = 16.0
# [1] of the largest direction: what is shorter is rounding. Chosen by: float64
_FLAT = 1e-14


def noise_in(head: Head, leak: Leak) -> float:
    """The mean square of what noise makes of a feature of this answer, at least."""
    sigma = float(measure_noise(head).level.square().mean().sqrt())
    alpha = leak.scale / (leak.batch_size if head.reduction == "mean" else 1)
    errors = alpha * (leak.logits.double().softmax(1) - leak.targets.double())
    values, vectors = torch.linalg.eigh(errors @ errors.T)
    least = max(_FLAT * float(values.max()), torch.finfo(torch.float64).tiny)
    return sigma**2 * float((vectors.square() / values.clamp_min(least)).sum(1).mean())


def fits_noise(head: Head, leak: Leak, prior: FeaturePrior | None) -> str:
    """Why an answer says less of features than public inputs do; empty where it may say more."""
    if leak.exact or not leak.batch_size or leak.features.shape[1] != head.W.shape[1]:
        return ""
    noise, found = noise_in(head, leak), float(leak.features.double().square().mean())
    differ = max(found - noise, 0.0) if prior is None else prior.energy
    if noise > differ:
        return (
            f"Of the answer of {leak.method!r}, noise alone makes errors larger than features of "
            "public inputs differ among themselves: it is left out."
        )
    if prior is not None and found > _LARGE * float(prior.views.square().mean()) + noise:
        return (
            f"The answer of {leak.method!r} is far larger than features are and than the noise "
            "explains: it is left out."
        )
    return ""
