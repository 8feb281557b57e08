"""Damped Gauss–Newton for many starts at once, written once for every nonlinear problem.

A start is a row: points are (S, …), costs and dampings (S,), and one start is a batch of one. A
`NonlinearProblem` is linearized at points. Its linearization solves for damped steps, either by the
normal matrix (`Normal`) or by products with the Jacobian and conjugate gradients (`Products`). Each
start has a damping of its own (Levenberg and Marquardt), which follows the ratio of the decrease to
the predicted one (Nielsen 1999, "Damping parameter in Marquardt's method").
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import Tensor

from unsum.engine.budget import Budget
from unsum.engine.conjugate import Product, least_squares, out_of_patience
from unsum.running.deadline import out_of_time

# [of the diagonal, or of the metric] range of the damping. Chosen by: arbitrary budget.
_LEAST, _MOST = 1e-15, 1e12
# [of the cost] a predicted decrease below is rounding. Chosen by: float64's precision.
_NOTHING = 1e-14
# [of the largest] least entry of the diagonal that is damped. Chosen by: float64's range.
_FLOOR = 1e-30
# [of the largest diagonal entry] rounding of a JᵀJ that is computed as a difference, for `ridge`.
# Chosen by: float64's precision.
ROUNDING = 1e-14
_TINY = 1e-270  # keeps a diagonal of zeros from being one. Chosen by: float64's range.

Costs = Callable[[Tensor], Tensor]


class Linearization(Protocol):
    """A problem at S points: costs ‖r‖² (S,), damped steps, and what these promise."""

    @property
    def cost(self) -> Tensor: ...

    def step(self, damping: Tensor) -> Tensor:
        """(S, …) minimizers of ‖J d + r‖² + damping ‖d‖²; NaN where there is none."""

    def promised(self, step: Tensor) -> Tensor:
        """(S,) the decrease of the cost that J predicts, ‖r‖² − ‖J d + r‖²."""

    def costs(self, s: Tensor) -> Tensor:
        """(S,) the costs at other points, in the units of this one."""


class NonlinearProblem(ABC):
    """What a descent needs of a least-squares problem."""

    @property
    def entries(self) -> int:
        """The size of the Jacobian of one start."""
        return 1

    @abstractmethod
    def linearize(self, s: Tensor) -> Linearization:
        """The problem at points s (S, …)."""

    def take(self, rows: Tensor) -> Self:  # noqa: ARG002
        """The problem of some of its starts; itself, where all of them share one."""
        return self

    def moved(self, s: Tensor, step: Tensor) -> Tensor:
        """The points after a step."""
        return s + step


@dataclass(frozen=True)
class Normal:
    """A linearization by cost (S,), gradient Jᵀr (S, k) and normal matrix JᵀJ (S, k, k).

    `ridge`, in units of the largest entry of the diagonal, covers the rounding of a matrix that is
    computed as a difference.
    """

    cost: Tensor
    gradient: Tensor
    matrix: Tensor
    costs: Costs
    ridge: float = 0.0

    def step(self, damping: Tensor) -> Tensor:
        """Marquardt's damping, relative to the diagonal."""
        return damped_step(self.gradient, self.matrix, damping, self.ridge)

    def promised(self, step: Tensor) -> Tensor:
        curved = (self.matrix @ step[..., None])[..., 0]
        return -((2 * self.gradient + curved) * step).sum(1)


def damped_step(
    gradient: Tensor,
    matrix: Tensor,
    damping: Tensor | float,
    ridge: float = 0.0,
) -> Tensor:
    """(S, k) −(N + damping · diag N + ridge)⁻¹ g; NaN where the matrix is not positive definite."""
    diagonal = matrix.diagonal(dim1=1, dim2=2)
    largest = diagonal.amax(1, keepdim=True).clamp_min(_TINY)
    damping = damping[:, None] if isinstance(damping, Tensor) else damping
    added = damping * torch.maximum(diagonal, _FLOOR * largest) + ridge * largest
    factor, failed = torch.linalg.cholesky_ex(matrix + torch.diag_embed(added))
    step = -torch.cholesky_solve(gradient[..., None], factor)[..., 0]
    return step.masked_fill_((failed != 0)[:, None], torch.nan)


