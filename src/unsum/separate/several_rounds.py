"""One client in several rounds, on the same data: more equations for the same features.

Every round r gives  α_r T̃ᵀ (softmax(T K_r + b_r) − Y) = U_rᵀ  with weights W_r of its own, and one
T for all of them if the features are the same: A spans the rows of all gradients together. Noise is
averaged, and what one round leaves open another may decide. Features move with the body of the
network; where they moved by more than the noise, the rounds do not fit together, and that shows in
the misfit.

The rounds' heads stand below each other, as one head of n·C classes; rounds that say the same count
as one.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from unsum.certify.candidate import Candidate, reweighted
from unsum.certify.doubts.faint import PLAIN
from unsum.certify.doubts.network import doubt_network, withhold
from unsum.certify.question import Question
from unsum.equation.equation import NoFactorError, Unknowns, solve
from unsum.equation.noise import Noise, factorize, measure_noise
from unsum.equation.observation import Observation, observe, observed
from unsum.equation.threads import few_threads
from unsum.errors import UnsumError
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.losses import StackedCrossEntropy
from unsum.separate.exact.regression import fit_class_line
from unsum.separate.exact.search import SAME_SOLUTION, distance
from unsum.separate.exact.solver import exact, leak_of
from unsum.separate.exact.starts import rotate_to_targets
from unsum.separate.local_steps.polish import EXPLAINED
from unsum.update import Update

_HARD = 0.1  # of a target, within which it is taken for hard
_APART = 10.0  # times the noise: what two rounds' predictions must differ by to be two rounds
_STARTS = 12  # at random, that may confirm a solution
_ITERATIONS = 100  # to solve from one start
_FAILED = (torch.linalg.LinAlgError, NoFactorError)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Together:
    """The answer for all rounds, laid before the certificate as if they were one head's."""

    question: Question
    heads: list[Head]

    def alike(self) -> tuple[int, int] | None:
        """Two rounds whose predictions differ by less than the noise shows: they are one round."""
        observation, candidate, n = (
            self.question.observation,
            self.question.candidate,
            len(self.heads),
        )
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
        features = candidate.at.T @ self.question.observation.A
        return candidate.explains and distance(features, leak.features.double()) < SAME_SOLUTION

    def leak(self) -> Leak:
        """The answer with the targets and logits of the first round's head."""
        leak, C = leak_of(self.question), self.heads[0].classes
        return replace(leak, targets=leak.targets[:, :C], logits=leak.logits[:, :C])


def _solved(
    heads: list[Head], single: list[Leak], knowledge: Knowledge, seed: int
) -> Together | str:
    """The answer, or a sentence that says why there is none."""
    best = min(single, key=lambda leak: leak.predicted_error)
    targets = _hard(best, knowledge)
    if targets is None:
        return "their labels are soft, and are read off one round only."
    B, whole = best.batch_size, _joined(heads, torch.cat)  # one head of all rounds' classes
    observation = observe_stacked(whole, heads, None)
    if observation.rank > B:
        return (
            f"they have {observation.rank} directions, and {B} samples were found in one of them."
        )
    if knowledge.known_batch_size is not None and observation.rank < B:
        observation = observe_stacked(whole, heads, B)
    observation = _scaled_alike(observation, best, targets)
    starts = [(leak.features.double() @ observation.A.T, _hard(leak, knowledge)) for leak in single]
    answers = [
        _candidate(observation, T, Y, best) for T, Y in starts if Y is not None and len(T) == B
    ]
    found = min(answers, key=lambda answer: answer.certificate.misfit)
    if found.certificate.misfit > EXPLAINED:
        return (
            f"one batch misses them by {found.certificate.misfit:.1e} times their noise; features "
            "moved, or data differ."
        )
    others = (answer for answer in answers if answer is not found)
    Y = found.Y[:, : heads[0].classes]
    at_random = (
        _candidate(observation, T, Y, best) for T in _random_starts(observation, heads, Y, seed)
    )
    found = _confirmed(found, itertools.chain(others, at_random))
    return Together(Question(whole, observation, found, knowledge), heads)


def _hard(leak: Leak, knowledge: Knowledge) -> Tensor | None:
    """(B, C) the targets of a round's answer: those that were granted, or hard ones where all of
    them nearly are."""
    Y = leak.targets.double()
    if knowledge.labels is not None:
        return Y
    hard = torch.nn.functional.one_hot(Y.argmax(1), Y.shape[1]).double()
    return hard if float((Y - hard).abs().max()) < _HARD else None


