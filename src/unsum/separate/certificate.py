"""How far the answer can be trusted: the residual in units of the noise, and what that noise does to the features."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.separate.equation import Equation, Linearised, Unknowns
from unsum.separate.observation import Observation


@dataclass(frozen=True)
class Certificate:
    """`misfit` is the residual's root mean square in standard deviations of the noise: about 1 for the truth.

    `errors` (B,) predicts each sample's relative feature error: a least-squares solution scatters with covariance
    (JᵀJ)⁻¹, so a nearly singular Jacobian shows here even when the residual is perfect.
    """

    misfit: float
    errors: Tensor
    covariance: Tensor  # (B, B) of the samples, summed over the directions of T
    floor_deviation: float
    log_alpha_deviation: float

    @property
    def predicted_error(self) -> float:
        return float(self.errors.max())


def certify(equation: Equation, at: Unknowns, observation: Observation) -> Certificate:
    """Predict the error of a solution from the noise level, the misfit and the Jacobian's inverse."""
    here = Linearised(equation, at)
    B, R = at.T.shape
    unknowns = B * R + equation.floor_free + equation.alpha_free
    equations = int((equation.weight > 0).sum()) * equation.U.shape[1]
    misfit = float((here.cost / max(equations - unknowns, 1)).sqrt())
    size = at.T.norm(dim=1).clamp_min(1e-300)
    N = here.normal_matrix()
    # The prior that features are not larger than they came out: a direction nothing determines has an error of 100 %.
    prior = torch.cat([size.pow(-2).repeat_interleave(R), size.new_ones(2)]) * max(misfit, 1.0) ** 2
    N = N + torch.diag(prior)
    scale = N.diagonal().rsqrt()
    factor, failed = torch.linalg.cholesky_ex(scale[:, None] * N * scale)
    if equations < unknowns or bool(failed):
        nothing = torch.full((B,), torch.inf, dtype=torch.float64, device=size.device)
        return Certificate(misfit, nothing, torch.diag(nothing), torch.inf, torch.inf)
    inverse = scale[:, None] * torch.cholesky_inverse(factor) * scale * max(misfit, 1.0) ** 2
    covariance = inverse[: B * R, : B * R].view(B, R, B, R).diagonal(dim1=1, dim2=3).sum(-1)
    covariance = covariance + torch.diag(_outside(here, observation).square())
    errors = covariance.diagonal().clamp_min(0).sqrt() / size
    deviations = inverse.diagonal()[-2:].clamp_min(0).sqrt()
    return Certificate(
        misfit, errors.nan_to_num(nan=torch.inf), covariance, float(deviations[0]), float(deviations[1])
    )


def indistinguishable(certificate: Certificate, T: Tensor, labels: Tensor) -> list[list[int]]:
    """Groups of samples of one label that the gradient determines only as their mean."""
    groups = []
    blurred = certificate.errors > 1e-2
    for label in set(labels[blurred].tolist()):
        members = (blurred & (labels == label)).nonzero()[:, 0]
        if len(members) < 2:
            continue
        variance = certificate.covariance[members][:, members].mean()
        mean_error = float(variance.clamp_min(0).sqrt() / T[members].mean(0).norm().clamp_min(1e-300))
        if mean_error < 0.1 * float(certificate.errors[members].min()):
            groups.append(members.tolist())
    return groups


def _outside(here: Linearised, observation: Observation) -> Tensor:
    """(B,) noise of A itself: F = (α Eᵀ)⁺ ∇W passes on the noise of every entry, also outside the span of A."""
    inverse: Tensor = torch.linalg.pinv(here.at.alpha * here.E.T)
    H = observation.A.shape[1]
    return ((inverse * observation.noise.level).square().sum(1) * H).sqrt()
