"""An answer that contradicts the declared number, or labels that were counted, never stands before
one that does not."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

import unsum
from unsum.attack.agreement import agreeing, contradiction, declared_number
from unsum.attack.options import AttackOptions
from unsum.leak import Attempt, LabelCounts, Leak
from unsum.local_training import LocalTraining

RIGHT, WRONG = [0, 0, 1, 2, 5, 6, 8, 8], list(range(10))


def leak_of(labels: list[int], predicted: float, method: str, *, exact: bool = False) -> Leak:
    targets = nn.functional.one_hot(torch.tensor(labels), 10).double()
    return Leak(method, targets, targets, torch.zeros(len(labels), 4), 0.0, predicted, exact)


def told(*, batch_size: int | None = 4, training: bool = True) -> unsum.Update:
    delta = {"weight": torch.zeros(10, 4)}
    steps = LocalTraining(0.1, 2, batch_size=batch_size) if training else None
    return unsum.Update.from_delta(delta, 0.2, training=steps)


def chosen(
    update: unsum.Update, first: Leak, *others: Leak, counts: LabelCounts | None = None
) -> Leak:
    tried = [Attempt(one.method, one) for one in (first, *others)]
    return agreeing(update, AttackOptions(), replace(first, tried=tried, label_counts=counts))


def counted(shares: dict[int, float], samples: int | None) -> LabelCounts:
    def row(extra: float) -> Tensor:
        return torch.tensor([shares.get(c, 0.0) * (1 + extra) for c in range(10)])

    return LabelCounts(row(0), row(-0.1), row(0.1), torch.zeros(10), 0.9, samples, 2)


def test_ten_samples_of_ten_classes_do_not_win_over_the_eight_of_two_steps_of_four() -> None:
    ten, eight = leak_of(WRONG, 6.9e-5, "adaptive"), leak_of(RIGHT, 1e-2, "spans")
    found = chosen(told(), ten, eight)
    assert (found.method, found.labels.tolist()) == ("spans", RIGHT)
    assert found.notes[0] == (
        "The answer of 'adaptive' has 10 samples where 5 to 8 were declared; that of 'spans' does "
        "not contradict it, so it is given."
    )
    assert [attempt.method for attempt in found.tried] == ["adaptive", "spans"]


def test_counted_labels_speak_where_no_number_was_declared() -> None:
    ten, eight = leak_of(WRONG, 6.9e-5, "adaptive"), leak_of(RIGHT, 1e-2, "spans")
    shares = {label: RIGHT.count(label) / 8 for label in RIGHT}
    found = chosen(told(batch_size=None), ten, eight, counts=counted(shares, None))
    assert found.method == "spans"  # 2 to 3 of 10 were counted of class 0, it has 1
    assert found.label_counts is not None
    assert "against what was counted" in found.notes[0]


def test_a_worthless_answer_wins_over_nothing() -> None:
    ten = leak_of(WRONG, 6.9e-5, "adaptive")
    for predicted in (0.5, math.inf, math.nan):
        assert chosen(told(), ten, leak_of(RIGHT, predicted, "fgla")).method == "adaptive"


def test_an_answer_is_chosen_by_its_estimate_where_it_predicts_nothing() -> None:
    """A comparison with NaN is never true: the first of two would win by its place alone."""
    ten, worse = leak_of(WRONG, 6.9e-5, "adaptive"), leak_of(RIGHT, 0.2, "fgla")
    doubted = replace(leak_of(RIGHT, math.nan, "spans"), estimated_error=1e-6)
    silent = leak_of(RIGHT, math.nan, "ratio")
    for others in ((worse, doubted, silent), (silent, doubted, worse)):
        assert chosen(told(), ten, *others).method == "spans"
    assert chosen(told(), ten, silent, worse).method == "fgla"


def test_a_certificate_stands() -> None:
    assert (
        chosen(
            told(), leak_of(WRONG, 1e-5, "exact", exact=True), leak_of(RIGHT, 1e-2, "spans")
        ).method
        == "exact"
    )


def test_what_is_declared() -> None:
    # the last of two steps of 4 may see fewer
    assert declared_number(told(), AttackOptions()) == range(5, 9)
    assert declared_number(told(), AttackOptions(batch_size=6)) == range(6, 7)
    assert declared_number(told(training=False), AttackOptions()) is None
    eight = leak_of(RIGHT, 1e-2, "spans")
    assert contradiction(told(), AttackOptions(labels=torch.tensor(RIGHT)), eight, None) == ""