@dataclass(frozen=True)
class Products:
    """A linearization by J (`push`) and Jᵀ (`pull`), solved by conjugate gradients.

    `metric` is what the damping multiplies, and `precondition` an approximate inverse at a damping.
    """

    cost: Tensor
    gradient: Tensor
    push: Product
    pull: Product
    costs: Costs
    tolerance: Tensor | float
    iterations: int
    metric: Product = Tensor.clone
    precondition: Callable[[Tensor], Product] | None = None
    over: Callable[[], bool] = out_of_patience

    def step(self, damping: Tensor) -> Tensor:
        damping = beside(damping, self.gradient)
        return least_squares(
            self.push,
            self.pull,
            -self.gradient,
            self.tolerance,
            self.iterations,
            ridge=lambda d: damping * self.metric(d),
            precondition=Tensor.clone if self.precondition is None else self.precondition(damping),
            dots=lambda a, b: beside(inner(a, b), self.gradient),
            over=self.over,
        )[0]

    def promised(self, step: Tensor) -> Tensor:
        image = self.push(step)
        return -(2 * inner(step, self.gradient) + inner(image, image))


@dataclass(frozen=True)
class Descent:
    """Where S starts ended, in their order: points, costs, and the damping to go on with."""

    s: Tensor
    cost: Tensor
    damping: Tensor

    def __len__(self) -> int:
        return len(self.s)

    def __getitem__(self, rows: Tensor) -> Descent:
        return Descent(self.s[rows], self.cost[rows], self.damping[rows])

    @classmethod
    def of(cls, s: Tensor, damping: float) -> Descent:
        """Starts that have not been followed yet."""
        return cls(s, s.new_full((len(s),), torch.inf), s.new_full((len(s),), damping))

    @classmethod
    def joined(cls, parts: Sequence[Descent]) -> Descent:
        columns = zip(*(vars(part).values() for part in parts), strict=True)
        return cls(*map(torch.cat, columns))

    def put(self, rows: Tensor, ends: Descent) -> None:
        """Overwrite some rows."""
        for mine, new in zip(vars(self).values(), vars(ends).values(), strict=True):
            mine[rows] = new

    @property
    def misfit(self) -> Tensor:
        """(S,) norms of what is left."""
        return self.cost.sqrt()


@dataclass(frozen=True)
class StoppingRule:
    """Costs at which a start ends: below `enough` at once, below `noise` where it hardly falls."""

    enough: float = 0.0
    noise: float = 0.0
    hardly: float = 0.9  # [of the cost] a step that keeps more of it below the noise is the last
    untried: str = "further steps of the solver"


def descend(
    problem: NonlinearProblem,
    start: Tensor | Descent,
    budget: Budget,
    rule: StoppingRule = StoppingRule(),
) -> Descent:
    """Follow every start to where its cost stagnates, or as far as the budget goes.

    A start may be given with the damping that an earlier descent left it.
    """
    ends = start if isinstance(start, Descent) else Descent.of(start, budget.damping)
    if len(ends) == 0:
        return ends
    if ends.s[0].numel() == 0:
        return Descent(ends.s, problem.linearize(ends.s).cost, ends.damping)
    chunk = budget.at_once(problem.entries, ends.s.device.type)
    if len(ends) <= chunk:
        return _descend(problem, ends, budget, rule)
    rows = torch.arange(len(ends), device=ends.s.device).split(chunk)
    parts: list[Descent] = []
    for part in rows:
        if parts and out_of_time(rule.untried):  # these starts have not been followed
            parts.append(ends[part])
        else:
            parts.append(_descend(problem.take(part), ends[part], budget, rule))
    return Descent.joined(parts)


