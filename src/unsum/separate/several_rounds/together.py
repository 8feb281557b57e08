"""The batch that explains all rounds at once, the starts that lead to it, and what may be claimed about it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unsum.certify.candidate import Candidate, reweighted
from unsum.certify.judge import judge
from unsum.certify.question import Question
from unsum.equation.equation import NoFactorError, Unknowns, solve
from unsum.equation.observation import Observation, observe
from unsum.equation.threads import few_threads
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.separate.exact.regression import fit_class_line
from unsum.separate.exact.starts import rotate_to_targets
from unsum.separate.several_rounds.stack import observe_stacked, rescaled, stack

_FITS = 4.0  # misfit of a solution, in units of the noise
_SAME = 1e-3  # relative distance of two answers that are one
_HARD = 0.1  # of a target, within which it is taken for hard
_PLAIN = 0.05  # distance of two rounds' scales, in logarithms, within which they are taken to be one
_APART = 10.0  # times the noise: what two rounds' predictions must differ by to be two rounds
_STARTS = 12  # at random, that may confirm a solution
_ITERATIONS = 100


@dataclass(frozen=True)
class Together:
    """The answer for all rounds, laid before the certificate as if they were one head's."""

    question: Question
    heads: list[Head]

    @classmethod
    def of(cls, heads: list[Head], single: list[Leak], knowledge: Knowledge, seed: int) -> Together | str:
        """The answer, or a sentence that says why there is none."""
        try:
            with few_threads(heads[0].classes * len(heads) * max(leak.batch_size for leak in single)):
                return _solved(heads, single, knowledge, seed)
        except (torch.linalg.LinAlgError, NoFactorError):  # type: ignore[attr-defined]
            return "nothing could be solved for all of them."

    def alike(self) -> tuple[int, int] | None:
        """Two rounds whose predictions differ by less than the noise shows: they are one round."""
        observation, candidate, n = self.question.observation, self.question.candidate, len(self.heads)
        P = candidate.equation.probabilities(candidate.at.T).unflatten(1, (n, -1))  # (B, n, C)
        T, weight = candidate.equation.extended(candidate.at.T), observation.weight.view(n, -1)
        for first in range(n):
            for second in range(first + 1, n):
                changed = candidate.at.alpha * (P[:, first] - P[:, second]).T @ T
                units = torch.minimum(weight[first], weight[second])[:, None] * changed
                if float(units.square().mean().sqrt()) < _APART:
                    return first, second
        return None

    def agrees_with(self, leak: Leak) -> bool:
        candidate = self.question.candidate
        return candidate.explains and _same(candidate.at.T @ self.question.observation.A, leak.features.double())

    def leak(self) -> Leak:
        observation, candidate = self.question.observation, self.question.candidate
        judgment, C = judge(self.question), self.heads[0].classes
        dtype = self.heads[0].W.dtype if self.heads[0].W.dtype in (torch.float32, torch.float64) else torch.float32
        G = observation.loss.gradient(candidate.equation.logits(candidate.at.T), candidate.Y)
        left = candidate.at.alpha * G.T @ candidate.at.T - observation.U
        return Leak(
            method="exact",
            targets=candidate.Y[:, :C],
            logits=judgment.T @ observation.K[:, :C] + observation.b[:C],
            features=(judgment.T @ observation.A).to(dtype),
            residual=float(left.norm() / observation.U.norm()),
            predicted_error=judgment.claim.predicted_error,
            exact=judgment.claim.exact,
            scale=self.question.scale,
            notes=judgment.claim.notes,
        )


def _solved(heads: list[Head], single: list[Leak], knowledge: Knowledge, seed: int) -> Together | str:
    best = min(single, key=lambda leak: leak.predicted_error)
    targets = _hard(best, knowledge)
    if targets is None:
        return "their labels are soft, and are read off one round only."
    B, whole = best.batch_size, stack(heads)
    observation = observe_stacked(whole, heads, None)
    if observation.rank > B:
        return f"they have {observation.rank} directions, and {B} samples were found in one of them."
    if knowledge.known_batch_size is not None and observation.rank < B:
        observation = observe_stacked(whole, heads, B)
    observation = _scaled_alike(observation, best, targets)
    starts = [(_start(observation, leak), _hard(leak, knowledge)) for leak in single if leak.batch_size == B]
    answers = [_candidate(observation, at, Y, best) for at, Y in starts if Y is not None]
    found = min(answers, key=lambda answer: answer.certificate.misfit)
    if found.certificate.misfit > _FITS:
        return f"one batch misses them by {found.certificate.misfit:.1e} times their noise; features moved, or data differ."
    others = [answer for answer in answers if answer is not found]
    found = _confirmed(found, others, _random_starts(observation, heads, found, seed), observation, best)
    return Together(Question(whole, observation, found, knowledge), heads)


