"""The solver for declared losses: starts by kind, Levenberg–Marquardt, and a certificate like the exact solver's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from unsum.certify.candidate import Candidate, polish
from unsum.certify.question import Question
from unsum.equation.equation import Equation, Unknowns, solve
from unsum.equation.noise import Noise, factorize, rounding_of_an_entry
from unsum.equation.observation import Observation, observed
from unsum.equation.span import span_of
from unsum.errors import UnsumError
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.losses import Loss, Separable, Softmax
from unsum.separate.exact.answer import leak_of, nothing_found
from unsum.separate.losses import separable, softmax

_BINARY = 0.05  # largest distance of a target from 0 or 1 before it is rounded
_ROUNDS = 4  # of reading the targets and solving on
_MOST = 48  # samples: the normal matrix has as many unknowns squared
_HUGE = 1e12  # entries of T that no features have: the start ran away
_TRIES = 8  # starts after which one answer that explains the gradient is not asked for company any longer
_AGREE = 1e-3  # relative distance of two answers that are one


def separate_declared(head: Head, knowledge: Knowledge, loss: Loss, *, seed: int) -> Leak:
    """Every sample's features, logits and targets under a declared loss."""
    answer = answer_declared(head, knowledge, loss, seed=seed)
    return leak_of(answer) if isinstance(answer, Question) else nothing_found(head, knowledge, answer, loss.name)


def answer_declared(head: Head, knowledge: Knowledge, loss: Loss, *, seed: int) -> Question | str:
    """The best answer under a loss, to be judged; or a sentence that says why there is none."""
    observation = observe(head, knowledge.known_batch_size, loss)
    if observation.rank == 0:
        return "Nothing in the gradient stands out of its noise."
    if observation.rank > _MOST:
        return f"More than {_MOST} samples: the solver for declared losses ends there."
    generator, given = torch.Generator().manual_seed(seed), knowledge.targets(head.classes)
    answers: list[Candidate] = []
    for equation, at in _starts(observation, loss, given, generator):
        answer = _solved(observation, equation, at, given)
        if answer is None:
            continue
        answers.append(answer)
        if answer.explains and (_confirmations(answer, answers) >= 1 or len(answers) >= _TRIES):
            break
    if not answers:
        return "Too few classes are free of labels to start from."
    best = min(answers, key=lambda a: (not a.explains, a.certificate.misfit))
    return Question(head, observation, replace(best, confirmations=_confirmations(best, answers)), knowledge)


def observe(head: Head, batch_size: int | None, loss: Loss) -> Observation:
    """Factors and noise of the gradient; columns need not sum to zero, so noise is what the smallest directions hold."""
    span = span_of(head.grad_W)
    row_norms = head.row_norms(head.grad_W)
    precision, size = rounding_of_an_entry(head), float(row_norms.norm())
    level = (precision * row_norms / head.grad_W.shape[1] ** 0.5).clamp_min(1e-9 * precision * size + 1e-300)
    if span.noisy:
        level = (level.square() + span.deviation**2).sqrt()
    noise = Noise(level, span.noisy, span.deviation * head.grad_W.numel() ** 0.5 / size if span.noisy else precision)
    factors = head.factorize(rank=batch_size or span.rank) if span.noisy else factorize(head, noise, batch_size)
    return observed(head, factors, noise, loss)


def _starts(
    observation: Observation, loss: Loss, given: Tensor | None, generator: torch.Generator
) -> Iterator[tuple[Equation, Unknowns]]:
    equation = replace(observation.equation(), alpha_free=True)
    if isinstance(loss, Separable):
        for start in separable.starts(observation, loss, generator):
            yield equation, _point(start.T, start.alpha)
    elif isinstance(loss, Softmax):
        for labeled in softmax.starts(observation, loss, given, generator):
            alpha = 1 / loss.divisor(labeled.Y) if observation.reduction == "mean" else 1.0
            yield replace(equation, Y=labeled.Y), _point(labeled.T, alpha)
    else:
        raise UnsumError(f"There is no solver for the loss {loss.name!r}.")


def _point(T: Tensor, alpha: float) -> Unknowns:
    return Unknowns(T, T.new_zeros(()), T.new_tensor(math.log(alpha)))


def _solved(observation: Observation, equation: Equation, at: Unknowns, given: Tensor | None) -> Candidate | None:
    """Solve from one start; a separable loss reads its targets off, rounds them and solves on until they stay."""
    if not isinstance(observation.loss, Separable):
        at = solve(equation, at, 60).at
        return polish(observation, equation, at) if at.is_sound else None
    left = 1.0
    for _ in range(_ROUNDS):
        if not at.is_sound or not bool(at.T.abs().max() < _HUGE):
            return None
        read = _read_targets(equation, observation.loss, at)
        Y = read.round().clamp(0, 1) if given is None or len(given) != len(read) else _nearest(given, read)
        left = float((read - Y).abs().max())
        if equation.Y is not None and torch.equal(Y, equation.Y):
            break
        equation = replace(equation, Y=Y)
        at = solve(equation, at, 60).at
    if not at.is_sound:
        return None
    return replace(polish(observation, equation, at), rounded=left < _BINARY)


def _read_targets(equation: Equation, loss: Separable, at: Unknowns) -> Tensor:
    """(B, C) the targets that a separable loss leaves at T, before they are rounded."""
    G = torch.linalg.lstsq(equation.extended(at.T).T, equation.U.T / at.alpha).solution
    found: Tensor = loss.link(equation.logits(at.T)) - G
    return found


def _nearest(given: Tensor, read: Tensor) -> Tensor:
    """The granted rows in the order of those that were read."""
    order = linear_sum_assignment(torch.cdist(read, given.to(read)).cpu().numpy())[1]
    return given.to(read)[torch.as_tensor(order, device=read.device)]


def _confirmations(one: Candidate, answers: list[Candidate]) -> int:
    """How many other starts ended in the same answer."""
    return sum(other is not one and other.explains and _agree(one, other) for other in answers)


def _agree(one: Candidate, other: Candidate) -> bool:
    if one.at.T.shape != other.at.T.shape:
        return False
    distance = torch.cdist(one.at.T, other.at.T).amin(1) / one.at.T.norm(dim=1).clamp_min(1e-300)
    return float(distance.max()) < _AGREE
