"""Samples that count unequally: uneven micro-batches, clients averaged by their sizes, losses with
weights of their own.

∇W = Σ_i a_i (p_i − y_i) f_iᵀ, with a factor for every sample instead of one for all: B more
unknowns than the one equation has. The regression over classes says what all samples of a label
weigh together, so each label's samples share that at first, and the equation is solved for T and
every log a_i together. Nothing is claimed about the answer: a sample that counts twice may be two
that are nearly alike, and only who knows the weights could tell.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unsum.certify.candidate import EXPLAINED
from unsum.certify.scatter import noise_outside, prior_of, scatter_of
from unsum.equation.equation import Linearized, NoFactorError, Unknowns, solve
from unsum.equation.levenberg import can_be_dense
from unsum.equation.noise import without_decay
from unsum.equation.observation import Observation, observe
from unsum.equation.threads import few_threads
from unsum.errors import UnsumError
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.labels.ilrg import whole_counts
from unsum.leak import Leak
from unsum.running.deadline import out_of_time
from unsum.separate.exact.regression import ClassLine, fit_class_line
from unsum.separate.exact.solver import nothing_found
from unsum.separate.exact.starts import rotate_to_targets
from unsum.separate.method import SEPARATORS, uncertified

_SHARE = 5e-3  # of all labels' mass that a label has at least; less is the regression's own error
_STARTS, _EACH = 24, 6  # in all, and of one choice of labels
_STEPS, _MORE_STEPS = 15, 60  # of every start, and of one that comes near
_NEAR = 1e-2  # of where it began: a start whose misfit fell so far is pursued to its end
_ALIKE = 1.001  # times the smallest weight: no weights of their own
_SPARE = 3  # equations left over without which a perfect fit proves nothing


@SEPARATORS.register(
    "uneven",
    summary="samples that count unequally, each with its own weight (unsum)",
    needs="the last layer's gradient; fewer samples than classes",
)
def uneven(head: Head, knowledge: Knowledge, *, seed: int) -> Leak:
    """`leak.weights` says how much each sample counts, 1 on average; never certified."""
    decayed = without_decay(head)
    clean, noise = (head, None) if decayed is None else (decayed[0], decayed[2])
    observation = observe(clean, knowledge.known_batch_size, noise)
    refusal = _refusal(observation)
    if refusal:
        return replace(nothing_found(head, knowledge, refusal), method="uneven")
    with few_threads(observation.U.numel()):
        best = _best(observation, knowledge.targets(head.classes), seed)
    if best is None:
        return replace(
            nothing_found(head, knowledge, "No start led to samples of unequal weights."),
            method="uneven",
        )
    return best.leak(clean)


def _refusal(observation: Observation) -> str:
    """Why there is nothing to solve; empty where there is."""
    R, C = observation.rank, observation.classes
    if R == 0:
        return "Nothing in the gradient stands out of its noise."
    if (C - 1 - R) * (R + 1) < _SPARE:
        return (
            f"{R} directions are too many for {C} classes, where every sample has a weight of its "
            "own."
        )
    if not can_be_dense(R * R, C):
        raise UnsumError(
            f"Unequal weights are sought for fewer samples than {R} of {C} classes; use 'exact'."
        )
    return ""


@dataclass(frozen=True)
class _Answer:
    """Where the equation ends for samples of targets Y: T (B, R) and a factor a (B,) of each."""

    observation: Observation
    here: Linearized

    @property
    def misfit(self) -> float:
        """In standard deviations of the noise; columns sum to zero, so one row says nothing new."""
        # no floor
        (C, columns), unknowns = self.here.residual.shape, self.here.at.vector.numel() - 1
        found = float(self.here.cost / max((C - 1) * columns - unknowns, 1)) ** 0.5
        return found if found == found else float("inf")

    def errors(self) -> Tensor:
        """(B,) predicted relative errors of the features: T and the factors scatter together."""
        T, least = self.here.at.T, max(self.misfit, 1.0)
        size = T.norm(dim=1).clamp_min(1e-300)
        if self.misfit > EXPLAINED:
            return torch.full_like(size, torch.inf)
        # Nor are factors other by more than their own size.
        covariance, _ = scatter_of(self.here, prior_of(T, least, 1 + len(T)))
        outside = noise_outside(
            self.here, self.observation.noise.level, self.observation.A.shape[1]
        )
        return (covariance.diagonal() * least**2 + outside.square()).sqrt() / size

    def leak(self, head: Head) -> Leak:
        observation, at = self.observation, self.here.at
        T, a = at.T, at.alpha
        errors = self.errors().nan_to_num(nan=torch.inf, posinf=torch.inf)
        total = float(a.sum()) if observation.reduction == "mean" else float(a.mean())
        left = ((a[:, None] * self.here.G).T @ T - observation.U).norm() / observation.U.norm()
        leak = uncertified(
            "uneven",
            head,
            self.here.equation.logits(T),
            self.here.equation.targets(at),
            T @ observation.A,
            _notes(a, self.misfit),
            residual=float(left),
            predicted_error=float(errors.max()),
            scale=total,
        )
        # nobody asked what else explains the gradient
        return replace(leak, weights=a / a.mean(), predicts=False)


def _notes(factors: Tensor, misfit: float) -> list[str]:
    if misfit > EXPLAINED:
        return [f"Samples of unequal weights miss the gradient by {misfit:.1e} times its noise."]
    least, most = (float(f / factors.mean()) for f in (factors.min(), factors.max()))
    if most < _ALIKE * least:
        return ["Samples count alike, although each might have had a weight of its own."]
    return [
        f"Samples count unequally: from {least:.3g} to {most:.3g} times their mean. Nothing is "
        "claimed, because one that counts twice may be two that are nearly alike."
    ]


def _best(observation: Observation, targets: Tensor | None, seed: int) -> _Answer | None:
    """The first answer that explains the gradient, or the one that comes closest."""
    generator, best = torch.Generator().manual_seed(seed), None
    line = fit_class_line(observation)
    for tried, (Y, start) in enumerate(_starts(observation, line, targets, generator)):
        if tried == _STARTS or (
            best is not None and (best.misfit < EXPLAINED or out_of_time("unequal weights"))
        ):
            break
        found = _solved(observation, Y, start)
        if found is not None and (best is None or found.misfit < best.misfit):
            best = found
    return best


def _starts(
    observation: Observation, line: ClassLine, targets: Tensor | None, generator: torch.Generator
) -> Iterator[tuple[Tensor, Unknowns]]:
    """Targets (B, C) with a point to start from: the label rows' own sums, and random ones inside a
    label."""
    R = observation.rank
    for Y in _hypotheses(line, R) if targets is None else [targets]:
        if len(Y) != R:
            return
        counts = Y.sum(0)
        each = torch.where(
            counts > 0, line.mass / counts.clamp_min(1), line.mass.new_ones(())
        ).clamp_min(_SHARE / R)
        shares = Y @ each
        scaled = replace(line, sums=line.sums * (shares.mean() / each)[:, None])
        for _ in range(_EACH if int(counts.max()) > 1 else 1):
            try:
                T = rotate_to_targets(scaled, Y, generator)
            except (torch.linalg.LinAlgError, NoFactorError):  # type: ignore[attr-defined]
                return  # the line itself is no number: it proposes nothing
            yield Y, Unknowns(T, T.new_zeros(()), (line.scale * shares / shares.sum()).log())


def _hypotheses(line: ClassLine, samples: int) -> Iterator[Tensor]:
    """(B, C) one-hot targets: every label at least once, numbers near the labels' masses first."""
    mass = torch.where(line.labeled, line.mass, torch.zeros_like(line.mass)).clamp_min(0)
    order = mass.argsort(descending=True)[:samples]
    labels = order[mass[order] > _SHARE * mass.sum()]
    if not 0 < len(labels) <= samples:
        return
    shares = mass[labels] * (samples / mass[labels].sum())
    # One for every label, and the others as the masses say; then whatever is one sample's change
    # away.
    first = (
        1 + whole_counts(shares - 1, samples - len(labels))
        if samples > len(labels)
        else torch.ones_like(labels)
    )
    waiting, seen = [(0.0, tuple(first.tolist()))], {tuple(first.tolist())}
    while waiting:
        _, counts = heapq.heappop(waiting)
        chosen = labels.repeat_interleave(torch.tensor(counts, device=labels.device))
        yield torch.nn.functional.one_hot(chosen, len(mass)).double()
        for giver in range(len(counts)):
            for taker in range(len(counts)):
                other = tuple(n - (i == giver) + (i == taker) for i, n in enumerate(counts))
                if (
                    giver != taker
                    and counts[giver] > 1
                    and other not in seen
                    and len(seen) < 16 * _STARTS
                ):
                    seen.add(other)
                    away = sum(
                        (n - float(share)) ** 2 for n, share in zip(other, shares, strict=True)
                    )
                    heapq.heappush(waiting, (away, other))


def _solved(observation: Observation, Y: Tensor, start: Unknowns) -> _Answer | None:
    """Solved from one start, and on with the noise model's weights there where it comes near."""
    equation = replace(observation.equation(), Y=Y, alpha_free=True)
    at = solve(equation, start, _STEPS, in_noise_units=True)
    if float(equation.cost(at)) < _NEAR**2 * float(equation.cost(start)):
        at = solve(equation, at, _MORE_STEPS, in_noise_units=True)
    if not at.is_sound:
        return None
    equation = equation.with_rows(observation.weights_at(at, Y))
    return _Answer(
        observation, Linearized(equation, solve(equation, at, _STEPS, in_noise_units=True))
    )
