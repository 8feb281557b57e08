"""Damped Gauss–Newton by hand: one start, several, and what ends them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import pytest
import torch
from torch import Tensor

from unsum.engine.budget import Budget
from unsum.engine.descend import (
    Descent,
    NonlinearProblem,
    Normal,
    Products,
    StoppingRule,
    damped_step,
    descend,
)
from unsum.running.deadline import time_limit

ONE = Budget(steps=1, damping=1.0)


def at(*points: float) -> Tensor:
    return torch.tensor(points, dtype=torch.float64)[:, None]


@dataclass
class Scalar(NonlinearProblem):
    """r(s) of one unknown, with its derivative; `offset` (S,) is each start's own."""

    kind: str
    offset: Tensor
    sizes: list[int] = field(default_factory=list)

    def residual(self, s: Tensor) -> tuple[Tensor, Tensor]:
        if self.kind == "linear":
            return 2 * s - self.offset, torch.full_like(s, 2.0)
        if self.kind == "flat":
            return torch.ones_like(s), torch.zeros_like(s)
        return torch.atan(s) - self.offset, 1 / (1 + s.square())

    def linearize(self, s: Tensor) -> Normal:
        self.sizes.append(len(s))
        r, J = self.residual(s[:, 0])
        return Normal(r.square(), (J * r)[:, None], J.square()[:, None, None], self.costs)

    def costs(self, s: Tensor) -> Tensor:
        return self.residual(s[:, 0])[0].square()

    def take(self, rows: Tensor) -> Self:
        return type(self)(self.kind, self.offset[rows], self.sizes)


def linear(*offsets: float) -> Scalar:
    return Scalar("linear", at(*offsets)[:, 0])


def bent(*offsets: float) -> Scalar:
    return Scalar("bent", at(*offsets)[:, 0])


def test_a_damped_step_and_the_damping_after_it() -> None:
    """2 s − 4 at 0: g = −8, N = 4; with damping 1 the step is 8 / 8, and keeps its promise."""
    end = descend(linear(4.0), at(0.0), ONE)
    torch.testing.assert_close(end.s, at(1.0))
    torch.testing.assert_close(end.cost, at(4.0)[:, 0])
    torch.testing.assert_close(end.damping, at(1 / 3)[:, 0])
    torch.testing.assert_close(end.misfit, at(2.0)[:, 0])
    again = descend(linear(4.0), end, ONE)  # 4 / (4 · 4/3) further
    torch.testing.assert_close(again.s, at(1.75))


def test_a_step_that_promises_more_than_it_gives_raises_the_damping() -> None:
    """atan s − 0 at 2: the whole step leads to 2 − 5 atan 2 = −3.54, where the cost is larger."""
    start = at(2.0)
    end = descend(bent(0.0), start, Budget(steps=1, damping=1e-9))
    torch.testing.assert_close(end.s, start)
    torch.testing.assert_close(end.damping, at(2e-9)[:, 0])
    end = descend(bent(0.0), start, Budget(steps=3, damping=1e-9))  # 2 · 4 · 8
    torch.testing.assert_close(end.damping, at(64e-9)[:, 0])
    end = descend(bent(0.0), start, Budget(steps=9, damping=1e-9, refusals=2))
    torch.testing.assert_close(end.damping, at(8e-9)[:, 0])
    end = descend(bent(0.0), start, Budget(damping=1e-9), StoppingRule(enough=1e-24))
    assert float(end.misfit) < 1e-12


def test_each_of_several_starts_goes_its_own_way() -> None:
    """As if it were alone: other points, other data, other dampings, in the order of the starts."""
    offsets, starts = (0.3, 1.2, -0.9, 0.0), (5.0, 0.1, 0.4, 2.0)
    budget = Budget(steps=40, damping=1e-6)
    together = descend(bent(*offsets), at(*starts), budget, StoppingRule(enough=1e-26))
    torch.testing.assert_close(together.s[:, 0].atan(), at(*offsets)[:, 0])
    for i, (offset, start) in enumerate(zip(offsets, starts, strict=True)):
        alone = descend(bent(offset), at(start), budget, StoppingRule(enough=1e-26))
        assert torch.equal(alone.s[0], together.s[i])
        assert torch.equal(alone.damping[0], together.damping[i])


def test_starts_that_ended_are_not_followed() -> None:
    """The second one is at its end before the others."""
    problem = bent(0.5, 0.2, 0.9)
    descend(problem, at(3.0, 0.2027, 3.0), Budget(), StoppingRule(enough=1e-10))
    assert problem.sizes[0] == 3
    assert problem.sizes[1] == 2
    assert 1 < len(problem.sizes) < 12


