"""How far the answer can be trusted: the residual in units of the noise, and what that noise does
to the features."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from unsum.equation.conjugate import NormalSystem
from unsum.equation.equation import Equation, Linearized, Unknowns
from unsum.equation.levenberg import can_be_dense
from unsum.equation.observation import Observation
from unsum.losses import Softmax

SPARE = 3  # equations left over without which a perfect fit proves nothing
# Entries of an array that all systems which are solved at once share: 64 MiB on a GPU, 2 MiB on a
# CPU, for its cache.
_HELD, _HELD_ON_CPU = 1 << 23, 1 << 18
# that simulated noise is averaged over, where the normal matrix is too large to invert
_DIRECTIONS = 256


@dataclass(frozen=True)
class Certificate:
    """`misfit` is the residual's root mean square in standard deviations of the noise: about 1 for
    the truth.

    `errors` (B,) predicts each sample's relative feature error: a least-squares solution scatters
    with covariance (JᵀJ)⁻¹, so a nearly singular Jacobian shows here even when the residual is
    perfect.
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
    """Predict the error of a solution from the noise level, the misfit and the Jacobian's
    inverse."""
    here = Linearized(equation, at)
    B, R = at.T.shape
    unknowns = B * R + equation.floor_free + equation.alpha_free
    # Under softmax all columns sum to zero: one row of every head says nothing new.
    rows = len(equation.b) - equation.loss.heads * isinstance(equation.loss, Softmax)
    equations = min(int((equation.weight > 0).sum()), rows) * equation.U.shape[1]
    misfit = float(here.cost / max(equations - unknowns, 1)) ** 0.5
    size = at.T.norm(dim=1).clamp_min(1e-300)
    prior = prior_of(at.T, max(misfit, 1.0))
    dense = can_be_dense(here.entries, len(equation.b))
    scatter = scatter_of(here, prior) if dense else _simulated_scatter(here, prior)
    if equations < unknowns + SPARE or scatter is None or bool(scatter[0].isnan().any()):
        nothing = torch.full((B,), torch.inf, dtype=torch.float64, device=size.device)
        return Certificate(misfit, nothing, torch.diag(nothing), torch.inf, torch.inf)
    covariance, deviations = scatter[0] * max(misfit, 1.0) ** 2, scatter[1] * max(misfit, 1.0)
    outside = noise_outside(here, observation.noise.level, observation.A.shape[1])
    covariance = covariance + torch.diag(outside.square())
    errors = covariance.diagonal().clamp_min(0).sqrt() / size
    return Certificate(
        misfit,
        errors.nan_to_num(nan=torch.inf),
        covariance,
        float(deviations[0]),
        float(deviations[1]),
    )


def prior_of(T: Tensor, misfit: float | Tensor, scalars: int = 2) -> Tensor:
    """The prior that features are not larger than they came out: a direction nothing determines has
    an error of 100 %.

    One over the variance of every entry of T (…, B, R), then of so many scalars, in units of the
    noise.
    """
    size = T.norm(dim=-1).clamp_min(1e-300)
    entries = size.pow(-2).repeat_interleave(T.shape[-1], dim=-1)
    square = torch.as_tensor(misfit, dtype=T.dtype, device=T.device).square()[..., None]
    return torch.cat([entries, size.new_ones(*size.shape[:-1], scalars)], dim=-1) * square


def moved_by(N: Tensor, prior: Tensor, pulled: Tensor) -> Tensor:
    """(n, k) (N + prior)⁻¹ JᵀD for the normal matrix N and n rows JᵀD."""
    N = N + torch.diag(prior)
    scale = N.diagonal().rsqrt()
    return (
        scale[:, None] * torch.linalg.solve(scale[:, None] * N * scale, scale[:, None] * pulled.T)
    ).T


def followed(here: Linearized, pulled: Tensor, misfit: float) -> tuple[Tensor, Tensor] | None:
    """How T follows a change D of the residual, which every doubt about an unknown of its own asks.

    (n, …) JᵀD itself and (JᵀJ + prior)⁻¹ JᵀD for n columns; None where the matrix is too large and
    does not converge.
    """
    prior = prior_of(here.at.T, misfit)
    if can_be_dense(here.entries, len(here.equation.b)):
        return pulled, moved_by(here.normal_matrix, prior, pulled)
    moves = _iterated(here, prior, pulled)
    return None if moves is None else (pulled, moves)


