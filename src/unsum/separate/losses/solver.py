"""The solver for losses other than cross-entropy, declared or recognized: starts by kind,
Levenberg–Marquardt, a certificate.

What an update itself says about the loss: under softmax every row of G sums to zero, and so does
∇b.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from unsum.certify.candidate import Candidate, polish
from unsum.certify.question import Question
from unsum.equation.equation import Equation, Unknowns, solve
from unsum.equation.noise import Noise, factorize, rounding_of_an_entry, unit_of, without_decay
from unsum.equation.observation import Observation, observed
from unsum.equation.span import span_of
from unsum.errors import UnsumError
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.losses import BinaryCrossEntropy, Loss, Separable, Softmax, SquaredError
from unsum.running.late_scipy import linear_sum_assignment
from unsum.separate.adaptive.recognize import recognize
from unsum.separate.exact.search import SAME_SOLUTION, distance
from unsum.separate.exact.solver import leak_of, nothing_found
from unsum.separate.losses import separable, softmax

_BINARY = 0.05  # largest distance of a target from 0 or 1 before it is rounded
_ROUNDS = 4  # of reading the targets and solving on
_MOST = 48  # samples: the normal matrix has as many unknowns squared
_HUGE = 1e12  # entries of T that no features have: the start ran away
# starts after which one answer that explains the gradient is not asked for company any longer
_TRIES = 8
_OFF = 1e-3  # of the sum of magnitudes: rounding stays far below
_SANE = 1e-12  # sizes of a gradient whose squares and their products stay finite
_DEFENSES = ("grid", "random-grid", "pruned", "sign")  # they unbalance the columns of any loss
_LARGE = 1 << 26  # entries beyond which a further pass over ∇W is not worth it


def separate_declared(head: Head, knowledge: Knowledge, loss: Loss, *, seed: int) -> Leak:
    """Every sample's features, logits and targets under a declared loss."""
    answer = answer_declared(head, knowledge, loss, seed=seed)
    return (
        leak_of(answer)
        if isinstance(answer, Question)
        else nothing_found(head, knowledge, answer, loss.name)
    )


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
    return Question(
        head, observation, replace(best, confirmations=_confirmations(best, answers)), knowledge
    )


def observe(head: Head, batch_size: int | None, loss: Loss) -> Observation:
    """Factors and noise of the gradient; columns need not sum to zero, so noise is what the
    smallest directions hold."""
    span = span_of(head.grad_W)
    row_norms = head.row_norms(head.grad_W)
    precision, size = rounding_of_an_entry(head), float(row_norms.norm())
    level = (precision * row_norms / head.grad_W.shape[1] ** 0.5).clamp_min(
        1e-9 * precision * size + 1e-300
    )
    if span.noisy:
        level = (level.square() + span.deviation**2).sqrt()
    noise = Noise(
        level,
        span.noisy,
        span.deviation * head.grad_W.numel() ** 0.5 / size if span.noisy else precision,
    )
    factors = (
        head.factorize(rank=batch_size or span.rank)
        if span.noisy
        else factorize(head, noise, batch_size)
    )
    return observed(head, factors, noise, loss)


def _starts(
    observation: Observation, loss: Loss, given: Tensor | None, generator: torch.Generator
) -> Iterator[tuple[Equation, Unknowns]]:
    equation = replace(observation.equation(), alpha_free=True)
    if isinstance(loss, Separable):
        for T, alpha in separable.starts(observation, loss, generator):
            yield equation, Unknowns.of(T, alpha)
    elif isinstance(loss, Softmax):
        for Y, T in softmax.starts(observation, loss, given, generator):
            yield replace(equation, Y=Y), Unknowns.of(T, observation.plain_alpha(len(Y), Y))
    else:
        raise UnsumError(f"There is no solver for the loss {loss.name!r}.")


