"""The solver for declared losses: starts by kind, Levenberg–Marquardt, and a certificate like the exact solver's."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.errors import UnsumError
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.separate.exact.observation import Observation
from unsum.separate.exact.rank import Noise, factorize, rounding_of_an_entry
from unsum.separate.losses import separable, softmax
from unsum.separate.losses.equation import LossEquation, Solved, solve
from unsum.separate.losses.loss import Loss, Separable, Softmax
from unsum.separate.text.span import span_of

_EXPLAINED = 20.0  # standard deviations of the noise, as for the exact solver
_TRUSTED = 1e-3  # certified exact below this predicted error
_BINARY = 0.05  # largest distance of a target from 0 or 1 before it is rounded
_ROUNDS = 4  # of reading the targets and solving on
_MOST = 48  # samples: the normal matrix has as many unknowns squared
_VAGUE = 1e-2  # predicted error from which samples of equal labels are replaced by their mean
_HUGE = 1e12  # entries of T that no features have: the start ran away
_FAR = 200.0  # logarithms of a factor that no gradient was multiplied by: the same
_SPARE = 3  # equations left over without which a perfect fit proves nothing


@dataclass(frozen=True)
class Answer:
    """A solved start with its figures."""

    solved: Solved
    misfit: float
    errors: Tensor  # (B,) predicted relative errors of the features
    binary: float  # how far targets were from whole

    @property
    def explains(self) -> bool:
        return self.misfit < _EXPLAINED and self.binary < _BINARY


def separate_declared(head: Head, knowledge: Knowledge, loss: Loss, *, seed: int) -> Leak:
    """Every sample's features, logits and targets under a declared loss."""
    observation = observe(head, knowledge.known_batch_size)
    if observation.rank == 0:
        return _nothing(head, loss, "Nothing in the gradient stands out of its noise.")
    if observation.rank > _MOST:
        return _nothing(head, loss, f"More than {_MOST} samples: the solver for declared losses ends there.")
    generator = torch.Generator().manual_seed(seed)
    given = knowledge.targets(head.classes)
    answers: list[Answer] = []
    for equation, T, alpha in _starts(observation, loss, given, generator):
        answer = _solve(observation, equation, T, alpha, given)
        if answer is None:
            continue
        answers.append(answer)
        if sum(a.explains and _agree(a, answer) for a in answers) >= 2 or (answer.explains and len(answers) >= 8):
            break
    if not answers:
        return _nothing(head, loss, "Too few classes are free of labels to start from.")
    best = min(answers, key=lambda a: (not a.explains, a.misfit))
    return _leak(head, observation, loss, best, sum(a.explains and _agree(a, best) for a in answers))


def observe(head: Head, batch_size: int | None) -> Observation:
    """Factors and noise of the gradient; columns need not sum to zero, so noise is what the smallest directions hold."""
    span = span_of(head.grad_W)
    row_norms = head.row_norms(head.grad_W)
    precision, size = rounding_of_an_entry(head), float(row_norms.norm())
    level = (precision * row_norms / head.grad_W.shape[1] ** 0.5).clamp_min(1e-9 * precision * size + 1e-300)
    added = span.noisy
    if added:
        level = (level.square() + span.deviation**2).sqrt()
    noise = Noise(level, added, span.deviation * head.grad_W.numel() ** 0.5 / size if added else precision)
    factors = head.factorize(rank=batch_size or span.rank) if added else factorize(head, noise, batch_size)
    K = head.logits(factors.A)
    b = K.new_zeros(head.classes) if head.b is None else head.b.double()
    client = torch.finfo(head.W.dtype).eps / 2
    deviation = (level.square() + (client * factors.U.norm(dim=1)).square()).sqrt()
    grad_b = None if head.grad_b is None else head.grad_b.double()
    beta = 1.0
    if grad_b is not None:
        entry = ((span.deviation if added else 0.0) ** 2 + (max(precision, client) * grad_b).square()).sqrt()
        beta = float((deviation / entry.clamp_min(1e-12 * entry.max() + 1e-300)).median())
    norms = head.row_norms(head.W)
    return Observation(factors.U, factors.A, K, b, grad_b, noise, 1 / deviation, beta, head.reduction, norms, client)