def _scaled_alike(observation: Observation, best: Leak, targets: Tensor) -> Observation:
    """Every round as if its gradient had been multiplied as that of the best answer was, which
    tells by how much it was."""
    n = observation.loss.heads
    at = _start(observation, best.features.double() @ observation.A.T, best)
    G = observation.loss.gradient(at.T @ observation.K + observation.b, targets.repeat(1, n))
    expected, seen = (at.alpha * G.T @ at.T).view(n, -1), observation.U.view(n, -1)
    factors = (expected * seen).sum(1) / seen.square().sum(1).clamp_min(1e-300)
    plain = ~(factors.clamp_min(1e-300).log().abs() > PLAIN)
    factors = torch.where(plain | (factors <= 0), torch.ones_like(factors), factors)
    rows = factors.repeat_interleave(observation.classes // n)
    noise = replace(observation.noise, level=observation.noise.level * rows)
    grad_b = None if observation.grad_b is None else observation.grad_b * rows
    return replace(
        observation,
        U=observation.U * rows[:, None],
        grad_b=grad_b,
        noise=noise,
        weight=observation.weight / rows,
    )


def _start(observation: Observation, T: Tensor, best: Leak) -> Unknowns:
    return Unknowns.of(T, observation.alpha(best.scale, best.batch_size))


def _candidate(observation: Observation, T: Tensor, Y: Tensor, best: Leak) -> Candidate:
    """Solved from one start, with the scale of the best round's answer: known, or solved for as
    well."""
    equation = replace(
        observation.equation(),
        Y=Y.repeat(1, observation.loss.heads),
        alpha_free=abs(best.scale - 1) > 1e-12,
    )
    at = _start(observation, T, best)
    solved = solve(equation, at, _ITERATIONS, in_noise_units=True)
    return reweighted(observation, equation, solved if solved.is_sound else at)


def _random_starts(
    observation: Observation, heads: list[Head], Y: Tensor, seed: int
) -> Iterator[Tensor]:
    """(B, R) the rounds' own regressions over classes, each turned at random among the samples of a
    label."""
    generator = torch.Generator().manual_seed(seed)
    parts = [observe(head, len(Y)) for head in heads]
    lines = [(part, fit_class_line(part)) for part in parts if part.rank > 0]
    for place in range(_STARTS):
        part, line = lines[place % len(lines)]
        yield rotate_to_targets(line, Y, generator) @ part.A @ observation.A.T


def _confirmed(found: Candidate, others: Iterable[Candidate]) -> Candidate:
    """Counts the starts that led to the same answer; one that led to another, which fits as well,
    takes the count away."""
    for other in others:
        if distance(found.at.T, other.at.T) < SAME_SOLUTION:
            return replace(found, confirmations=1)
        if other.certificate.misfit < max(2 * found.certificate.misfit, 1.0):
            return found
    return found


def of_equal_weights(groups: list[list[Head]]) -> list[list[Head]]:
    """Groups joined whose first heads are equal: the same weights on the same batch send the same
    gradient."""
    joined: list[list[Head]] = []
    for group in groups:
        same = next((other for other in joined if _equal(other[0], group[0])), None)
        if same is None:
            joined.append(list(group))
        else:
            same.extend(group)
    return joined


def _equal(one: Head, other: Head) -> bool:
    if not torch.equal(one.W, other.W) or (one.b is None) != (other.b is None):
        return False
    return one.b is None or other.b is None or torch.equal(one.b, other.b)


def merged(group: list[Head]) -> Head:
    """Rounds that say the same as one: the mean of their gradients where noise was added, else any
    of them."""
    if len(group) == 1 or not any(measure_noise(head).added for head in group):
        return group[0]
    like = group[0].W
    return _joined(
        group, lambda parts: torch.stack([part.double() for part in parts]).mean(0).to(like)
    )


def _joined(heads: list[Head], join: Callable[[list[Tensor]], Tensor]) -> Head:
    """All tensors of one kind as one; a bias counts only where every round has one."""
    joined: dict[str, Any] = {}
    for name in ("W", "b", "grad_W", "grad_b"):
        parts = [getattr(head, name) for head in heads]
        joined[name] = None if any(part is None for part in parts) else join(parts)
    return replace(heads[0], **joined)


def observe_stacked(head: Head, heads: list[Head], batch_size: int | None) -> Observation:
    """What all rounds say: rows in units of their own noise, so that a loud round does not turn the
    basis."""
    every = [measure_noise(one) for one in heads]
    noise = Noise(
        torch.cat([one.level for one in every]),
        any(one.added for one in every),
        max(one.relative for one in every),
    )
    return observed(
        head, factorize(head, noise, batch_size), noise, StackedCrossEntropy(len(heads))
    )


def separate_rounds(
    rounds: Sequence[tuple[nn.Module, Update]],
    *,
    labels: Tensor | None = None,
    batch_size: int | None = None,
    device: torch.device | str | None = None,
    seed: int = 0,
) -> Leak:
    """`separate` for a client that trained on the same batch in several rounds. Only for data that
    are known to repeat.

    With the same features F (B, H) in every round r, ∇W_r = α (P_r − Y)ᵀ F: n rounds are one head
    of n·C classes.

    Rounds whose weights are equal, or so nearly that the noise hides the difference, count as one.

    Args:
        rounds: for each round the model with the weights that were sent, and the update that came
            back.
        labels, batch_size, device, seed: as for `separate`.

    Returns:
        One `Leak` for all rounds, or the best of the single ones, with a note, where the rounds do
        not fit together.

    Examples:
        >>> import torch, unsum
        >>> _ = torch.manual_seed(0)
        >>> inputs, labels = torch.randn(3, 64), torch.tensor([4, 4, 1])
        >>> models = [torch.nn.Linear(64, 20) for _ in range(2)]
        >>> leak = unsum.separate_rounds(
        ...     [(model, unsum.capture(model, inputs, labels)) for model in models]
        ... )
        >>> sorted(leak.labels.tolist()), leak.exact
        ([1, 4, 4], True)
    """
    if not rounds:
        raise UnsumError("No round was given; pass a list of (model, update), one for each round.")
    start = time.perf_counter()
    knowledge = Knowledge(labels=labels, batch_size=batch_size, repeated_rounds=len(rounds))
    heads = [Head.of(model, update, device) for model, update in rounds]
    odd = next((head for head in heads if head.W.shape != heads[0].W.shape), None)
    if odd is not None:
        shapes = f"{tuple(heads[0].W.shape)} and {tuple(odd.W.shape)}"
        raise UnsumError(
            f"The rounds are of different models: their heads have the shapes {shapes}."
        )
    leak = _separated([[head] for head in heads], knowledge, seed)
    leak = withhold(
        leak, [doubt for head in heads for doubt in doubt_network(head, "exact", leak.loss)][:1]
    )
    return replace(leak, knowledge=knowledge, seconds=time.perf_counter() - start).published()


def _separated(groups: list[list[Head]], knowledge: Knowledge, seed: int) -> Leak:
    """All rounds together; those of one group have weights that say the same."""
    groups = of_equal_weights(groups)
    heads = [merged(group) for group in groups]
    single = [exact(head, knowledge, seed=seed) for head in heads]
    total = sum(map(len, groups))
    if len(heads) == 1:
        return (
            _with_note(single[0], f"{total} rounds of equal weights count as one.")
            if total > 1
            else single[0]
        )
    place = min(range(len(single)), key=lambda place: single[place].predicted_error)
    best = single[place]
    together: Together | str = "nothing could be solved for all of them."
    with (
        suppress(*_FAILED),
        few_threads(heads[0].classes * len(heads) * max(leak.batch_size for leak in single)),
    ):
        together = _solved(heads, single, knowledge, seed)
    if isinstance(together, str):
        where = f"The answer is of round {place + 1} of {len(heads)} alone."
        return _with_note(best, f"The rounds do not fit together: {together} {where}")
    alike = together.alike()
    if alike is not None:
        first, second = alike
        joined = [*groups[first], *groups[second]]
        rest = [group for place, group in enumerate(groups) if place not in alike]
        return _separated([joined, *rest], knowledge, seed)
    try:
        leak = together.leak()
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        return _with_note(best, f"{total} rounds together leave nothing that could be inverted.")
    if best.exact and not leak.exact and together.agrees_with(best):
        note = (
            f"{total} rounds fit together, but their weights leave more open than one of them does."
        )
        return _with_note(best, note)
    note = (
        f"{total} rounds were solved together; one round alone predicted "
        f"{best.predicted_error:.1e}."
    )
    return _with_note(leak, note)


def _with_note(leak: Leak, note: str) -> Leak:
    return replace(leak, notes=[note, *leak.notes])