def _solved(
    observation: Observation, equation: Equation, at: Unknowns, given: Tensor | None
) -> Candidate | None:
    """Solve from one start; a separable loss reads its targets off, rounds them and solves on until
    they stay."""
    if not isinstance(observation.loss, Separable):
        at = solve(equation, at, 60)
        return polish(observation, equation, at) if at.is_sound else None
    left = 1.0
    for _ in range(_ROUNDS):
        if not at.is_sound or not bool(at.T.abs().max() < _HUGE):
            return None
        # (B, C) the targets that a separable loss leaves at T, before they are rounded.
        G = torch.linalg.lstsq(equation.extended(at.T).T, equation.U.T / at.alpha).solution
        read = observation.loss.link(equation.logits(at.T)) - G
        Y = read.round().clamp(0, 1)
        # the granted rows in the order of those that were read
        if given is not None and len(given) == len(read):
            order = linear_sum_assignment(torch.cdist(read, given.to(read)).cpu().numpy())[1]
            Y = given.to(read)[torch.as_tensor(order, device=read.device)]
        left = float((read - Y).abs().max())
        if equation.Y is not None and torch.equal(Y, equation.Y):
            break
        equation = replace(equation, Y=Y)
        at = solve(equation, at, 60)
    if not at.is_sound:
        return None
    return replace(polish(observation, equation, at), rounded=left < _BINARY)


def _confirmations(one: Candidate, answers: list[Candidate]) -> int:
    """How many other starts ended in the same answer."""
    others = [other.at.T for other in answers if other is not one and other.explains]
    T = one.at.T
    return sum(other.shape == T.shape and distance(T, other) < SAME_SOLUTION for other in others)


def is_no_softmax(head: Head) -> bool:
    """Whether ∇b or the columns of ∇W do not sum to zero although nothing else in the gradient
    looks like noise."""
    if head.grad_b is not None and bool((head.grad_b == 0).any()):
        return False
    if without_decay(head) is not None:
        return False
    if _imbalance(head) <= max(_OFF, 10 * unit_of(head.grad_W)):
        return False
    span = span_of(head.grad_W)
    return not span.noisy and not span.full


def _imbalance(head: Head) -> float:
    """How far from zero the gradient's columns sum, relative to the sum of their magnitudes."""
    found = 0.0
    if head.grad_b is not None:
        grad_b = head.grad_b.double()
        found = float(grad_b.sum().abs() / grad_b.abs().sum().clamp_min(1e-300))
    # by chance, perhaps: the columns of ∇W are more witnesses
    if found <= _OFF and head.grad_W.numel() <= _LARGE:
        columns = head.column_sums()
        found = float(columns.norm() / head.row_norms(head.grad_W).sum().clamp_min(1e-300))
    return found


def fitting_loss(head: Head, knowledge: Knowledge, *, seed: int) -> Leak | None:
    """The answer under a loss that was not declared but explains the update exactly; None where
    there is none."""
    size = max(float(extreme.abs()) for extreme in torch.aminmax(head.grad_W))
    if not _SANE < size < 1 / _SANE or not is_no_softmax(head) or recognize(head).kind in _DEFENSES:
        return None
    answers = [
        answer_declared(head, knowledge, loss, seed=seed)
        for loss in (SquaredError(), BinaryCrossEntropy())
    ]
    fitting = [
        answer for answer in answers if isinstance(answer, Question) and answer.candidate.explains
    ]
    if len(fitting) != 1:  # small logits of the one look like the other's
        return None
    leak = leak_of(fitting[0])
    reason = (
        "The gradient does not sum to zero over classes: no cross-entropy, and the loss "
        f"{leak.loss!r} alone explains it."
    )
    return replace(leak, notes=[reason, *leak.notes]) if leak.exact else None


def advice(head: Head) -> str | None:
    """A sentence where the update cannot come from cross-entropy."""
    if not is_no_softmax(head):
        return None
    return (
        "The gradient does not sum to zero over classes, as it does under cross-entropy: declare "
        "the loss (loss='bce', say)."
    )