def _starts(
    observation: Observation, loss: Loss, given: Tensor | None, generator: torch.Generator
) -> list[tuple[LossEquation, Tensor, float]]:
    U = observation.U
    if observation.grad_b is not None:
        U = torch.cat([U, observation.beta * observation.grad_b[:, None]], dim=1)
    zeros = U.new_zeros(observation.rank, observation.classes)
    equation = LossEquation(loss, observation.K, observation.b, U, observation.weight, observation.beta, zeros)
    found: list[tuple[LossEquation, Tensor, float]] = []
    if isinstance(loss, Separable):
        for start in separable.starts(observation, loss, generator):
            found.append((equation, start.T, start.alpha))
    elif isinstance(loss, Softmax):
        for labeled in softmax.starts(observation, loss, given, generator):
            alpha = 1 / loss.divisor(labeled.Y) if observation.reduction == "mean" else 1.0
            found.append((_with(equation, labeled.Y), labeled.T, alpha))
    else:
        raise UnsumError(f"There is no solver for the loss {loss.name!r}.")
    return found


def _with(equation: LossEquation, Y: Tensor, alpha_free: bool = True) -> LossEquation:
    return LossEquation(
        equation.loss, equation.K, equation.b, equation.U, equation.weight, equation.beta, Y, alpha_free
    )


def _solve(
    observation: Observation, equation: LossEquation, T: Tensor, alpha: float, given: Tensor | None
) -> Answer | None:
    """Solve from one start; a separable loss reads its targets off, rounds them and solves on until they stay."""
    log_alpha, binary = T.new_tensor(math.log(alpha)), 0.0
    if not isinstance(equation.loss, Separable):
        return _judge(observation, solve(equation, T, log_alpha), 0.0)
    solved = None
    for _ in range(_ROUNDS):
        if not bool(T.isfinite().all() & (T.abs().max() < _HUGE) & (log_alpha.abs() < _FAR)):
            break
        read = equation.read_targets(T, log_alpha)
        Y = read.round().clamp(0, 1) if given is None or len(given) != len(read) else _nearest(given, read)
        binary = float((read - Y).abs().max())
        if solved is not None and torch.equal(Y, solved.equation.Y):
            break
        solved = solve(_with(equation, Y), T, log_alpha)
        T, log_alpha = solved.T, solved.log_alpha
    if solved is None:
        return None
    return _judge(observation, solved, binary)


def _nearest(given: Tensor, read: Tensor) -> Tensor:
    """The granted rows in the order of those that were read."""
    from scipy.optimize import linear_sum_assignment

    order = linear_sum_assignment(torch.cdist(read, given.to(read)).cpu().numpy())[1]
    return given.to(read)[torch.as_tensor(order, device=read.device)]


def _judge(observation: Observation, solved: Solved, binary: float) -> Answer:
    """Misfit in units of the noise that the answer itself predicts, and the scatter that noise gives the features."""
    at, equation = solved, solved.equation
    B, R = at.T.shape
    G = equation.loss.gradient(at.T @ equation.K + equation.b, equation.Y)
    sizes = at.T.norm(dim=1, keepdim=True)
    relative = (G.abs() + equation.Y + 0.5 * sizes * observation.row_norms).square()
    client = observation.client_precision * at.log_alpha.exp() * (relative * sizes.square()).sum(0).sqrt()
    weight = torch.rsqrt(observation.weight.pow(-2) + client.square())
    weighted = LossEquation(equation.loss, equation.K, equation.b, equation.U, weight, equation.beta, equation.Y, True)
    polished = solve(weighted, at.T, at.log_alpha, iterations=15)
    unknowns, equations = B * R + 1, equation.U.numel()
    misfit = (polished.cost / max(equations - unknowns, 1)) ** 0.5
    size = polished.T.norm(dim=1).clamp_min(1e-300)
    prior = torch.cat([size.pow(-2).repeat_interleave(R), size.new_ones(1)]) * max(misfit, 1.0) ** 2
    errors = torch.full_like(size, torch.inf)
    N = polished.N + torch.diag(prior)
    scale = N.diagonal().rsqrt()
    factor, failed = torch.linalg.cholesky_ex(scale[:, None] * N * scale)
    if equations >= unknowns + _SPARE and not bool(failed):
        inverse = scale[:, None] * torch.cholesky_inverse(factor) * scale
        # F is a least-squares solution of α Gᵀ F = ∇W and passes on the noise outside the span of A, too.
        outside = torch.linalg.pinv(polished.log_alpha.exp() * G.T / observation.noise.level[:, None]).norm(dim=1)
        variance = inverse.diagonal()[:-1].view(B, R).sum(1) + outside.square() * observation.A.shape[1]
        errors = max(misfit, 1.0) * variance.sqrt() / size
    return Answer(polished, misfit, errors.nan_to_num(nan=torch.inf), binary)


