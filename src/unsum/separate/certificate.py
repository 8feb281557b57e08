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
    floor_deviation: float
    log_alpha_deviation: float

    @property
    def predicted_error(self) -> float:
        return float(self.errors.max())


def certify(equation: Equation, at: Unknowns, observation: Observation) -> Certificate:
    """Predict the error of a solution from the noise level, the misfit and the Jacobian's inverse."""
    here = Linearised(equation, at)
    unknowns = at.T.numel() + equation.floor_free + equation.alpha_free
    equations = int((equation.weight > 0).sum()) * equation.U.shape[1]
    degrees = max(equations - unknowns, 1)
    misfit = float((here.cost / degrees).sqrt())
    N = here.normal_matrix()
    scale = N.diagonal().clamp_min(1e-300).rsqrt()
    factor, failed = torch.linalg.cholesky_ex(scale[:, None] * N * scale)
    B, R = at.T.shape
    if equations < unknowns or bool(failed):
        return Certificate(misfit, torch.full((B,), torch.inf, dtype=torch.float64), torch.inf, torch.inf)
    variance = torch.cholesky_inverse(factor).diagonal() * scale.square() * max(misfit, 1.0) ** 2
    size = at.T.norm(dim=1).clamp_min(1e-300)
    inside = variance[: B * R].view(B, R).sum(1).clamp_min(0).sqrt()
    errors = (inside.square() + _outside(here, observation).square()).sqrt() / size
    deviations = variance[-2:].clamp_min(0).sqrt()
    return Certificate(misfit, errors.nan_to_num(nan=torch.inf), float(deviations[0]), float(deviations[1]))


def _outside(here: Linearised, observation: Observation) -> Tensor:
    """(B,) noise of A itself: F = (α Eᵀ)⁺ ∇W passes on the noise of every entry, also outside the span of A."""
    inverse: Tensor = torch.linalg.pinv(here.at.alpha * here.E.T)
    H = observation.A.shape[1]
    return ((inverse * observation.noise.level).square().sum(1) * H).sqrt()
