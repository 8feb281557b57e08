"""What the batch may look like (labels hard or soft, scale and smoothing known or not), tried from simple to general."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from unsum.separate.certificate import Certificate, certify
from unsum.separate.equation import Equation, Unknowns
from unsum.separate.extraction import extract
from unsum.separate.levenberg import solve_dense
from unsum.separate.observation import Observation
from unsum.separate.regression import ClassLine, fit_class_line
from unsum.separate.starts import rotate_freely, rotate_to_targets

_EXPLAINED = 5.0  # a misfit below this many standard deviations is a solution, not a local minimum
_STARTS = 6


@dataclass(frozen=True)
class Candidate:
    """A solved hypothesis."""

    at: Unknowns
    Y: Tensor  # (B, C)
    certificate: Certificate
    agreed: bool = False  # an independent start led to the same features

    @property
    def explains(self) -> bool:
        return self.certificate.misfit < _EXPLAINED


@dataclass(frozen=True)
class Hypothesis:
    """One way the batch may look: targets known or open, and which of scale and smoothing are free."""

    Y: Tensor | None  # (B, C) before smoothing; None: read off the solution
    B: int
    scale: float
    scale_free: bool
    floor_free: bool


def best_candidate(observation: Observation, targets: Tensor | None, seed: int) -> Candidate | None:
    """The first way of explaining the gradient that succeeds, or the one that comes closest."""
    generator = torch.Generator().manual_seed(seed)
    line = fit_class_line(observation)
    best: Candidate | None = None
    for attempt in _attempts(observation, line, targets, generator):
        candidate = attempt()
        if candidate is not None and (best is None or candidate.certificate.misfit < best.certificate.misfit):
            best = candidate
        if best is not None and best.explains:
            break
    return best


def _attempts(
    observation: Observation, line: ClassLine, targets: Tensor | None, generator: torch.Generator
) -> Iterator[Callable[[], Candidate | None]]:
    """Quick tries of every kind first; only then the many starts."""
    ways = list(hypotheses(observation, line, targets))
    simple, general = [way for way in ways if way.Y is not None], [way for way in ways if way.Y is None]
    for way in simple:
        yield partial(solve, observation, line, way, generator, starts=2, iterations=60)
    yield partial(solve_extracted, observation, targets)
    for starts, iterations in ((2, 60), (_STARTS, 150)):
        for way in general if starts == 2 else ways:
            yield partial(solve, observation, line, way, generator, starts=starts, iterations=iterations)


def solve_extracted(observation: Observation, targets: Tensor | None) -> Candidate | None:
    """Samples found one at a time, then solved for together."""
    extracted = extract(observation)
    if extracted is None or len(extracted[0]) == 0:
        return None
    T, labels, alpha = extracted
    Y = torch.nn.functional.one_hot(labels, observation.classes).double()
    at = Unknowns(T, T.new_zeros(()), T.new_tensor(math.log(alpha)))
    equation = replace(observation.equation(), Y=Y, alpha_free=len(T) == observation.rank)
    weight = observation.weights_at(at, Y)
    if len(T) < observation.rank:  # each of these stands on its own; together they do not explain the gradient
        return Candidate(at, Y, certify(equation.with_rows(weight), at, observation))
    at = solve_dense(equation.with_rows(weight.sqrt()), at, iterations=60).at
    at, certificate = _polish(observation, equation, at)
    return Candidate(at, Y, certificate, agreed=True)  # by then every sample has been found on its own, too


def hypotheses(observation: Observation, line: ClassLine, targets: Tensor | None) -> Iterator[Hypothesis]:
    """From the simplest to the most general."""
    B = observation.rank if targets is None else len(targets)
    guess = line.scale if observation.reduction == "mean" else line.scale / B
    Y = hard_targets(line, B) if targets is None else targets.to(observation.b.device)
    floors = (False, True) if targets is None else (False,)
    if Y is not None and abs(math.log(guess)) < 0.05:
        yield Hypothesis(Y, B, 1.0, False, False)
    if Y is not None and targets is None and guess < 1:
        yield Hypothesis(Y, B, 1.0, False, True)
    for floor_free in floors if Y is not None else ():
        yield Hypothesis(Y, B, guess, True, floor_free)
    if targets is None:
        yield Hypothesis(None, B, 1.0, False, True)
        yield Hypothesis(None, B, guess, True, True)


def hard_targets(line: ClassLine, B: int) -> Tensor | None:
    """One-hot rows sorted by class, if the label rows' masses are whole numbers of samples."""
    mass = line.mass * B
    counts = mass.round().long().clamp_min(0)
    if int(counts.sum()) != B or float((mass - counts).abs().max()) > 0.3:
        return None
    labels = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
    return torch.nn.functional.one_hot(labels, len(counts)).double()