def test_only_as_many_jacobians_as_memory_holds() -> None:
    problem, budget = linear(1.0, 2.0, 3.0, 4.0, 5.0), Budget(steps=2, damping=1e-12, memory=2)
    end = descend(problem, at(0.0, 0.0, 0.0, 0.0, 0.0), budget)
    torch.testing.assert_close(end.s, at(0.5, 1.0, 1.5, 2.0, 2.5))
    assert max(problem.sizes) == 2
    assert budget.at_once(2, "cpu") == 1
    assert Budget().at_once(1 << 20, "cpu") == 32
    assert Budget().at_once(1 << 20, "cuda") == 256


def test_below_the_noise_a_start_that_hardly_falls_ends() -> None:
    """Damping 99 takes a hundredth of the way, and the cost keeps 98 %."""
    slow = Budget(steps=30, damping=99.0)
    end = descend(linear(4.0), at(0.0), slow, StoppingRule(noise=20.0))
    torch.testing.assert_close(end.s, at(0.02))
    end = descend(linear(4.0), at(0.0), slow, StoppingRule(noise=10.0))
    assert float(end.cost) < 1.0


def test_how_little_is_hardly_may_be_declared() -> None:
    """Damping 3 takes a quarter of the way, and the cost keeps 9/16."""
    slow = Budget(steps=2, damping=3.0)
    for hardly, steps in ((0.55, 1), (0.57, 2)):
        end = descend(linear(4.0), at(0.0), slow, StoppingRule(noise=20.0, hardly=hardly))
        assert (float(end.s) == pytest.approx(0.5)) == (steps == 1)


def test_a_step_that_leads_too_far_is_halved() -> None:
    """atan s − 0 at 2: the whole step leads to −3.54, half of it to −0.77, where the cost is less;
    the second start is at rest and stays there."""
    far, half = at(2.0, 0.0), 2 - 2.5 * torch.atan(torch.tensor(2.0, dtype=torch.float64))
    end = descend(bent(0.0, 0.0), far, Budget(steps=1, damping=1e-9, halvings=1))
    torch.testing.assert_close(end.s, at(float(half), 0.0))
    refused = descend(bent(0.0, 0.0), far, Budget(steps=1, damping=1e-9))
    torch.testing.assert_close(refused.s, far)


def test_so_many_stalled_steps_in_a_row_are_the_end() -> None:
    """Damping 99, 33, 11: the cost keeps 0.98, then 0.942 of itself, then 0.840."""
    budget = Budget(steps=30, damping=99.0, stalled=0.9, patience=2)
    end = descend(linear(4.0), at(0.0), budget)
    torch.testing.assert_close(end.s, at(2 - 2 * (99 / 100) * (33 / 34)))
    end = descend(linear(4.0), at(0.0), Budget(steps=30, damping=99.0, stalled=0.9, patience=3))
    assert float(end.misfit) < 1e-6


def test_what_has_not_come_near_after_a_trial_is_discarded() -> None:
    """A constant residual of 1 leads nowhere; it has no derivative either."""
    flat = Scalar("flat", at(0.0, 0.0)[:, 0])
    end = descend(flat, at(1.0, 2.0), Budget(trial=2, near=0.5))
    torch.testing.assert_close(end.s, at(1.0, 2.0))
    assert len(flat.sizes) == 1  # and a point that nothing leads away from is linearized once
    slow = Budget(steps=30, damping=99.0, trial=1, near=0.5)
    torch.testing.assert_close(descend(linear(4.0), at(0.0), slow).s, at(2 - 2 * 0.99 * (33 / 34)))


def test_a_start_without_a_cost_stays_and_disturbs_no_other() -> None:
    end = descend(linear(4.0, 4.0), at(torch.nan, 0.0), Budget(damping=1e-12))
    assert torch.isnan(end.s[0, 0])
    torch.testing.assert_close(end.s[1], at(2.0)[0])


def test_a_matrix_that_is_not_positive_definite_has_no_step() -> None:
    N = torch.tensor([[[1.0, 2.0], [2.0, 1.0]], [[4.0, 0.0], [0.0, 0.0]]], dtype=torch.float64)
    g = torch.tensor([[1.0, 1.0], [4.0, 0.0]], dtype=torch.float64)
    step = damped_step(g, N, at(0.0, 0.25)[:, 0])
    assert step[0].isnan().all()
    torch.testing.assert_close(step[1], torch.tensor([-0.8, 0.0], dtype=torch.float64))
    wide = damped_step(g[:1], N[:1], 3.0)  # [[4, 2], [2, 4]]
    torch.testing.assert_close(wide[0], torch.full((2,), -1 / 6, dtype=torch.float64))
    ridged = damped_step(g[:1], N[:1], 0.0, ridge=3.0)
    torch.testing.assert_close(ridged, wide)


