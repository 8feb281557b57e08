"""The head's certificate, one piece of evidence at a time: a genuine answer with one thing spoiled,
on both sides of a limit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import unsum
from unsum.certify.candidate import Candidate
from unsum.certify.claim import Claim
from unsum.certify.doubts.labels import doubt_labels
from unsum.certify.doubts.mirror import doubt_mirror
from unsum.certify.doubts.number import doubt_number
from unsum.certify.judge import judge
from unsum.certify.question import Question
from unsum.certify.scatter import Certificate, certify, error_of_mean, indistinguishable
from unsum.equation.equation import Linearized
from unsum.knowledge import Knowledge
from unsum.separate.exact import solver

B = 3


def laid_before(run: Callable[[], unsum.Leak]) -> Question:
    """The last question that a genuine run asked, and was granted."""
    asked: list[Question] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            solver, "judge", lambda question: (asked.append(question), judge(question))[1]
        )
        assert run().exact
    return asked[-1]


@pytest.fixture(scope="module")
def question() -> Question:
    """Three samples of two labels in a head of twenty classes, as the solver lays them before
    it."""
    torch.manual_seed(0)
    model, features = nn.Linear(32, 20), torch.randn(B, 32).relu()
    update = unsum.capture(model, features, torch.tensor([4, 7, 7]))
    return laid_before(lambda: unsum.separate(model, update, "exact"))


def changed(question: Question, **values: Any) -> Question:
    return replace(question, candidate=replace(question.candidate, **values))


def certified(question: Question, **values: Any) -> Question:
    return changed(question, certificate=replace(question.candidate.certificate, **values))


def claim(question: Question) -> Claim:
    return judge(question)[0]


def test_twenty_deviations_explain_and_more_do_not(question: Question) -> None:
    assert certified(question, misfit=19.9).candidate.explains
    assert not certified(question, misfit=20.1).candidate.explains
    assert not certified(question, misfit=math.nan).candidate.explains
    assert claim(question).exact
    assert not claim(certified(question, misfit=20.1)).exact


def test_a_residual_of_several_deviations_needs_a_smaller_error(question: Question) -> None:
    """It may shift the answer by its square: 1e-5 times 9.9² is below a thousandth, times 10.1² is
    above it."""
    errors = torch.full((B,), 1e-5, dtype=torch.float64)
    assert claim(certified(question, misfit=9.9, errors=errors)).exact
    doubted = claim(certified(question, misfit=10.1, errors=errors))
    assert not doubted.exact
    assert "misses the gradient by 10 times its noise" in doubted.notes[0]


def test_another_start_must_have_led_there(question: Question) -> None:
    assert claim(changed(question, confirmations=1)).exact
    assert (
        claim(changed(question, confirmations=0)).notes[0]
        == "No second start led to this solution."
    )


@pytest.mark.parametrize(("said", "exact"), [(None, True), (3, True), (2, False), (4, False)])
def test_another_number_than_was_said_is_a_doubt(
    question: Question, said: int | None, exact: bool
) -> None:
    asked = replace(question, knowledge=replace(question.knowledge, batch_size=said))
    assert claim(asked).exact == exact
    if said is not None and not exact:
        assert doubt_number(asked) == [
            f"The batch was said to hold {said} samples, but 3 were found."
        ]


@pytest.mark.parametrize(
    ("scale", "missing"), [(3 / 4, 1), (3 / 5, 2), (4 / 3, 0), (0.7, 0), (1.0, 0)]
)
def test_a_mean_over_more_samples_says_how_many_left_no_trace(
    question: Question, scale: float, missing: int
) -> None:
    """A gradient three quarters as large as the mean over three is the mean over four; one four
    thirds as large is of no mean."""
    at = question.candidate.at
    scaled = changed(question, at=replace(at, log_alpha=at.log_alpha + math.log(scale)))
    expected = (
        f"The batch may have held {B + missing} samples: {missing} of them would have left no "
        "trace."
    )
    assert doubt_number(scaled) == ([expected] if missing else [])


def test_targets_beyond_zero_and_one_are_no_solution(question: Question) -> None:
    for off, plausible in ((0.9e-3, True), (1.2e-3, False)):
        for Y in (question.candidate.Y + off, question.candidate.Y - off):
            assert changed(question, Y=Y).candidate.plausible == plausible


def test_a_misfit_is_by_the_degrees_of_freedom(question: Question) -> None:
    """Three numbers of each of three samples are unknown; five rows of four numbers are twenty
    equations, which leaves eleven."""
    candidate: Candidate = question.candidate
    weight = torch.zeros_like(candidate.equation.weight)
    weight[:5] = candidate.equation.weight[:5]
    equation = replace(candidate.equation, weight=weight)
    assert (equation.floor_free, equation.alpha_free, equation.U.shape[1]) == (False, False, 4)
    found = certify(equation, candidate.at, question.observation)
    assert found.misfit == pytest.approx((Linearized(equation, candidate.at).cost / 11) ** 0.5)


def test_three_equations_to_spare_are_needed(question: Question) -> None:
    """Nine unknowns: three rows of four numbers are twelve equations, two rows are eight, and prove
    nothing."""
    for rows, finite in ((3, True), (2, False)):
        weight = torch.zeros_like(question.candidate.equation.weight)
        weight[:rows] = question.candidate.equation.weight[:rows]
        equation = replace(question.candidate.equation, weight=weight)
        found = certify(equation, question.candidate.at, question.observation)
        assert bool(found.errors.isfinite().all()) == finite


def covariance(own: float, shared: float) -> Certificate:
    matrix = torch.full((2, 2), shared, dtype=torch.float64)
    matrix.fill_diagonal_(own)
    return Certificate(1.0, matrix.diagonal().sqrt() / 5, matrix, 0.0, 0.0)


def test_the_error_of_a_mean_of_two_by_hand() -> None:
    """Variances of 4 and a covariance of 2 have the mean 3; of a covariance of −4 nothing is left:
    the mean is certain."""
    T = torch.tensor([[3.0, 4.0], [3.0, 4.0]], dtype=torch.float64)
    assert error_of_mean(covariance(4, 2), T, [0, 1]) == pytest.approx(3**0.5 / 5)
    assert error_of_mean(covariance(4, -4), T, [0, 1]) == 0
    labels = torch.tensor([5, 5])
    assert indistinguishable(covariance(4, -4), T, labels) == [[0, 1]]
    assert indistinguishable(covariance(4, 2), T, labels) == []  # as unsure of their mean
    assert indistinguishable(covariance(4, -4), T, torch.tensor([5, 6])) == []
    assert indistinguishable(covariance(4e-5, -4e-5), T, labels) == []  # each is known


@pytest.mark.parametrize(("bias", "doubted"), [(False, True), (True, False)])
def test_a_negative_with_the_other_labels_is_a_doubt_where_no_bias_tells_it_apart(
    bias: bool, doubted: bool
) -> None:
    """σ(−l) − (1 − y) = −(σ(l) − y), and −f undoes the sign."""
    torch.manual_seed(0)
    model, targets = nn.Linear(32, 12, bias=bias), (torch.rand(3, 12) < 0.4).float()
    update = unsum.capture(model, torch.randn(3, 32), targets, loss="bce")
    told = laid_before(lambda: unsum.separate(model, update, "exact", loss="bce", labels=targets))
    assert told.candidate.explains
    assert doubt_mirror(told) == []
    assert (
        bool(doubt_mirror(replace(told, knowledge=Knowledge(batch_size=3, loss="bce")))) == doubted
    )


def test_free_targets_are_doubted_where_the_softmax_is_at_its_end(question: Question) -> None:
    """There it does not bend, and any mixture of the features explains the gradient as well as they
    do."""
    candidate = question.candidate
    free = changed(question, equation=replace(candidate.equation, Y=None))
    assert doubt_labels(free) == []
    certain = changed(free, at=replace(candidate.at, T=1e3 * candidate.at.T))
    assert "one class for certain: mixed labels would look the same" in doubt_labels(certain)[0]
    assert set(doubt_labels(certain)) < set(claim(certain).notes)
    assert doubt_labels(replace(certain, knowledge=Knowledge(labels=torch.tensor([4, 7, 7])))) == []
