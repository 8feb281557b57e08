"""Starts propose: who applies where, in which order, with which random numbers. The search
decides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, repeat

import pytest
import torch
from torch import Tensor, nn

from support.head_cases import NOTHING, Case, case, one_hot, trained
from support.starts import without_starts
from unsum.equation.equation import NoFactorError, Unknowns
from unsum.equation.observation import observe
from unsum.separate.exact import exact
from unsum.separate.exact.hypotheses import HARD, SOFT
from unsum.separate.exact.proposals import STARTS, Proposal, by_regression
from unsum.separate.exact.search import Search, in_order


def fresh(B: int, classes: int = 40, bias: bool = True) -> Case:
    torch.manual_seed(0)
    return case(
        torch.randn(B, 64).relu(),
        nn.Linear(64, classes, bias=bias),
        one_hot(list(range(B)), classes),
    )


def search_over(truth: Case, targets: Tensor | None = None) -> Search:
    return Search.over(observe(truth.head, None), targets, None, 0)


def names(search: Search) -> list[str]:
    return [start.name for start in in_order(search.known)]


def test_labels_come_first_for_a_fresh_head_and_samples_one_by_one_for_a_trained_one() -> None:
    assert names(search_over(fresh(5)))[0] == HARD[0]
    order = names(search_over(trained(12, 2, 2.0)))
    assert order[0] == "extracted"
    assert (
        order.index("extracted, smoothed")
        < order.index(SOFT[0])
        < order.index("thinned")
        < order.index("mixed")
    )


def test_near_the_number_of_classes_zeros_come_first_and_no_sample_is_sought_alone() -> None:
    order = names(search_over(fresh(25)))
    assert order[0] == "zeros"
    assert order.index("exchanged") < order.index("thinned")
    assert not set(SOFT) & set(
        order
    )  # 25 samples of open targets have more unknowns than the other classes have equations
    assert not {"alone", "extracted", "extracted, smoothed", "mixed"} & set(order)


def test_granted_targets_leave_the_starts_that_use_them() -> None:
    truth = fresh(5)
    order = names(search_over(truth, truth.targets))
    assert set(order) <= {*HARD, "zeros", "patient"}
    assert order[0] == HARD[0]


def test_every_start_applies_somewhere_and_has_its_place() -> None:
    cases = [fresh(1), fresh(5), fresh(25), fresh(3, bias=False), trained(12, 2, 2.0)]
    seen = {name for truth in cases for name in names(search_over(truth))}
    assert seen >= {start.name for start in STARTS} - set(HARD)
    assert len({start.name for start in STARTS}) == len(STARTS)


def test_a_start_less_changes_no_other_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The labels' own random points lead to the answer here; what is tried before and after them
    does not matter."""
    torch.manual_seed(3)
    truth = case(torch.randn(6, 64).relu(), nn.Linear(64, 40), one_hot([1, 1, 1, 2, 2, 3], 40))
    before = exact(truth.head, NOTHING, seed=0)
    without_starts(monkeypatch, "extracted", "zeros", HARD[1])
    assert before.exact
    assert torch.equal(exact(truth.head, NOTHING, seed=0).features, before.features)


def test_random_numbers_follow_from_the_seed_and_the_name() -> None:
    drawn = {
        (seed, start.name): float(torch.rand(1, generator=start.generator(seed)))
        for seed in (0, 1)
        for start in STARTS
    }
    again = {
        key: float(torch.rand(1, generator=start.generator(0)))
        for start in STARTS
        for key in [(0, start.name)]
    }
    assert len(set(drawn.values())) == 2 * len(STARTS)
    assert all(drawn[key] == value for key, value in again.items())


class TestTheSearchDecides:
    """On proposals of three samples, whose equation is right."""

    search = search_over(fresh(3))

    def proposal(self) -> Proposal:
        generator = torch.Generator().manual_seed(0)
        proposal = next(by_regression(self.search.known, generator, HARD[0]))
        assert isinstance(proposal, Proposal)
        return proposal

    def test_a_further_point_that_leads_to_the_same_confirms(self) -> None:
        found = self.search.first_of(iter([self.proposal()]))
        assert found is not None
        assert found.explains
        assert found.confirmations == 1

    def test_points_that_lead_elsewhere_do_not_confirm(self) -> None:
        proposal = self.proposal()
        solution = self.search.first_of(iter([proposal]))
        assert solution is not None
        far = replace(solution.at, T=1e6 * solution.at.T)
        points = chain([solution.at], repeat(far))
        found = self.search.first_of(
            iter([replace(proposal, points=points, iterations=1, solved=True)])
        )
        assert found is not None
        assert found.explains
        assert found.confirmations == 0

    def test_samples_found_alone_need_no_further_point(self) -> None:
        proposal = self.proposal()
        one = iter([next(proposal.points)])
        found = self.search.first_of(iter([replace(proposal, points=one, alone=True)]))
        assert found is not None
        assert found.confirmations == 1

    def test_a_proposal_that_fails_leaves_the_next(self) -> None:
        def broken() -> Iterator[Unknowns]:
            raise NoFactorError("No gradient was multiplied by 0.")
            yield

        proposal = self.proposal()
        found = self.search.first_of(iter([replace(proposal, points=broken()), proposal]))
        assert found is not None
        assert found.explains