def test_products_with_the_jacobian_take_the_same_steps() -> None:
    """Of two problems at once, whose unknowns form a matrix."""
    generator = torch.Generator().manual_seed(0)
    J = torch.randn(2, 7, 4, generator=generator, dtype=torch.float64)
    r = torch.randn(2, 7, generator=generator, dtype=torch.float64)
    gradient, N = (J.mT @ r[..., None])[..., 0], J.mT @ J
    diagonal = N.diagonal(dim1=1, dim2=2)
    cost, damping = r.square().sum(1), at(0.5, 2.0)[:, 0]
    dense = Normal(cost, gradient, N, lambda _: cost)
    by_products = Products(
        cost,
        gradient.view(2, 2, 2),
        push=lambda d: (J @ d.flatten(1)[..., None])[..., 0],
        pull=lambda v: (J.mT @ v[..., None])[..., 0].view(2, 2, 2),
        costs=lambda _: cost,
        tolerance=1e-12,
        iterations=50,
        metric=lambda d: diagonal.view(2, 2, 2) * d,
        precondition=lambda mu: lambda d: d / ((1 + mu) * diagonal.view(2, 2, 2)),
    )
    step = dense.step(damping)
    torch.testing.assert_close(by_products.step(damping).flatten(1), step)
    promised = cost - (r + (J @ step[..., None])[..., 0]).square().sum(1)
    torch.testing.assert_close(dense.promised(step), promised)
    torch.testing.assert_close(by_products.promised(step.view(2, 2, 2)), promised)


def test_without_time_nothing_moves() -> None:
    with time_limit(1e-9) as deadline:
        end = descend(linear(4.0), at(0.5), Budget(), StoppingRule(untried="the way down"))
    torch.testing.assert_close(end.s, at(0.5))
    torch.testing.assert_close(end.cost, at(9.0)[:, 0])
    assert deadline.cut == ["the way down"]
    torch.testing.assert_close(descend(linear(4.0), at(0.5), Budget(seconds=-1.0)).s, at(0.5))


def test_starts_that_there_was_no_time_for_have_no_cost() -> None:
    """Two of three at a time: the third is never linearized, and not mistaken for a root."""
    problem = linear(4.0, 4.0, 4.0)
    with time_limit(1e-9):
        end = descend(problem, at(0.5, 0.5, 2.0), Budget(memory=2))
    torch.testing.assert_close(end.s, at(0.5, 0.5, 2.0))
    assert end.cost.tolist() == [9.0, 9.0, torch.inf]
    assert problem.sizes == [2]


def test_without_unknowns_or_starts_there_is_only_a_cost() -> None:
    class Fixed(Scalar):
        def linearize(self, s: Tensor) -> Normal:
            cost = torch.full((len(s),), 3.0, dtype=torch.float64)
            return Normal(cost, s, s.new_zeros(len(s), 0, 0), lambda _: cost)

    end = descend(Fixed("linear", at(0.0)[:, 0]), at(0.0, 0.0)[:, :0], Budget())
    torch.testing.assert_close(end.cost, at(3.0, 3.0)[:, 0])
    none = descend(linear(), at(1.0)[:0], Budget())
    assert len(none) == 0


def test_ends_are_joined_and_chosen_as_rows() -> None:
    ends = Descent.joined([Descent.of(at(1.0, 2.0), 0.1), Descent.of(at(3.0), 0.2)])
    chosen = ends[torch.tensor([2, 0])]
    torch.testing.assert_close(chosen.s, at(3.0, 1.0))
    torch.testing.assert_close(chosen.damping, at(0.2, 0.1)[:, 0])
    assert chosen.misfit.isinf().all()


@pytest.mark.parametrize("moves", [1.0, 0.5])
def test_a_problem_may_move_otherwise(moves: float) -> None:
    class Held(Scalar):
        def moved(self, s: Tensor, step: Tensor) -> Tensor:
            return s + moves * step

    end = descend(Held("linear", at(4.0)[:, 0]), at(0.0), ONE)
    torch.testing.assert_close(end.s, at(moves))
