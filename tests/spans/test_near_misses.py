"""Answers that are nearly certain, and must be doubted: one genuine answer of each kind, with one
thing at a time spoiled.

Each limit is tried on both sides, so that neither a looser nor a stricter one goes unnoticed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import unsum
from support import maps
from support.dense import batch, network
from support.vision_transformers import photos, torchvision_vit
from unsum.certify.claim import Claim
from unsum.engine.twins import Passed, SentLayers
from unsum.knowledge import Knowledge
from unsum.spans import judge as dense
from unsum.spans import method, unrolled
from unsum.spans.judge import Answer, UnrolledAnswer
from unsum.spans.maps import judge as convolutional
from unsum.spans.maps import method as maps_method
from unsum.spans.maps.judge import MapAnswer, at_least
from unsum.spans.maps.twins import doubt_samples
from unsum.spans.tokens import method as tokens_method
from unsum.spans.tokens.judge import PictureAnswer
from unsum.spans.tokens.judge import judge as judge_pictures

Change = Callable[[Any], Any]
FIVE = Knowledge(batch_size=5)
NO_SECOND = "No second start led to this solution."
WEIGHS = "Samples weigh differently"
# of a tensor: what a client's arithmetic leaves at most
LIMIT = 100 * torch.finfo(torch.float32).eps


def caught(where: object, name: str, run: Callable[[], unsum.Leak]) -> Any:
    """The answer that a genuine run lays before its judge."""
    seen: list[Any] = []
    genuine = getattr(where, name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            where, name, lambda answer, *rest: (seen.append(answer), genuine(answer, *rest))[1]
        )
        assert run().exact
    return seen[-1]


def assert_doubted(claim: Claim, sentence: str) -> None:
    assert not claim.exact
    assert any(sentence in note for note in claim.notes), claim.notes


def assert_claimed(claim: Claim) -> None:
    assert claim.exact, claim.notes


@pytest.fixture(scope="module")
def answer() -> Answer:
    model, (x, y) = network(20, 48, 48, 4), batch(5, 20, 4)
    update = unsum.capture(model, x, y)
    return caught(method, "judge", lambda: unsum.separate(model, update, "spans", batch_size=5))


def hit(times: int) -> Change:
    """One sample that so many starts ended in."""

    def change(answer: Any) -> Any:
        hits = torch.full_like(answer.roots.hits, 7)
        hits[2] = times
        return replace(answer, roots=replace(answer.roots, hits=hits))

    return change


def read(**values: Any) -> Change:
    return lambda answer: replace(answer, reading=replace(answer.reading, **values))


def weighed(ratio: float) -> Change:
    def change(answer: Any) -> Any:
        weights = answer.reading.weights[0].repeat(len(answer.reading.weights))
        weights[1] *= ratio
        return replace(answer, reading=replace(answer.reading, weights=weights))

    return change


def softened(by: float) -> Change:
    """One target that gives so much to another class."""

    def change(answer: Any) -> Any:
        Y = answer.reading.Y.clone()
        Y[0] = Y[0] * (1 - by) + by * Y[0].roll(1)
        return replace(answer, reading=replace(answer.reading, Y=Y))

    return change


def shifted(share: float) -> Change:
    """The spans have one sample elsewhere, by a share of it."""

    def change(answer: Any) -> Any:
        X = answer.X.clone()
        X[1] *= 1 + share
        roots = replace(answer.roots, points=X, errors=torch.full_like(answer.roots.errors, 1e-7))
        return replace(answer, roots=roots)

    return change


def unexplained(share: float) -> Change:
    """The answer with this share of its worst tensor left."""

    def change(answer: Any) -> Any:
        replay = answer.played.replay
        left = torch.zeros_like(replay.left)
        left[-1] = share * replay.sizes[-1]
        return replace(answer, played=replace(answer.played, replay=replace(replay, left=left)))

    return change


def predicted(error: float) -> Change:
    return lambda answer: replace(answer, errors=torch.full_like(answer.errors, error))


@pytest.mark.parametrize(
    ("good", "bad", "sentence"),
    [
        (hit(2), hit(1), NO_SECOND),
        (read(misfit=0.9e-3), read(misfit=1.1e-3), "No loss that is known here explains"),
        (read(misfit=0.0), read(misfit=math.nan), "No loss that is known here explains"),
        (read(off=0.9e-2), read(off=1.1e-2), "A label would have to be off by"),
        (read(), read(smoothing_open=True), "Smoothed labels at another scale"),
        (softened(0.5e-6), softened(2e-6), "Labels came out soft"),
        (weighed(1.009), weighed(1.011), WEIGHS),
        (weighed(1.0), weighed(1.5), WEIGHS),
        (shifted(0.99e-3), shifted(1.02e-3), "The spans and the sum of all samples disagree"),
        (
            unexplained(0.99 * LIMIT),
            unexplained(1.01 * LIMIT),
            "Sent through the layers again, the samples leave 1e-05",
        ),
        (unexplained(0.0), unexplained(math.nan), "Sent through the layers again"),
        (
            lambda answer: answer,
            lambda answer: replace(answer, lengths_open=True),
            "Without biases a temperature",
        ),
        (
            lambda answer: answer,
            lambda answer: replace(answer, missing=1),
            "1 more samples may be in the gradient",
        ),
    ],
)
def test_dense_samples_that_are_nearly_certain(
    answer: Answer, good: Change, bad: Change, sentence: str
) -> None:
    assert_claimed(dense.judge(good(answer), FIVE, 0))
    assert_doubted(dense.judge(bad(answer), FIVE, 0), sentence)


def test_a_dense_sample_s_own_error_is_multiplied_by_five_and_must_stay_below_a_thousandth(
    answer: Answer,
) -> None:
    assert_claimed(dense.judge(predicted(1.99e-4)(answer), FIVE, 0))
    claim = dense.judge(predicted(2.01e-4)(answer), FIVE, 0)
    assert not claim.exact
    assert claim.predicted_error == pytest.approx(1.005e-3)


def test_a_batch_size_that_does_not_fit_is_a_doubt(answer: Answer) -> None:
    for said, found in ((6, "said to hold 6 samples, but 5"), (4, "said to hold 4 samples, but 5")):
        assert_doubted(dense.judge(answer, Knowledge(batch_size=said), 0), found)


def test_how_far_the_last_solve_may_move_a_sample(answer: Answer) -> None:
    """30 predicted errors and a thousandth, but never more than half a percent."""
    for error, allowed in ((0.0, 1e-3), (1e-5, 1.3e-3), (1e-3, 5e-3)):
        for share, moved in ((0.98 * allowed, False), (1.02 * allowed, True)):
            changed = shifted(share)(answer)
            roots = replace(changed.roots, errors=torch.full_like(changed.roots.errors, error))
            assert replace(changed, roots=roots).moved.tolist() == [
                False,
                moved,
                False,
                False,
                False,
            ]


def test_a_sample_that_sends_little_more_than_is_left_is_named(answer: Answer) -> None:
    """What is left of a layer decides: ten times as much must come from each sample."""
    least, second = answer.played.contributions().sort().values[:2].tolist()
    name = int(answer.played.contributions().argmin())
    for units in (0.99 * least, (least + second) / 2):
        left = [value * units / 10 for value in answer.played.left]
        claim = dense.judge(replace(answer, played=replace(answer.played, left=left)), FIVE, 0)
        faint = [note for note in claim.notes if "sends little more" in note]
        assert [note.startswith(f"Sample {name} sends") for note in faint] == (
            [] if units < least else [True]
        )


@pytest.fixture(scope="module")
def steps() -> tuple[UnrolledAnswer, Knowledge]:
    model, (x, y) = network(40, 96, 96, 5), batch(8, 40, 5)
    update = unsum.capture_local(model, x, y, batch_size=4, learning_rate=0.1)
    run = caught(
        unrolled, "judge_steps", lambda: unsum.separate(model, update, "spans", batch_size=8)
    )
    return run, Knowledge(batch_size=8)


def test_steps_may_leave_twice_what_rounding_makes_of_weights(
    steps: tuple[UnrolledAnswer, Knowledge],
) -> None:
    answer, knowledge = steps

    def leaving(units: float) -> UnrolledAnswer:
        factor = units / answer.found.unexplained
        left = [
            replace(s, grad_W=factor * s.grad_W, grad_b=factor * s.grad_b)
            for s in answer.found.left
        ]
        return replace(answer, found=replace(answer.found, left=left))

    assert_claimed(dense.judge_steps(leaving(1.98), knowledge, 0))
    assert_doubted(
        dense.judge_steps(leaving(2.02), knowledge, 0),
        "the weights differ by 2 times what rounding makes",
    )


def test_steps_whose_weights_do_not_fit_the_rate_are_doubted(
    steps: tuple[UnrolledAnswer, Knowledge],
) -> None:
    answer, knowledge = steps
    uneven = replace(answer, found=replace(answer.found, even=False))
    assert_doubted(dense.judge_steps(uneven, knowledge, 0), "do not add up to the learning rate")
    # a sum has no rate to fit
    assert_claimed(dense.judge_steps(replace(uneven, mean=False), knowledge, 0))


def test_every_sample_of_every_step_was_found_twice(
    steps: tuple[UnrolledAnswer, Knowledge],
) -> None:
    answer, knowledge = steps

    def found(times: int) -> UnrolledAnswer:
        last = answer.found.seen[-1]
        hits = torch.full_like(last.roots.hits, 7)
        hits[0] = times
        seen = [*answer.found.seen[:-1], replace(last, roots=replace(last.roots, hits=hits))]
        return replace(answer, found=replace(answer.found, seen=seen))

    assert_claimed(dense.judge_steps(found(2), knowledge, 0))
    assert_doubted(dense.judge_steps(found(1), knowledge, 0), NO_SECOND)
    assert_doubted(
        dense.judge_steps(answer, Knowledge(batch_size=9), 0), "said to hold 9 samples, but 8"
    )
    assert not dense.judge_steps(replace(answer, missing=1), knowledge, 0).exact


@pytest.fixture(scope="module")
def map_answer() -> MapAnswer:
    sent = maps.client(maps.network(64), [3, 1], train=False)
    return caught(
        maps_method, "judge", lambda: unsum.separate(sent.model, sent.update, "spans", batch_size=2)
    )


def map_hits(times: int) -> Change:
    return lambda answer: replace(answer, hits=torch.tensor([7.0, float(times)]).to(answer.hits))


@pytest.mark.parametrize(
    ("good", "bad", "sentence"),
    [
        (map_hits(2), map_hits(1), NO_SECOND),
        (read(misfit=0.9e-3), read(misfit=1.1e-3), "No loss that is known here explains"),
        (
            unexplained(0.99 * LIMIT),
            unexplained(1.01 * LIMIT),
            "Sent through the layers again, the maps leave 1e-05",
        ),
        (
            lambda answer: answer,
            lambda answer: replace(answer, lengths_open=True),
            "lengths of samples are open",
        ),
        (
            lambda answer: answer,
            lambda answer: replace(answer, missing=1),
            "1 more samples may be in the gradient",
        ),
    ],
)
def test_maps_that_are_nearly_certain(
    map_answer: MapAnswer, good: Change, bad: Change, sentence: str
) -> None:
    two = Knowledge(batch_size=2)
    assert_claimed(convolutional.judge(good(map_answer), two, 0))
    assert_doubted(convolutional.judge(bad(map_answer), two, 0), sentence)


def test_maps_without_a_batch_size_may_hide_a_faint_sample(map_answer: MapAnswer) -> None:
    assert_doubted(
        convolutional.judge(map_answer, Knowledge(), 0), "weighs next to nothing may be missing"
    )
    assert_doubted(
        convolutional.judge(map_answer, Knowledge(batch_size=3), 0), "said to hold 3 samples, but 2"
    )


@pytest.mark.parametrize(
    ("left", "faint"), [((0.9, 0.38), False), ((0.9, 0.42), True), ((1.1, 0.38), True)]
)
def test_a_map_must_be_seen_in_every_convolution(left: tuple[float, float], faint: bool) -> None:
    """(3, 4) with δ = 2 is 10 in one layer, (1, 0) with δ = 4 is 4 in the other: ten times what is
    left in each."""
    read = (torch.tensor([[[3.0, 4.0]]]), torch.tensor([[[1.0, 0.0]]]))
    passed = {
        name: Passed(patches, torch.full((1, 1, 1), delta))
        for name, patches, delta in zip("ab", read, (2.0, 4.0), strict=True)
    }
    assert [float(one.size) for one in passed.values()] == [10, 4]
    rests = dict(zip("ab", left, strict=True))
    sent = SentLayers(torch.ones(1, 1, 1, 1), passed, rests, lambda _: passed)
    doubts = doubt_samples(sent, torch.ones(1), Knowledge(batch_size=1), 0)
    assert doubts == (
        ["Sample 0 sends little more to some layer than is left unexplained there."]
        if faint
        else []
    )


def test_maps_err_by_three_times_what_is_left_at_least() -> None:
    """Noise of a share of 1e-3 lifts small errors to 3e-3, leaves large ones, and what is not known
    makes all of them so."""
    errors = torch.tensor([1e-6, 1e-2], dtype=torch.float64)
    assert at_least(errors, 1e-3).tolist() == pytest.approx([3e-3, 1e-2])
    assert at_least(errors, 0.0).tolist() == pytest.approx([1e-6, 1e-2])
    assert at_least(errors, math.nan).tolist() == [math.inf, math.inf]


def test_maps_that_explain_too_little_have_errors_of_what_is_left(map_answer: MapAnswer) -> None:
    claim = convolutional.judge(unexplained(0.02)(map_answer), Knowledge(batch_size=2), 0)
    assert claim.predicted_error == pytest.approx(0.06)  # three times


def test_an_error_of_maps_is_that_of_features_where_these_change_more(
    map_answer: MapAnswer,
) -> None:
    """Never below the map's own, whatever the layers above make of a change; and an unknown one
    stays unknown."""
    errors = torch.tensor([1e-5, 2e-5], dtype=torch.float64)
    found = convolutional.feature_errors(replace(map_answer, errors=errors), 0)
    assert bool((found >= errors).all())
    double = convolutional.feature_errors(replace(map_answer, errors=2 * errors), 0)
    torch.testing.assert_close(double, 2 * found)
    unknown = torch.tensor([1e-5, math.inf], dtype=torch.float64)
    assert torch.equal(
        convolutional.feature_errors(replace(map_answer, errors=unknown), 0), unknown
    )


@pytest.fixture(scope="module")
def picture_answer() -> PictureAnswer:
    model, (images, _) = torchvision_vit(), photos(1)
    update = unsum.capture(model, images, torch.tensor([3]), train=False)
    return caught(
        tokens_method, "judge", lambda: unsum.separate(model, update, "tokens", batch_size=1)
    )


def replayed(left: Callable[[Any], Tensor]) -> Change:
    def change(answer: Any) -> Any:
        replay = answer.played.replay
        return replace(
            answer, played=replace(answer.played, replay=replace(replay, left=left(replay)))
        )

    return change


@pytest.mark.parametrize(
    ("good", "bad", "sentence"),
    [
        (read(misfit=0.9e-3), read(misfit=1.1e-3), "No loss that is known here explains"),
        (
            replayed(lambda replay: 0.99 * replay.rounding),
            replayed(lambda replay: 1.01 * replay.rounding),
            "times what rounding explains",
        ),
        (
            lambda answer: answer,
            # nothing is left that could confirm it
            lambda answer: replace(answer, used=tuple(answer.played.left)),
            NO_SECOND,
        ),
    ],
)
def test_pictures_that_are_nearly_certain(
    picture_answer: PictureAnswer, good: Change, bad: Change, sentence: str
) -> None:
    one = Knowledge(batch_size=1)
    assert_claimed(judge_pictures(good(picture_answer), one, 0))
    assert_doubted(judge_pictures(bad(picture_answer), one, 0), sentence)


def test_pictures_without_a_batch_size_may_hide_a_faint_one(picture_answer: PictureAnswer) -> None:
    assert_doubted(
        judge_pictures(picture_answer, Knowledge(), 0), "weighs next to nothing may be missing"
    )
