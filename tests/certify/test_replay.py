"""The rest that a replay leaves: rounding, or a sample that is missing, made up or exchanged."""

from __future__ import annotations

import math

import pytest
import torch

from unsum.certify.claim import Evidence, grant
from unsum.certify.doubts.replay import (
    doubt_drowned,
    doubt_exchanged,
    doubt_invisible,
    doubt_missing,
    doubt_relabeled,
    doubt_rest,
    doubt_several,
    doubt_unexplained,
)
from unsum.engine.replay import Replay
from unsum.knowledge import Knowledge


def replay(*, left: float = 1e-7, part: float = 1.0) -> Replay:
    """Two tensors of 1 and 0.1, rounded at 1e-6 of each; the first of two samples sends all, the
    second `part`."""
    sent = torch.tensor([1.0, 0.1], dtype=torch.float64)
    return Replay(("0", "1"), sent, left * sent, 1e-6 * sent, torch.stack([sent, part * sent]))


def test_rounding_in_one_tensor_is_no_excuse_for_another() -> None:
    assert doubt_rest(replay()) == []
    assert replay().explains
    rough = replay()
    rough.left[1] = 1e-5  # hardly anything of the whole gradient
    assert rough.residual < 2e-5
    assert not rough.explains
    assert "1e+02 times what rounding explains" in doubt_rest(rough)[0]


def test_nan_explains_nothing() -> None:
    assert not replay(left=math.nan).explains
    assert doubt_rest(replay(left=math.nan))
    assert doubt_missing(replay(left=math.nan), 3, None, None)


@pytest.mark.parametrize(
    ("part", "seen"), [(1e-3, True), (4e-6, True), (2e-6, False), (0.0, False)]
)
def test_a_sample_is_seen_where_it_sends_more_than_rounding(part: float, seen: bool) -> None:
    shown = replay(part=part).shows()
    assert shown[0].all()
    assert shown[1].tolist() == [seen, seen]
    doubts = doubt_invisible(shown.any(1), "Sequence")
    assert (
        doubts == []
        if seen
        else doubts[0].startswith("Sequence 1 would send hardly more than rounding")
    )


def test_a_sample_is_seen_only_above_what_is_left() -> None:
    assert not replay(left=1e-2, part=1e-3).shows()[1].any()


def test_who_may_be_missing_without_a_trace() -> None:
    assert doubt_missing(replay(), 6, None, 1.0) == []
    assert doubt_missing(replay(), 6, None, None) == []
    assert doubt_missing(replay(), 6, None, 0.0123456) == []  # clipped: no mean over a few more
    assert "one over 9 samples, 6 were found" in doubt_missing(replay(), 6, None, 6 / 9)[0]
    assert "may be missing without a trace" in doubt_missing(replay(left=3e-4), 6, None, 1.0)[0]
    assert doubt_missing(replay(left=3e-4), 6, 6, 1.0) == []
    assert doubt_missing(replay(), 6, 7, 1.0) == ["6 samples were found, 7 granted."]


def test_labels_of_samples_that_are_alike_may_be_exchanged() -> None:
    features = torch.tensor([[1.0, 0.0], [1.0, 1e-9], [0.0, 1.0]], dtype=torch.float64)
    labels, inputs = torch.tensor([3, 4, 4]), torch.arange(3)
    assert doubt_exchanged(features, labels, inputs, 0.1, 1e-6) == [
        "Samples 0, 1 are so alike that their labels may be exchanged."
    ]
    assert doubt_exchanged(features, labels, inputs, 0.1, 1e-11) == []
    # two labels of one input
    assert doubt_exchanged(features, labels, torch.tensor([0, 0, 1]), 0.1, 1e-6) == []
    assert doubt_exchanged(features, torch.tensor([4, 4, 4]), inputs, 0.1, 1e-6) == []


def test_an_error_that_nothing_bounds_is_infinite() -> None:
    errors = torch.tensor([1e-6, math.inf], dtype=torch.float64)
    assert math.isinf(grant(Evidence(errors, explained=True, confirmations=1)).predicted_error)


def test_samples_ten_residuals_high_are_no_residual() -> None:
    assert doubt_drowned(torch.tensor([10.1, 50.0])) == []
    assert doubt_drowned(torch.tensor([10.1, 9.9, math.nan])) == [
        "Sample 1, 2 sends little more to some layer than is left unexplained there."
    ]


def test_samples_that_may_be_several_are_named_unless_the_number_is_known() -> None:
    """Three samples of one copy each, where three were said to be there, are three."""
    hidden, ones = torch.tensor([False, True, False]), torch.ones(3)
    (doubt,) = doubt_several(hidden, Knowledge(), ones)
    assert doubt == (
        "Sample 1 may be several whose inputs differ by a few percent: these would look like one "
        "here; say the batch size if it is known."
    )
    assert doubt_several(~hidden & hidden, Knowledge(), ones) == []
    assert doubt_several(hidden, Knowledge(batch_size=3), ones) == []
    two = torch.tensor([1.0, 2.0, 1.0])
    (doubt,) = doubt_several(hidden, Knowledge(batch_size=4), two, "that differ", "Picture")
    assert doubt == "Picture 1 may be several that differ: these would look like one here."


def test_what_is_left_is_given_as_a_share_of_the_worst_tensor() -> None:
    assert doubt_unexplained(replay(), "maps") == []
    rough = replay()
    rough.left[1] = 0.02
    assert doubt_unexplained(rough, "maps") == [
        "Sent through the layers again, the maps leave 2e-01 of the gradient of '1' unexplained."
    ]


def relabeled(
    logits: list[list[float]], labels: list[int], granted: int | None = None, level: float = 1e-7
) -> bool:
    """Whether an input may occur once more; samples read orthogonal features of length 1."""
    L = torch.tensor(logits, dtype=torch.float64)
    return bool(
        doubt_relabeled(
            L, torch.tensor(labels), torch.eye(len(L)).double(), 1 / len(L), level, granted
        )
    )


def test_of_two_classes_each_label_sends_a_multiple_of_what_the_other_sends() -> None:
    assert relabeled([[0.3, -0.2]], [0])
    assert not relabeled([[0.3, -0.2]], [0], granted=1)
    assert not relabeled([[0.3, -0.2, 0.1]], [0])  # a third class shows both


def test_beside_another_sample_the_multiple_shows() -> None:
    """Unless both are rescaled alike, which here takes equal predictions."""
    assert not relabeled([[0.3, -0.2], [1.0, 0.0]], [0, 1])
    assert relabeled([[0.3, -0.2], [0.3, -0.2]], [0, 0])


def test_a_model_that_is_sure_of_another_class_is_one_of_two_classes() -> None:
    sure = [[11.0, 0.0, -7.0]]  # p is 1 - 1.7e-5, 1.7e-5 and 1.5e-8
    assert relabeled(sure, [1])
    assert not relabeled(sure, [1], level=1e-13)  # the third class is seen
    # who carries the first label sends 8e-7, a trace
    assert not relabeled([[14.0, 0.0, -7.0]], [1])
