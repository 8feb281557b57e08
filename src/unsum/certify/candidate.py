"""A solved hypothesis: polished with the noise model's own weights, simplified where it may be, and
certified."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unsum.certify.scatter import Certificate, certify, error_of_mean, indistinguishable
from unsum.engine.budget import Budget
from unsum.equation.equation import Equation, Unknowns, solve
from unsum.equation.observation import Observation

# standard deviations: solutions stay below even where a client rounds badly, local minima far above
EXPLAINED = 20.0
FAR = 20.0  # times the usual length, which no sample has
VAGUE = 0.5  # predicted error from which an answer is hardly one
_SAME = 5.0  # standard deviations within which an unknown counts as its natural value
# [steps] with the noise model's own weights, where the answer explains the gradient, and elsewhere.
# Chosen by: arbitrary budget.
_POLISHED, _TRIED = 60, 20
# distance from a hard label within which a soft one is taken for it, and from [0, 1] for a
# probability
_HARD = 1e-3


@dataclass(frozen=True)
class Candidate:
    """A point of the search with its targets and its certificate."""

    at: Unknowns
    Y: Tensor  # (B, C)
    certificate: Certificate
    equation: Equation  # that it solves
    # independent starts, or solutions of another kind, that led here as well
    confirmations: int = 0
    read_off: bool = False  # its targets follow from the features, which something else told
    verified: bool = False  # a part of the batch only, but every sample stands on its own
    # targets were whole before they were rounded, where a loss only knows whole ones
    rounded: bool = True

    @property
    def explains(self) -> bool:
        return self.certificate.misfit < EXPLAINED and self.plausible

    @property
    def plausible(self) -> bool:
        """Whether the targets are probabilities, as far as they are known at all."""
        beyond = torch.maximum(-self.Y.min(), self.Y.max() - 1)
        return self.rounded and float(beyond) < _HARD + self.certificate.predicted_error

    @property
    def settles(self) -> bool:
        """Explains the gradient and says something about every sample or group: no need to look
        further. A sample far longer than the others is most likely a false one, whatever its
        predicted error is."""
        if not self.explains or bool(far_longer(self.at.T).any()):
            return False
        return float(self.merged()[1].max()) < VAGUE

    def merged(self) -> tuple[list[list[int]], Tensor]:
        """Groups of samples that only their mean is known of, and every sample's predicted error
        with that mean in place."""
        if not self.explains:
            return [], self.certificate.errors
        groups = indistinguishable(self.certificate, self.at.T, self.Y.argmax(1))
        errors = self.certificate.errors.clone()
        for group in groups:
            errors[group] = error_of_mean(self.certificate, self.at.T, group)
        return groups, errors

    def better_than(self, other: Candidate | None) -> bool:
        return other is None or self._rank > other._rank

    @property
    def _rank(self) -> tuple[bool, bool, bool, bool, float]:
        return self.plausible, self.explains, self.settles, self.verified, -self.certificate.misfit


def far_longer(T: Tensor) -> Tensor:
    """(B,) samples of more than `FAR` times the usual length, or of none that is finite."""
    lengths = T.norm(dim=1)
    return ~(lengths <= FAR * lengths.median())


def runaways(observation: Observation, T: Tensor) -> Tensor:
    """(B,) samples far longer than the others with p = e_y: nothing holds them, and an error
    relative to that length is none."""
    P = observation.equation().probabilities(T)
    return far_longer(T) & (1 - P.amax(1) < 10 * observation.client_precision)


def polish(observation: Observation, equation: Equation, at: Unknowns) -> Candidate:
    """Solve on with the weights that only a solution can supply, then prefer the simplest
    explanation that holds."""
    candidate = reweighted(observation, equation, at)
    for simpler, start in _simplifications(observation, candidate):
        if not candidate.explains:
            break
        simple = reweighted(observation, simpler, start)
        if simple.certificate.misfit < max(1.5 * candidate.certificate.misfit, 1.0):
            candidate = simple
    return candidate


def polishing(equation: Equation) -> Budget:
    """How far a solution is pursued: one that does not explain the gradient only for some steps."""
    entries = equation.U.shape[-2:].numel()
    return Budget(steps=_POLISHED, trial=_TRIED, near=EXPLAINED * entries**0.5)


def targets_of(equation: Equation, at: Unknowns) -> Tensor:
    """(B, C) the targets: those of the equation with their smoothing, or read off it at the label
    rows."""
    if equation.Y is not None:
        return equation.targets(at)
    E = torch.linalg.lstsq(equation.extended(at.T).T, equation.U.T / at.alpha).solution
    Y = equation.probabilities(at.T) - E
    return torch.where(equation.weight > 0, at.floor, Y)


def reweighted(observation: Observation, equation: Equation, at: Unknowns) -> Candidate:
    """Solved on from `at` with the noise model's weights there."""
    weight = observation.weights_at(at, targets_of(equation, at)) * (equation.weight > 0)
    equation = equation.with_rows(weight)
    polished = solve(equation, at, polishing(equation), in_noise_units=True)
    at = polished if polished.is_sound else at
    return Candidate(at, targets_of(equation, at), certify(equation, at, observation), equation)


def _simplifications(
    observation: Observation, candidate: Candidate
) -> list[tuple[Equation, Unknowns]]:
    """Equations with fewer unknowns that the candidate suggests, each with its start."""
    at, equation, certificate, B = (
        candidate.at,
        candidate.equation,
        candidate.certificate,
        len(candidate.at.T),
    )
    plain = math.log(observation.plain_alpha(B, equation.Y))
    if equation.floor_free and float(at.floor) < _SAME * certificate.floor_deviation:
        at, equation = (
            replace(at, floor=torch.zeros_like(at.floor)),
            replace(equation, floor_free=False),
        )
    if (
        equation.alpha_free
        and abs(float(at.log_alpha) - plain) < _SAME * certificate.log_alpha_deviation
    ):
        at, equation = (
            replace(at, log_alpha=torch.full_like(at.log_alpha, plain)),
            replace(equation, alpha_free=False),
        )
    simpler = [(equation, at)] if at is not candidate.at else []
    if equation.Y is None:
        Y = (candidate.Y - candidate.at.floor) / (1 - equation.classes * candidate.at.floor)
        hard = torch.nn.functional.one_hot(Y.argmax(1), equation.classes).double()
        if float((Y - hard).abs().max()) < _HARD:
            simpler.append((replace(equation, Y=hard, weight=observation.weight), at))
    return simpler