def _hard(leak: Leak, knowledge: Knowledge) -> Tensor | None:
    """(B, C) the targets of a round's answer: those that were granted, or hard ones where all of them nearly are."""
    Y = leak.targets.double()
    if knowledge.labels is not None:
        return Y
    hard = torch.nn.functional.one_hot(Y.argmax(1), Y.shape[1]).double()
    return hard if float((Y - hard).abs().max()) < _HARD else None


def _scaled_alike(observation: Observation, best: Leak, targets: Tensor) -> Observation:
    """Every round as if its gradient had been multiplied as that of the best answer was, which tells by how much it was."""
    n = observation.loss.heads
    at = _start(observation, best)
    G = observation.loss.gradient(at.T @ observation.K + observation.b, targets.repeat(1, n))
    expected, seen = (at.alpha * G.T @ at.T).view(n, -1), observation.U.view(n, -1)
    factors = (expected * seen).sum(1) / seen.square().sum(1).clamp_min(1e-300)
    plain = ~(factors.clamp_min(1e-300).log().abs() > _PLAIN)
    return rescaled(observation, torch.where(plain | (factors <= 0), torch.ones_like(factors), factors))


def _start(observation: Observation, leak: Leak) -> Unknowns:
    T = leak.features.double() @ observation.A.T
    alpha = observation.alpha(leak.scale, leak.batch_size)
    return Unknowns(T, T.new_zeros(()), T.new_tensor(math.log(alpha)))


def _candidate(observation: Observation, at: Unknowns, Y: Tensor, best: Leak) -> Candidate:
    """Solved from one start, with the scale of the best round's answer: known, or solved for as well."""
    equation = replace(
        observation.equation(), Y=Y.repeat(1, observation.loss.heads), alpha_free=abs(best.scale - 1) > 1e-12
    )
    at = replace(at, log_alpha=at.T.new_tensor(math.log(observation.alpha(best.scale, best.batch_size))))
    solved = solve(equation, at, _ITERATIONS, in_noise_units=True).at
    return reweighted(observation, equation, solved if solved.is_sound else at)


def _random_starts(
    observation: Observation, heads: list[Head], found: Candidate, seed: int
) -> Iterator[tuple[Unknowns, Tensor]]:
    """The rounds' own regressions over classes, each turned at random among the samples of a label."""
    generator = torch.Generator().manual_seed(seed)
    Y = found.Y[:, : heads[0].classes]
    parts = [observe(head, len(Y)) for head in heads]
    lines = [(part, fit_class_line(part)) for part in parts if part.rank > 0]
    for place in range(_STARTS):
        part, line = lines[place % len(lines)]
        yield replace(found.at, T=rotate_to_targets(line, Y, generator) @ part.A @ observation.A.T), Y


def _confirmed(
    found: Candidate,
    others: list[Candidate],
    starts: Iterator[tuple[Unknowns, Tensor]],
    observation: Observation,
    best: Leak,
) -> Candidate:
    """Counts the starts that led to the same answer; one that led to another, which fits as well, takes the count away."""

    def further() -> Iterator[Candidate]:
        yield from others
        for at, Y in starts:
            yield _candidate(observation, at, Y, best)

    for other in further():
        if _same(found.at.T, other.at.T):
            return replace(found, confirmations=1)
        if other.certificate.misfit < max(2 * found.certificate.misfit, 1.0):
            return found
    return found


def _same(T: Tensor, other: Tensor) -> bool:
    """Whether every sample has its like in the other answer."""
    distance = torch.cdist(T, other).amin(1) / T.norm(dim=1).clamp_min(1e-300)
    return float(distance.max()) < _SAME
