"""Answers about local steps and about text that are nearly certain, and must be doubted: one thing
is spoiled at a time."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import unsum
from separate.language_models import batch, gpt2
from unsum import LocalTraining
from unsum.certify.claim import Claim
from unsum.separate.local_steps import judge as steps
from unsum.separate.local_steps import method as steps_method
from unsum.separate.local_steps.judge import StepsAnswer
from unsum.separate.text import judge as text
from unsum.separate.text import method as text_method

NO_SECOND = "No second start led to this solution."


def laid_before(where: ModuleType, run: Callable[[], unsum.Leak]) -> dict[str, Any]:
    """What a genuine run lays before its judge, by name; it is granted."""
    seen: list[dict[str, Any]] = []
    genuine: Callable[..., Claim] = where.judge

    def judge(*given: Any) -> Claim:
        seen.append(inspect.signature(genuine).bind(*given).arguments)
        return genuine(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(where, "judge", judge)
        leak = run()
    assert leak.exact, leak.notes
    return seen[-1]


def test_a_doubt_stands_beside_the_note_about_weight_decay() -> None:
    """The same doubt as without decay: one sample more was said to be there than was found."""
    torch.manual_seed(0)
    model, x = nn.Linear(48, 30), torch.randn(4, 48).relu()
    clean = unsum.capture(model, x, torch.tensor([3, 9, 14, 27]))
    weights = dict(model.named_parameters())
    sent = unsum.Update(
        {name: g + 0.01 * weights[name].detach() for name, g in clean.gradients.items()}
    )
    plain, leak = (unsum.separate(model, update, "exact", batch_size=5) for update in (clean, sent))
    doubt = "The batch was said to hold 5 samples, but 4 were found."
    assert doubt in plain.notes
    assert doubt in leak.notes
    assert any("decayed its weights by 0.01 times themselves" in note for note in leak.notes)
    assert not leak.exact


@pytest.fixture(scope="module")
def case() -> StepsAnswer:
    torch.manual_seed(0)
    model, x = nn.Linear(48, 30), torch.randn(4, 48).relu()
    update = unsum.capture_local(
        model, x, torch.tensor([3, 9, 14, 27]), learning_rate=0.1, batch_size=2, training_known=True
    )
    found: StepsAnswer = laid_before(
        steps_method, lambda: unsum.separate(model, update, "local-steps", batch_size=4)
    )["case"]
    return found


def test_the_answer_about_steps_is_claimed_as_it_is(case: StepsAnswer) -> None:
    assert steps.judge(case).exact
    assert case.missing == 0
    assert case.training == LocalTraining(0.1, 2)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"confirmations": 0}, NO_SECOND),
        ({"excess": 1}, "1 more samples may be in the gradient"),
    ],
)
def test_steps_that_are_nearly_certain(
    case: StepsAnswer, changes: dict[str, Any], sentence: str
) -> None:
    claim = steps.judge(replace(case, **changes))
    assert not claim.exact
    assert any(sentence in note for note in claim.notes), claim.notes


def test_directions_of_the_movement_without_a_sample_are_missing(case: StepsAnswer) -> None:
    """Four samples visited once: six directions leave two without a sample, beside one that was
    said to be too many."""
    observation = replace(case.trajectory.observation, A=torch.zeros(6, 48, dtype=torch.float64))
    more = replace(case, trajectory=replace(case.trajectory, observation=observation))
    assert (more.missing, replace(more, excess=1).missing) == (2, 3)
    twice = replace(more.trajectory, schedule=replace(more.trajectory.schedule, epochs=2))
    assert replace(more, trajectory=twice).missing == 0  # eight visits


def test_errors_and_misfits_of_steps_on_both_sides_of_their_limits(case: StepsAnswer) -> None:
    """A misfit may shift the answer by its square: 2e-4 times 2.2² is below a thousandth, times
    2.3² is above it. Noise that was measured leaves three deviations at most, however small the
    error."""
    cases = [(0.9e-3, 1.0, True), (1.1e-3, 1.0, False), (2e-4, 2.2, True), (2e-4, 2.3, False)]
    for error, misfit, exact in [*cases, (1e-6, 2.9, True), (1e-6, 3.1, False)]:
        errors = torch.full_like(case.found.errors, error)
        claim = steps.judge(replace(case, found=replace(case.found, errors=errors, misfit=misfit)))
        assert claim.exact == exact, (error, misfit, claim.notes)
    assert not steps.judge(replace(case, found=replace(case.found, misfit=21.0))).exact


@pytest.fixture(scope="module")
def played() -> dict[str, Any]:
    model = gpt2(tied=False)
    update = unsum.capture_text(model, batch(2, 5))
    return laid_before(text_method, lambda: unsum.separate(model, update, "text"))


def test_the_text_is_claimed_as_it_is(played: dict[str, Any]) -> None:
    assert text.judge(**played).exact


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            lambda given: {"searched": set(given["played"].replay.names)},
            NO_SECOND,
        ),  # nothing is left that could confirm it
        (lambda _: {"open_labels": 1}, "1 positions have a label that was not found."),
        (
            lambda _: {"told": torch.tensor([True, False])},
            "Some token of sequence 1 would send hardly more",
        ),
        (lambda _: {"besides": ["Something else fits."]}, "Something else fits."),
        (
            lambda given: {"knowledge": replace(given["knowledge"], batch_size=9)},
            "8 samples were found, 9 granted.",
        ),
        (
            lambda given: {
                "update": replace(given["update"], reduction="sum"),
                "played": scaled(given["played"], 16),
            },
            "A sum 2 times too large",
        ),
    ],
)
def test_a_text_that_is_nearly_certain(
    played: dict[str, Any], changes: Callable[..., Any], sentence: str
) -> None:
    claim = text.judge(**played | changes(played))
    assert not claim.exact
    assert any(sentence in note for note in claim.notes), claim.notes


def scaled(played: Any, scale: float) -> Any:
    return replace(played, scale=scale)


def test_a_position_that_sends_less_than_the_head_shows_has_no_error(
    played: dict[str, Any],
) -> None:
    answer = played["played"]
    for share, seen in ((0.99, True), (1.01, False)):
        level = share * float(answer.positions.min())
        claim = text.judge(**played | {"played": replace(answer, head_level=level)})
        assert any(note.startswith("Position") for note in claim.notes) != seen
        assert (claim.predicted_error < 1) == seen