def solve(
    observation: Observation,
    line: ClassLine,
    hypothesis: Hypothesis,
    generator: torch.Generator,
    *,
    starts: int,
    iterations: int,
) -> Candidate | None:
    """Solve one hypothesis from several starts; stop at the first solution that a second start confirms."""
    equation = _equation(observation, line, hypothesis)
    best: Candidate | None = None
    for _ in range(starts):
        at = solve_dense(equation, _start(observation, line, hypothesis, generator), iterations).at
        if not bool(torch.isfinite(at.T).all()):
            continue
        at, certificate = _polish(observation, equation, at)
        if best is not None and best.explains and certificate.misfit < _EXPLAINED:
            tolerance = max(10 * best.certificate.predicted_error, 1e-6)
            return replace(best, agreed=_distance(best.at.T, at.T) < tolerance)
        if best is None or certificate.misfit < best.certificate.misfit:
            best = Candidate(at, _targets(equation, at), certificate)
    return best


def _polish(observation: Observation, equation: Equation, at: Unknowns) -> tuple[Unknowns, Certificate]:
    """Solve on with the noise model's own weights, which only a solution can supply, and certify."""
    weight = observation.weights_at(at, _targets(equation, at)) * (equation.weight > 0)
    refined = equation.with_rows(weight)
    at = solve_dense(refined, at, iterations=20).at
    return at, certify(refined, at, observation)


def _equation(observation: Observation, line: ClassLine, hypothesis: Hypothesis) -> Equation:
    equation = observation.equation()
    if hypothesis.Y is None:
        equation = equation.with_rows(equation.weight * ~line.labelled)
    return replace(
        equation, Y=hypothesis.Y, alpha_free=hypothesis.scale_free, floor_free=hypothesis.floor_free
    )


def _start(
    observation: Observation, line: ClassLine, hypothesis: Hypothesis, generator: torch.Generator
) -> Unknowns:
    if hypothesis.Y is None:
        T = rotate_freely(line, hypothesis.B, generator)
    else:
        T = rotate_to_targets(line, hypothesis.Y, generator)
    alpha = observation.alpha(hypothesis.scale, hypothesis.B)
    return Unknowns(T, T.new_zeros(()), T.new_tensor(math.log(alpha)))


def _targets(equation: Equation, at: Unknowns) -> Tensor:
    """(B, C) the targets: those of the hypothesis with their smoothing, or read off the equation at the label rows."""
    C = equation.K.shape[1]
    if equation.Y is not None:
        return equation.Y * (1 - C * at.floor) + at.floor
    E = torch.linalg.lstsq(equation.extended(at.T).T, equation.U.T / at.alpha).solution
    Y = equation.probabilities(at.T) - E
    return torch.where(equation.weight > 0, at.floor, Y)


def _distance(T: Tensor, other: Tensor) -> float:
    """Largest relative distance of a sample from its nearest in another solution."""
    return float((torch.cdist(T, other).amin(1) / T.norm(dim=1).clamp_min(1e-300)).max())
