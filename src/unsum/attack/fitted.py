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
from torch import Tensor

from unsum.equation.noise import measure_noise
from unsum.head import Head
from unsum.labels.feature_prior import FeaturePrior
from unsum.leak import Leak

# [1] times the mean square of public features beside the noise. Chosen by: arbitrary, the client's
# are up to twice as large
_LARGE = 16.0
# [1] of the largest direction: what is shorter is rounding. Chosen by: float64
_FLAT = 1e-14


def noise_in(head: Head, leak: Leak) -> Tensor:
    """(B,) the mean square of what noise makes of a feature of each sample, at least."""
    sigma = float(measure_noise(head).level.square().mean().sqrt())
    alpha = leak.scale / (leak.batch_size if head.reduction == "mean" else 1)
    errors = alpha * (leak.logits.double().softmax(1) - leak.targets.double())
    values, vectors = torch.linalg.eigh(errors @ errors.T)
    least = max(_FLAT * float(values.max()), torch.finfo(torch.float64).tiny)
    return sigma**2 * (vectors.square() / values.clamp_min(least)).sum(1)


def fits_noise(head: Head, leak: Leak, prior: FeaturePrior | None) -> str:
    """Why an answer says less of every sample's features than public inputs do; empty where it may
    say more of one."""
    if leak.exact or not leak.batch_size or leak.features.shape[1] != head.W.shape[1]:
        return ""
    noise, found = noise_in(head, leak), leak.features.double().square().mean(1)
    differ = (found - noise).clamp_min(0) if prior is None else torch.tensor(prior.energy)
    if bool((noise > differ.to(noise)).all()):
        return (
            f"Of the answer of {leak.method!r}, noise alone makes errors larger than features of "
            "public inputs differ among themselves: it is left out."
        )
    if prior is None:
        return ""
    usual = _LARGE * float(prior.views.square().mean())
    if bool((found > usual + noise).all()):
        return (
            f"The answer of {leak.method!r} is far larger than features are and than the noise "
            "explains: it is left out."
        )
    return ""
