"""Labels by exchange: for batches of a trained model with more samples than half the classes, where
none can be found alone.

With the right labels the coupled equation leads to the batch from almost any start; the regression
that counts them is only nearly right where the softmax is peaked. Wrong counts show at both ends. A
label row that lacks a sample keeps the largest residual; a sample too many hides where p = e_y,
with no gradient at all. So that sample is given to that row, and solved on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unsum.equation.equation import Unknowns, solve
from unsum.equation.observation import Observation
from unsum.running.deadline import out_of_time
from unsum.separate.exact.regression import ClassLine
from unsum.separate.exact.starts import ratio_starts, usual_rows

# changes in a row that may lead nowhere: batches that were found were found after six at most
_FAILURES = 8
_FAR = 1e-3  # unexplained share beyond which no batch of C − 1 samples was found
_FEW = 3  # changes that are tried there
# of what was unexplained that a change must leave at most, for more of them to be tried
_PROGRESS = 0.7
# to solve after a change from where the last one ended, and from a fresh start
_ITERATIONS, _FRESH = 25, 60
_EXPLAINED = 1e-11  # share of the squared gradient: rounding is below, local minima far above
_SPREADS = (0.5, 1.0, 2.0)  # of the label rows' ratios, that starts are moved by: small ones first


def first_counts(observation: Observation, line: ClassLine, grad_b: Tensor) -> Tensor | None:
    """(C,) how many of the R samples carry each class: what signs prove, then what the regression's
    p̄ makes likely.

    None where the signs alone prove more samples than there are: a gradient that was scaled.
    """
    B, K, alpha = observation.rank, observation.K, observation.alpha(1.0, observation.rank)
    free = ~line.labeled & (grad_b > 0)
    free = free if bool(free.any()) else grad_b > 0
    counts = (-grad_b / alpha - 1e-3).ceil().clamp_min(0)  # p̄ is not negative
    if not bool(free.any()) or not float(counts.sum()) <= B:
        return None
    height = observation.b + line.mean @ K + 0.5 * ((line.covariance @ K) * K).sum(0)
    level = (grad_b.clamp_min(1e-300).log() - height)[free].median()
    mass = (height + level).exp().div(alpha).clamp(max=0.5 * B) - grad_b / alpha
    for _ in range(B - int(counts.sum())):
        counts[(mass - counts).argmax()] += 1
    return counts.long()


def exchange_labels(
    observation: Observation, line: ClassLine, generator: torch.Generator, iterations: int
) -> tuple[Tensor, Tensor] | None:
    """Labels (B,) and T (B, R) of R samples of hard label, as far as exchanges lead in about so
    many iterations."""
    grad_b = observation.grad_b
    if grad_b is None or observation.noise.added:
        return None
    counts = first_counts(observation, line, grad_b)
    if counts is None or not bool(usual_rows(observation, grad_b).any()):
        return None
    labels = torch.repeat_interleave(
        torch.arange(observation.classes, device=counts.device), counts
    )
    here = _State.solved(
        observation,
        labels,
        ratio_starts(observation, grad_b, labels, generator, _SPREADS[0]),
        _FRESH,
    )
    failed = 0
    for _ in range(max(1, iterations // _ITERATIONS)):
        far = here.unexplained > _FAR and observation.rank >= observation.classes - 1
        if here.unexplained < _EXPLAINED or failed > (_FEW if far else _FAILURES):
            break
        if out_of_time("further exchanges of labels"):
            break
        there = here.varied(failed, grad_b, generator)
        before = here.unexplained
        if there.unexplained < 0.999 * before:
            here = there.pursued()
        failed = 0 if here.unexplained < _PROGRESS * before else failed + 1
    return here.labels, here.T


@dataclass(frozen=True)
class _State:
    """Where the solver ended with some labels, and what that leaves unexplained: by row, and as a
    share of all squares."""

    observation: Observation
    labels: Tensor
    T: Tensor
    residual: Tensor
    unexplained: float

    @classmethod
    def solved(
        cls,
        observation: Observation,
        labels: Tensor,
        T: Tensor,
        iterations: int,
        power: float = 0.5,
    ) -> _State:
        Y = torch.nn.functional.one_hot(labels, observation.classes).double()
        equation = replace(observation.equation(), Y=Y)
        start = Unknowns.of(T, observation.alpha(1.0, len(T)))
        at = solve(equation.with_rows(observation.weight**power), start, iterations)
        equation = equation.with_rows(observation.weight.sqrt())
        total = (equation.weight[:, None] * equation.U).square().sum()
        residual = equation.residual(at)
        return cls(observation, labels, at.T, residual, float(residual.square().sum() / total))

    def varied(self, failed: int, grad_b: Tensor, generator: torch.Generator) -> _State:
        """Solved again with one thing changed; what, depends on how many changes have failed."""
        observation, labels, T = self.observation, self.labels.clone(), self.T.clone()
        if failed % 2 == 0:
            row, surplus = self.proposal(failed // 2)
            labels[surplus] = row
            T[surplus] = ratio_starts(
                observation, grad_b, labels[surplus : surplus + 1], generator, _SPREADS[0]
            )[0]
            return _State.solved(observation, labels, T, _ITERATIONS)
        fresh = ratio_starts(observation, grad_b, labels, generator, _SPREADS[1 + failed // 2 % 2])
        if failed % 4 == 1:  # only those of the rows that miss most
            worst = self.residual.norm(dim=1)[labels].argsort(descending=True)[
                : max(2, len(T) // 8)
            ]
            T[worst] = fresh[worst]
            return _State.solved(observation, labels, T, _FRESH)
        return _State.solved(
            observation, labels, fresh, _FRESH, power=0.0 if failed % 8 == 3 else 0.5
        )

    def pursued(self) -> _State:
        """Solved on for as long as that pays."""
        here = self
        while here.unexplained > _EXPLAINED:
            there = _State.solved(here.observation, here.labels, here.T, _ITERATIONS)
            if there.unexplained > 0.3 * here.unexplained:
                return there
            here = there
        return here

    def proposal(self, failed: int) -> tuple[int, int]:
        """The row that misses most, and the sample of another label that is explained best by no
        gradient at all."""
        row = int(self.residual.norm(dim=1).argmax())
        P = torch.softmax(self.T @ self.observation.K + self.observation.b, dim=1)
        left = 1 - P[torch.arange(len(P), device=P.device), self.labels]
        order = torch.where(self.labels == row, torch.inf, left).argsort()
        others = max(1, int((self.labels != row).sum()))
        return row, int(order[failed % others])