def _descend(
    problem: NonlinearProblem,
    ends: Descent,
    budget: Budget,
    rule: StoppingRule,
) -> Descent:
    s, live, pace = ends.s, torch.arange(len(ends), device=ends.s.device), _Pace.of(ends.damping)
    here, end = problem.linearize(s), time.monotonic() + budget.seconds
    cost, ends = here.cost, Descent(s.clone(), here.cost.clone(), ends.damping.clone())
    for number in range(1, budget.steps + 1):
        if time.monotonic() > end or out_of_time(rule.untried):
            break
        step = here.step(pace.damping)
        there = problem.moved(s, step)
        cost_there = here.costs(there)
        for halved in range(1, budget.halvings + 1):
            worse = ~(cost_there < cost)
            if not bool(worse.any()):
                break
            shorter = problem.moved(s, step / 2**halved)
            cost_shorter = here.costs(shorter)
            there = torch.where(beside(worse, s), shorter, there)
            cost_there = torch.where(worse, cost_shorter, cost_there)
        better, ended = pace.judge(cost, cost_there, here.promised(step), budget, rule)
        all_better = bool(better.all())
        s = there if all_better else torch.where(beside(better, s), there, s)
        cost = torch.where(better, cost_there, cost)
        if budget.trial is not None and number > budget.trial:
            ended = ended | (cost > budget.near**2)
        if number == budget.steps or bool(ended.all()):
            break
        if bool(ended.any()):
            ends.put(live, Descent(s, cost, pace.damping))
            kept = (~ended).nonzero()[:, 0]
            problem, live, s, pace = problem.take(kept), live[kept], s[kept], pace.take(kept)
        elif not all_better and not bool(better.any()):
            continue
        here = problem.linearize(s)
        cost = here.cost
    ends.put(live, Descent(s, cost, pace.damping))
    return ends


@dataclass
class _Pace:
    """The damping (S,) of every start, and what its last steps came to."""

    damping: Tensor
    growth: Tensor  # of the damping, at the next refusal: 2, then 4, 8, …
    stalled: Tensor  # [steps] in a row with hardly a gain, refusals not counted

    @classmethod
    def of(cls, damping: Tensor) -> _Pace:
        return cls(damping, torch.full_like(damping, 2.0), torch.zeros_like(damping))

    def take(self, rows: Tensor) -> _Pace:
        return _Pace(*(of_starts[rows] for of_starts in vars(self).values()))

    def judge(
        self, before: Tensor, after: Tensor, promised: Tensor, budget: Budget, rule: StoppingRule
    ) -> tuple[Tensor, Tensor]:
        """(S,) which steps are taken, and which starts have ended; the damping follows the gain."""
        better = (after < before) & (promised > 0)
        gain = (before - after) / promised
        factor = (1 - (2 * gain - 1) ** 3).clamp_min(1 / 3)
        slow = after > budget.stalled * before
        self.damping = (self.damping * torch.where(better, factor, self.growth)).clamp_min(_LEAST)
        self.growth = torch.where(better, 2.0, 2 * self.growth)
        self.stalled = torch.where(better, (self.stalled + 1) * slow, self.stalled)
        arrived = (self.stalled >= budget.patience) | (after < rule.enough)
        if rule.noise:
            arrived |= (after > rule.hardly * before) & (after < rule.noise)
        lost = (self.damping > _MOST) | (promised < _NOTHING * before)
        lost |= self.growth > 2.0**budget.refusals
        return better, torch.where(better, arrived, lost)


def inner(a: Tensor, b: Tensor) -> Tensor:
    """(S,) inner products of rows of any shape."""
    return (a * b).flatten(1).sum(1)


def beside(of_rows: Tensor, like: Tensor) -> Tensor:
    """A number (S,) of each row in a shape that multiplies rows `like` (S, …)."""
    return of_rows.view(-1, *[1] * (like.ndim - 1))