def _agree(one: Answer, other: Answer) -> bool:
    if one.solved.T.shape != other.solved.T.shape:
        return False
    distance = torch.cdist(one.solved.T, other.solved.T).amin(1) / one.solved.T.norm(dim=1).clamp_min(1e-300)
    return float(distance.max()) < 1e-3


def _leak(head: Head, observation: Observation, loss: Loss, best: Answer, agreeing: int) -> Leak:
    at, equation = best.solved, best.solved.equation
    errors, notes = best.errors, [f"The loss was declared: {loss.name}."]
    T, Y = at.T, equation.Y
    sure = best.explains and float(errors.max()) < _TRUSTED and agreeing >= 1
    if best.misfit >= _EXPLAINED:
        notes.append(f"No start explains the gradient: the best leaves {best.misfit:.1g} deviations of its noise.")
    elif not best.explains:
        notes.append("The best start explains the gradient only with targets that are neither 0 nor 1.")
    elif not sure:
        vague = (errors >= _TRUSTED).nonzero()[:, 0].tolist()
        notes.append(
            f"The gradient does not determine samples {', '.join(map(str, vague))}; of equal labels their mean is given."
        )
    if best.explains:
        T = _means(T, Y, errors)
    if loss.name == "bce" and head.b is None:
        # (f, y) and (−f, 1 − y) have one gradient where no bias tells them apart: few labels are likelier than most.
        many = Y.sum(1, keepdim=True) > 0.5 * Y.shape[1]
        T, Y = torch.where(many, -T, T), torch.where(many, 1 - Y, Y)
        notes.append(
            "Without a bias a sample and its negative with all labels exchanged look alike: fewer labels were assumed."
        )
    explained = (
        at.log_alpha.exp() * loss.gradient(at.T @ equation.K + equation.b, equation.Y).T @ equation.extended(at.T)
    )
    plain = 1 / loss.divisor(equation.Y) if head.reduction == "mean" else 1.0
    dtype = head.W.dtype if head.W.dtype in (torch.float32, torch.float64) else torch.float32
    predicted = float(errors.max()) if best.explains else float("inf")
    return Leak(
        method="exact",
        targets=Y,
        logits=T @ equation.K + equation.b,
        features=(T @ observation.A).to(dtype),
        residual=float((explained - equation.U).norm() / equation.U.norm()),
        predicted_error=predicted,
        exact=sure,
        scale=float(at.log_alpha.exp()) / plain,
        notes=notes,
        loss=loss.name,
    )


def _means(T: Tensor, Y: Tensor, errors: Tensor) -> Tensor:
    """T with the mean in the place of samples of equal labels that the gradient does not tell apart."""
    for row in Y[errors >= _VAGUE].unique(dim=0):
        group = (row == Y).all(1) & (errors >= _VAGUE)
        T = torch.where(group[:, None], T[group].mean(0), T)
    return T


def _nothing(head: Head, loss: Loss, reason: str) -> Leak:
    C, H = head.W.shape
    return Leak(
        method="exact",
        targets=head.W.new_zeros((1, C), dtype=torch.float64),
        logits=head.W.new_zeros(1, C),
        features=head.W.new_zeros(1, H),
        residual=1.0,
        predicted_error=float("inf"),
        exact=False,
        notes=[f"The loss was declared: {loss.name}.", reason],
        loss=loss.name,
    )
