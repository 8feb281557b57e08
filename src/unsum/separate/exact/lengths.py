"""From directions to samples: how long each row of T is, what its targets were, and how sure all of that is.

Row i of (U T⁻¹)ᵀ is α s (p − y) for the unit direction t and its length s: `softmax_line` reads s off it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unsum.certify.candidate import Candidate
from unsum.certify.scatter import Certificate, certify
from unsum.equation.equation import Linearized, Unknowns, positive_factor
from unsum.equation.observation import Observation
from unsum.separate.exact.zeros import SparseDirections
from unsum.separate.softmax_line import fit_lengths

_NOTHING = 1e-3  # a target below counts as 0, one this near to 1 as 1: in between it is part of a mixture
_PLAIN = 1e-4  # relative distance within which a scale is taken for its natural value
_READINGS = 4  # of α, one for each sample, below which their scatter says little about how well lengths are known


@dataclass(frozen=True)
class Lengths:
    """One sample per direction: T (R, R), what U leaves for p − y (R, C), and each sample's own reading of α (R,)."""

    T: Tensor
    E: Tensor
    alphas: Tensor

    def targets(self, observation: Observation, alpha: float) -> Tensor:
        """(R, C) read off the equation, 0 and 1 where they are that close."""
        P = torch.softmax(self.T @ observation.K + observation.b, dim=1)
        Y = P - self.E / (alpha * self.T.norm(dim=1, keepdim=True))
        Y = torch.where(Y.abs() < _NOTHING, 0.0, Y)
        return torch.where((Y - 1).abs() < _NOTHING, 1.0, Y)


def measure_lengths(observation: Observation, directions: SparseDirections) -> Lengths | None:
    """None where a sample's line runs the wrong way: then the directions are no samples of this head."""
    E = torch.linalg.solve(directions.t, observation.U, left=False).T
    s = fit_lengths(directions.t @ observation.K, E, observation.b)
    if not bool((s > 0).all()):
        return None
    T = s[:, None] * directions.t
    P = torch.softmax(T @ observation.K + observation.b, dim=1)
    free = E > 0
    return Lengths(T, E, torch.where(free, E, 0.0).sum(1) / (s * torch.where(free, P, 0.0).sum(1)))


def certified(observation: Observation, directions: SparseDirections, lengths: Lengths) -> Candidate:
    """The samples with a certificate from their zeros: the equation did not find them."""
    plain, alpha = observation.alpha(1.0, observation.rank), float(lengths.alphas.median())
    alpha = plain if abs(alpha / plain - 1) < _PLAIN else positive_factor(alpha)
    at = Unknowns(lengths.T, lengths.T.new_zeros(()), lengths.T.new_tensor(math.log(alpha)))
    Y = lengths.targets(observation, alpha)
    equation = replace(observation.equation(), Y=Y, weight=observation.weights_at(at, Y))
    certificate = _certificate(observation, directions, lengths, Linearized(equation, at))
    if observation.rank < _READINGS and alpha != plain:
        told = certify(replace(equation, alpha_free=True), at, observation)
        certificate = replace(certificate, errors=torch.maximum(certificate.errors, told.errors))
    return Candidate(at, Y, certificate, equation, read_off=True)


def _certificate(
    observation: Observation, directions: SparseDirections, lengths: Lengths, here: Linearized
) -> Certificate:
    """The noise of an entry turns a direction and spreads over all entries; the readings of α scatter as the lengths do."""
    R, H = observation.A.shape
    equations = (observation.classes - 1) * here.residual.shape[1]
    misfit = (here.cost / (equations - R)) ** 0.5
    size = lengths.T.norm(dim=1)
    entry = torch.linalg.pinv(here.at.alpha * here.G.T / observation.noise.level[:, None]).norm(dim=1)
    whole = max(misfit, 1.0) * entry * H**0.5 / size
    off = (lengths.alphas / here.at.alpha - 1).abs()
    errors = (whole.square() * (1 + directions.turn.square()) + off.square()).sqrt()
    deviation = float(off.median()) / R**0.5
    return Certificate(misfit, errors, torch.diag((errors * size).square()), torch.inf, deviation)