def _iterated(here: Linearized, prior: Tensor, rights: Iterable[Tensor]) -> Tensor | None:
    """(n, …) solutions without the matrix; one that does not converge leaves a direction
    unexplored, so there are none then."""
    system, solved, waiting = NormalSystem.of(here, prior, 1e-9), [], iter(rights)
    together = max(1, (_HELD if prior.is_cuda else _HELD_ON_CPU) // here.G.numel())
    while some := list(islice(waiting, together)):
        x, converged = system.solve(torch.stack(some), tolerance=1e-4, iterations=1000)
        if not converged:
            return None
        solved.append(x)
    return torch.cat(solved)


def scatter_of(here: Linearized, prior: Tensor) -> tuple[Tensor, Tensor]:
    """(…, B, B) covariance of the samples and (…, n) deviations of floor and log α, by inverting
    the normal matrix.

    NaN where that is not positive definite.
    """
    B, R = here.at.T.shape[-2:]
    N = here.normal_matrix + torch.diag_embed(prior)
    scale = N.diagonal(dim1=-2, dim2=-1).rsqrt()
    factor, failed = torch.linalg.cholesky_ex(scale[..., :, None] * N * scale[..., None, :])
    factor = torch.where((failed > 0)[..., None, None], torch.nan, factor)
    inverse = scale[..., :, None] * torch.cholesky_inverse(factor) * scale[..., None, :]
    of_T = inverse[..., : B * R, : B * R].unflatten(-1, (B, R)).unflatten(-3, (B, R))
    deviations = inverse.diagonal(dim1=-2, dim2=-1)[..., B * R :].clamp_min(0).sqrt()
    return of_T.diagonal(dim1=-3, dim2=-1).sum(-1), deviations


def _simulated_scatter(here: Linearized, prior: Tensor) -> tuple[Tensor, Tensor] | None:
    """The same without the matrix: solve for what simulated noise of unit variance does to T.

    N x = Jᵀ r + √prior·z with standard normal r and z has covariance N⁻¹ exactly; one draw already
    averages over the R directions.
    """
    B, R = here.at.T.shape
    generator = torch.Generator(device=prior.device).manual_seed(0)

    def simulated() -> Tensor:
        r, z = torch.empty_like(here.residual), torch.empty_like(prior)
        pulled = here.pull(r.normal_(generator=generator)[None])[0]
        return pulled + prior.sqrt() * z.normal_(generator=generator)

    X = _iterated(here, prior, (simulated() for _ in range(min(4, max(1, _DIRECTIONS // R)))))
    if X is None:
        return None
    T = X[:, : B * R].view(-1, B, R)
    return torch.einsum("nik,njk->ij", T, T) / len(X), X[:, -2:].square().mean(0).sqrt()


def indistinguishable(certificate: Certificate, T: Tensor, labels: Tensor) -> list[list[int]]:
    """Groups of samples of one label that the gradient determines only as their mean."""
    groups = []
    blurred = certificate.errors > 1e-2
    for label in set(labels[blurred].tolist()):
        members = (blurred & (labels == label)).nonzero()[:, 0]
        if len(members) < 2:
            continue
        if error_of_mean(certificate, T, members.tolist()) < 0.1 * float(
            certificate.errors[members].min()
        ):
            groups.append(members.tolist())
    return groups


def error_of_mean(certificate: Certificate, T: Tensor, members: list[int]) -> float:
    """The predicted relative error of the mean of some samples' features."""
    variance = certificate.covariance[members][:, members].mean()
    return float(variance.clamp_min(0).sqrt() / T[members].mean(0).norm().clamp_min(1e-300))


def noise_outside(here: Linearized, level: Tensor, inputs: int) -> Tensor:
    """(…, B) noise of A itself, for the noise `level` (…, C) of an entry and the number of the
    head's inputs.

    F is a least-squares solution of α Eᵀ F = ∇W, rows weighted by their noise as in the
    factorization, and passes on the noise of every entry, also outside the span of A.
    """
    inverse: Tensor = torch.linalg.pinv((here.at.alpha[..., None] * here.G).mT / level[..., None])
    return inverse.norm(dim=-1) * inputs**0.5
