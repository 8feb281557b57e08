"""The search: hypotheses and starts in the order of their cost, until one explains the gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from unsum.certify.candidate import Candidate, polish, runaways
from unsum.certify.scatter import certify
from unsum.deadline import out_of_time
from unsum.equation.equation import Equation, NoFactorError, Unknowns, positive_factor, solve
from unsum.equation.levenberg import seconds_per_iteration
from unsum.equation.observation import Observation
from unsum.separate.exact.exchange import exchange_labels
from unsum.separate.exact.extraction import Extracted, extract
from unsum.separate.exact.extraction_mixed import extract_mixed
from unsum.separate.exact.extraction_sparse import extract_sparse
from unsum.separate.exact.hypotheses import Hypothesis, hypotheses
from unsum.separate.exact.lengths import certified, measure_lengths
from unsum.separate.exact.lone import lone_starts
from unsum.separate.exact.regression import ClassLine, fit_class_line, fit_lifted_lines
from unsum.separate.exact.starts import rotate_freely, rotate_to_targets
from unsum.separate.exact.zeros import find_sparse_directions

_STARTS = 6
_PATIENT = 150  # iterations that large problems need
_LONG = 60.0  # estimated seconds of solving for all samples at once, beyond which that is not tried for a remainder
_MOST = 0.75  # of the samples
_CONFIRMATIONS, _MORE_CONFIRMATIONS = 4, 30  # further starts that may confirm a solution; more where they are cheap
_CONFIRMATION_SECONDS = 2.0  # estimated; up to which they are
_PEAKED = 20.0  # largest over median probability of an unlabeled class
_SAME_SOLUTION = 1e-3  # relative distance; another solution is much farther away
_EXCHANGE_SECONDS = 60.0  # estimated; for labels by exchange, which only batches near the number of classes need
_SHARE = 1e-4  # of a label, below which a class carries none
_PATIENCE = 8.0  # estimated seconds spent on further starts before giving up

Attempt = Callable[[], Candidate | None]


@dataclass(frozen=True)
class Search:
    """One search and what it may use."""

    observation: Observation
    line: ClassLine
    targets: Tensor | None
    batch_size: int | None
    generator: torch.Generator

    @classmethod
    def over(cls, observation: Observation, targets: Tensor | None, batch_size: int | None, seed: int) -> Search:
        generator = torch.Generator().manual_seed(seed)
        return cls(observation, fit_class_line(observation), targets, batch_size, generator)

    def best(self) -> Candidate | None:
        """The first candidate that settles it, or the one that comes closest.

        Quick tries of every kind come first; only where none explains the gradient, many starts.
        """
        ways = list(hypotheses(self.observation, self.line, self.targets, self.batch_size))
        best = _first(self._quick(ways), self._suffices, None)
        if (best is None or not best.explains) and self.observation.grad_b is None and self.targets is None:
            best = _first(self._smoothed(), lambda found: found.explains, best)
        if best is None or not best.explains:
            best = _first(self._patient(ways), lambda found: found.explains, best)
        return best

    def _suffices(self, found: Candidate) -> bool:
        """Whether to look no further; where other ways take minutes, with samples that stand on their own as well."""
        iterations = 2 * _PATIENT  # of two starts
        if found.settles or iterations * seconds_per_iteration(found.at.T.numel(), self.observation.classes) < _LONG:
            return found.settles
        most = found.verified and len(found.at.T) >= _MOST * self.observation.rank
        return (found.explains and found.confirmations > 0) or most

    def _quick(self, ways: list[Hypothesis]) -> Iterator[Attempt]:
        patient = 60 if self.observation.rank <= 32 else _PATIENT  # large groups of one label turn slowly into place
        quick: list[Attempt] = [partial(self._solve, way, starts=2, iterations=patient) for way in ways]
        hard = sum(way.Y is not None for way in ways)
        singly: list[Attempt] = [self._solve_extracted] if self.targets is None else []
        if self.targets is None and self.observation.rank == 1 and self.batch_size in (None, 1):
            yield self._solve_alone
        near = 2 * self.observation.rank > self.observation.classes  # where the other starts lose their way
        if near:
            yield self._solve_sparse
        if near and singly:  # too many to be found alone
            singly = [self._solve_thinned, self._solve_exchanged]
        smoothed: list[Attempt] = []
        mixed: list[Attempt] = []
        if self.targets is None and not near:
            smoothed = [partial(self._solve_extracted, smoothed=True)]
            mixed = [self._solve_mixed]
        if self._more_negative_than_labels():
            yield from [*smoothed, *singly, *quick]
        elif self._peaked():
            yield from [*singly, *smoothed, *quick]
        else:
            yield from [*quick[:hard], *singly, *quick[hard:], *smoothed]
        if not near:
            yield self._solve_sparse
        if not near and self.targets is None and self._peaked():
            yield self._solve_thinned
        yield from mixed  # all pairs of classes: the slowest way

    def _smoothed(self) -> Iterator[Attempt]:
        """Without ∇b the line itself depends on the smoothing: several strengths of it in turn."""
        for line in fit_lifted_lines(self.observation):
            search = replace(self, line=line)
            for way in hypotheses(self.observation, line, None, self.batch_size):
                if way.floor_free:
                    yield partial(search._solve, way, starts=1, iterations=60)

    def _patient(self, ways: list[Hypothesis]) -> Iterator[Attempt]:
        affordable = _PATIENCE / seconds_per_iteration(self.observation.rank**2, self.observation.classes)
        for way in ways:
            if affordable > 150:
                yield partial(self._solve, way, starts=min(_STARTS, int(affordable // 150)), iterations=150)
            affordable -= 150 * _STARTS

    def _peaked(self) -> bool:
        """Whether some unlabeled class is far more likely than most: a trained model, where the line fits badly."""
        grad_b = self.observation.grad_b
        if grad_b is None or not bool((grad_b > 0).any()):
            return False
        likely = grad_b[grad_b > 0]
        return float(likely.max() / likely.median()) > _PEAKED

    def _more_negative_than_labels(self) -> bool:
        """Whether more rows of ∇b are negative than there are samples: smoothing does that to a trained model."""
        grad_b = self.observation.grad_b
        return grad_b is not None and int((grad_b < 0).sum()) > self.observation.rank

    def _solve(self, way: Hypothesis, *, starts: int, iterations: int) -> Candidate | None:
        """Solve one hypothesis from several starts, until one explains the gradient; then ask for a second opinion."""
        equation = self._equation(way)
        best: Candidate | None = None
        for _ in range(starts):
            if best is not None and out_of_time("further starts"):
                break
            at = solve(equation, self._start(way), iterations, in_noise_units=True).at
            if not at.is_sound:
                continue
            candidate = polish(self.observation, equation, at)
            if candidate.explains:
                return self._confirmed(candidate, way, equation, iterations)
            if candidate.better_than(best):
                best = candidate
        return best

    def _confirmed(self, found: Candidate, way: Hypothesis, equation: Equation, iterations: int) -> Candidate:
        """The candidate, marked as agreed if another start leads to it and none to a solution that is as good.

        The noise is estimated on the safe side, so that a local minimum may lie below it: a much better one takes over.
        """
        cost = iterations * seconds_per_iteration(found.at.T.numel(), self.observation.classes)
        for _ in range(max(_CONFIRMATIONS, min(_MORE_CONFIRMATIONS, int(_CONFIRMATION_SECONDS / cost)))):
            if out_of_time("a second opinion on the solution"):
                break
            at = solve(equation, self._start(way), iterations, in_noise_units=True).at
            if not at.is_sound:
                continue
            if _distance(found.at.T, at.T) < _SAME_SOLUTION:
                return replace(found, confirmations=1)
            other = polish(self.observation, equation, at)
            if not other.explains or other.certificate.misfit > 2 * found.certificate.misfit:
                continue
            if _distance(found.at.T, other.at.T) < _SAME_SOLUTION:
                return replace(found, confirmations=1)
            if other.certificate.misfit > 0.5 * found.certificate.misfit:
                break
            found = other
        return found

    def _solve_alone(self) -> Candidate | None:
        """One sample, looked for along the whole range of its length; the root of smallest length counts."""
        roots: list[Candidate] = []
        for start in lone_starts(self.observation):
            equation = self.observation.equation()
            equation = replace(equation.with_rows(equation.weight * ~start.labeled), floor_free=True)
            equation = replace(equation, alpha_free=equation.has_bias)
            at = solve(equation, start.at, 60, in_noise_units=True).at
            if at.is_sound:
                roots.append(polish(self.observation, equation, at))
        solutions = [root for root in roots if root.explains]
        if not solutions:
            return None
        best = min(solutions, key=lambda root: float(root.at.T.norm()))
        return replace(best, confirmations=1)  # the whole range was searched

    def _solve_extracted(self, *, smoothed: bool = False) -> Candidate | None:
        """Samples found one at a time, then solved for together."""
        extracted = extract(self.observation, smoothed=smoothed)
        return None if extracted is None or len(extracted.T) == 0 else self._together(extracted, smoothed)

    def _solve_thinned(self) -> Candidate | None:
        """The same in a crowded batch, where the zeros of their features tell samples apart."""
        generator = torch.Generator().manual_seed(self.generator.initial_seed())  # the other starts stay as they are
        extracted = extract_sparse(self.observation, generator)
        return None if extracted is None else self._together(extracted, smoothed=False, sure=True)

    def _together(self, extracted: Extracted, smoothed: bool, sure: bool = False) -> Candidate:
        """Solved for together; if not all were found, where those that were explain the gradient nevertheless.

        Some that are missing may have left no more than a trace of it.
        """
        observation, T = self.observation, extracted.T
        Y = torch.nn.functional.one_hot(extracted.labels, observation.classes).double()
        at = Unknowns(T, T.new_tensor(extracted.floor), T.new_tensor(math.log(positive_factor(extracted.alpha))))
        equation = replace(observation.equation(), Y=Y, alpha_free=True, floor_free=smoothed)
        weight = observation.weights_at(at, Y)
        if len(T) == observation.rank:
            for power in (0.5, 0.0, 1.0):  # between the gradient's own norm and the noise's: one of them leads down
                solved = solve(equation.with_rows(weight**power), at, iterations=100).at
                candidate = polish(observation, equation, solved)
                away = runaways(observation, candidate.at.T)
                if candidate.explains and bool(away.any()):  # false ones, which explain nothing and harm nobody
                    return self._part_together(replace(candidate.at, T=candidate.at.T[~away]), equation, Y[~away])
                if candidate.explains:  # every sample has been found on its own as well: an independent solution
                    return replace(candidate, confirmations=1)
        elif 2 * len(T) > observation.rank:
            part = self._part_together(at, equation, Y)
            if part.explains:
                return part
        return self._part(equation, at, Y, sure)

    def _part_together(self, at: Unknowns, equation: Equation, Y: Tensor) -> Candidate:
        """A part of the samples solved for together, as if the others had left nothing."""
        equation = replace(equation, Y=Y, alpha_free=False)
        weight = self.observation.weights_at(at, Y)
        solved = solve(equation.with_rows(weight**0.5), at, iterations=100).at
        return self._part(equation, solved if solved.is_sound else at, Y)

    def _part(self, equation: Equation, at: Unknowns, Y: Tensor, sure: bool = False) -> Candidate:
        """Samples that were found one at a time and are not all: verified if they are most, or `sure`."""
        observation = self.observation
        alone = replace(equation, Y=Y, alpha_free=False).with_rows(observation.weights_at(at, Y))
        verified = sure or 2 * len(at.T) > observation.rank
        return Candidate(at, Y, certify(alone, at, observation), alone, verified=verified)

    def _solve_mixed(self) -> Candidate | None:
        """Samples of mixed label found one at a time, then solved for together with their labels open."""
        observation = self.observation
        mixed = extract_mixed(observation)
        if mixed is None or len(mixed.T) == 0:
            return None
        equation = observation.equation()
        at = Unknowns(mixed.T, mixed.T.new_zeros(()), mixed.T.new_tensor(math.log(mixed.alpha)))
        if len(mixed.T) == observation.rank:
            unlabeled = equation.with_rows(equation.weight * (mixed.Y.amax(0) < _SHARE))
            candidate = polish(observation, replace(unlabeled, alpha_free=True), at)
            if candidate.explains:  # every sample has been found on its own as well
                return replace(candidate, confirmations=1)
        return self._part(equation, at, mixed.Y)

    def _solve_exchanged(self) -> Candidate | None:
        """Labels found by exchange; the second opinion are other starts that these labels lead from."""
        observation = self.observation
        if self.batch_size not in (None, observation.rank):
            return None
        affordable = _EXCHANGE_SECONDS / seconds_per_iteration(observation.rank**2, observation.classes)
        found = exchange_labels(observation, self.line, self.generator, int(affordable))
        if found is None:
            return None
        Y = torch.nn.functional.one_hot(found.labels, observation.classes).double()
        way = Hypothesis(Y, len(Y), 1.0, False, False)
        equation, at = self._equation(way), replace(self._start(way), T=found.T)
        candidate = polish(observation, equation, at)
        return self._confirmed(candidate, way, equation, iterations=150) if candidate.explains else candidate

    def _solve_sparse(self) -> Candidate | None:
        """Samples found by their features' zeros alone."""
        generator = torch.Generator().manual_seed(self.generator.initial_seed())  # the other starts stay as they are
        directions = find_sparse_directions(self.observation.A, generator)
        lengths = None if directions is None else measure_lengths(self.observation, directions)
        return None if directions is None or lengths is None else certified(self.observation, directions, lengths)

    def _equation(self, way: Hypothesis) -> Equation:
        equation = self.observation.equation()
        if way.Y is None:
            equation = equation.with_rows(equation.weight * ~self.line.labeled)
        return replace(equation, Y=way.Y, alpha_free=way.scale_free, floor_free=way.floor_free)

    def _start(self, way: Hypothesis) -> Unknowns:
        if way.Y is None:
            T = rotate_freely(self.line, way.B, self.generator)
        else:
            T = rotate_to_targets(self.line, way.Y, self.generator)
        alpha = positive_factor(self.observation.alpha(way.scale, way.B))
        floor = self.line.floor if way.floor_free else 0.0
        return Unknowns(T, T.new_tensor(floor), T.new_tensor(math.log(alpha)))


def _first(
    attempts: Iterator[Attempt], good_enough: Callable[[Candidate], bool], best: Candidate | None
) -> Candidate | None:
    """The best of `best` and the attempts up to the first that is good enough."""
    for attempt in attempts:
        if best is not None and out_of_time("further hypotheses about the batch"):
            break
        candidate = _tried(attempt)
        if candidate is not None and candidate.better_than(best):
            best = candidate
        if best is not None and good_enough(best):
            break
    return best


def _tried(attempt: Attempt) -> Candidate | None:
    """A start that ends in a singular matrix or a negative scale is a start that failed, as others do."""
    try:
        return attempt()
    except (torch.linalg.LinAlgError, NoFactorError):  # type: ignore[attr-defined]
        return None


def _distance(T: Tensor, other: Tensor) -> float:
    """Largest relative distance of a sample from its nearest in another solution."""
    return float((torch.cdist(T, other).amin(1) / T.norm(dim=1).clamp_min(1e-300)).max())
