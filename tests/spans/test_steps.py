"""Local steps unrolled: the samples of every step out of one change of weights, held against the
truth."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import unsum
from support.dense import batch, network, partners
from unsum import LocalTraining, UnsumError
from unsum.knowledge import Knowledge
from unsum.spans import judge, method


def sent(
    B: int, size: int, declared: LocalTraining | None = None, **training: object
) -> tuple[unsum.Update, Tensor, Tensor]:
    """The change of weights of a client that goes through B samples in batches of `size`."""
    x, y = batch(B, 40, 5)
    update = unsum.capture_local(network(40, 96, 96, 5), x, y, batch_size=size, **training)
    return (update if declared is None else replace(update, training=declared)), x, y


def assert_all(leak: unsum.Leak, x: Tensor, y: Tensor, error: float = 1e-3) -> None:
    which, errors = partners(leak, x)
    assert leak.batch_size == len(x), leak.notes
    assert float(errors.max()) < error
    assert leak.labels[which].tolist() == y.tolist()
    assert sorted(which.tolist()) == list(range(len(x)))


def test_steps_that_nobody_told_of_are_unrolled_and_certified() -> None:
    update, x, y = sent(16, 4, learning_rate=0.1)
    leak = unsum.separate(network(40, 96, 96, 5), update, "spans", batch_size=len(x))
    assert_all(leak, x, y)
    assert leak.exact, leak.notes
    assert "4 local steps were unrolled (4 samples each)" in leak.notes[0]
    assert leak.inputs is not None
    assert leak.inputs_exact is not None
    assert bool(leak.inputs_exact.all())


def test_steps_that_were_followed_are_not_lost_where_one_step_cannot_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the number of samples nothing is claimed, and the same change taken for one step may
    be refused."""

    def refuse(*_: object) -> None:
        raise UnsumError("the batch takes all directions")

    update, x, y = sent(16, 4, learning_rate=0.1)
    monkeypatch.setattr(method, "_one_step", refuse)
    leak = unsum.separate(network(40, 96, 96, 5), update, "spans", batch_size=len(x) + 1)
    assert_all(leak, x, y)
    assert not leak.exact
    assert unsum.separate(network(40, 96, 96, 5), update, "spans", batch_size=len(x)).exact


@pytest.mark.long
def test_samples_come_in_the_order_of_their_steps() -> None:
    update, x, _ = sent(12, 4, learning_rate=0.1)
    which, _ = partners(unsum.separate(network(40, 96, 96, 5), update, "spans"), x)
    assert [sorted(part.tolist()) for part in which.split(4)] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10, 11],
    ]


@pytest.mark.parametrize("size", [5, 16])
def test_a_last_batch_that_is_smaller_and_a_single_step(size: int) -> None:
    update, x, y = sent(16, size, learning_rate=0.1)
    leak = unsum.separate(network(40, 96, 96, 5), update, "spans", batch_size=len(x))
    assert_all(leak, x, y)
    assert leak.exact, leak.notes


@pytest.mark.long
def test_an_unknown_rate() -> None:
    update, x, y = sent(12, 4, learning_rate=0.1, rate_known=False)
    leak = unsum.separate(network(40, 96, 96, 5), update, "spans")
    assert_all(leak, x, y)


@pytest.mark.long
def test_momentum_and_weight_decay_that_are_declared() -> None:
    model = network(40, 96, 96, 5)
    for steps in (3, None):
        x, y = batch(12, 40, 5)
        given = {"learning_rate": 0.1, "momentum": 0.9, "weight_decay": 1e-3}
        plain = unsum.capture_local(model, x, y, batch_size=4, **given)
        delta = {name: -0.1 * g for name, g in plain.gradients.items()}
        training = LocalTraining(steps=steps, **given)
        weights = {name: p.detach() for name, p in model.named_parameters()}
        update = unsum.Update.from_delta(delta, 0.1).of_training(training, weights)
        leak = unsum.separate(model, update, "spans", batch_size=len(x))
        assert_all(leak, x, y)
        assert leak.exact, (steps, leak.notes)


@pytest.mark.long
def test_momentum_that_nobody_declared_is_not_certified() -> None:
    update, x, _ = sent(12, 4, learning_rate=0.1, momentum=0.9)
    leak = unsum.separate(network(40, 96, 96, 5), update, "spans", time_limit=20)
    assert not leak.exact
    _, errors = partners(leak, x)
    assert float(errors[:4].max()) < 1e-3  # the first step's samples do not depend on it


def test_a_second_epoch_over_the_same_samples() -> None:
    update, x, y = sent(8, 4, learning_rate=0.1, epochs=2)
    leak = unsum.separate(network(40, 96, 96, 5), update, "spans", batch_size=len(x))
    assert_all(leak, x, y)
    assert "4 local steps" in leak.notes[0]
    assert leak.exact, leak.notes


def test_a_sample_that_a_step_holds_twice_is_counted() -> None:
    x, y = batch(8, 40, 5)
    x, y = torch.cat([x[:1], x]), torch.cat([y[:1], y])
    model = network(40, 96, 96, 5)
    leak = unsum.separate(
        model, unsum.capture_local(model, x, y, learning_rate=0.1, batch_size=3), "spans"
    )
    assert leak.batch_size == 9
    _, errors = partners(leak, x)
    assert float(errors.max()) < 1e-3


@pytest.mark.long
def test_a_number_that_does_not_fit_is_a_doubt() -> None:
    update, *_ = sent(12, 4, learning_rate=0.1)
    for count, certain in ((12, True), (13, False)):
        leak = unsum.separate(network(40, 96, 96, 5), update, "spans", batch_size=count)
        assert leak.exact is certain


def test_the_one_place_that_chooses_follows_steps_below_the_head() -> None:
    model = network(40, 96, 96, 5)
    x, y = batch(12, 40, 5)
    update = unsum.capture_local(model, x, y, learning_rate=0.1, batch_size=4, training_known=True)
    leak = unsum.attack(model, update, batch_size=len(x))
    assert leak.method == "spans"
    assert leak.exact, leak.notes
    assert_all(leak, x, y)


@pytest.mark.parametrize(
    ("training", "loss", "words"),
    [
        (LocalTraining(learning_rate=0.1, steps=3), "mse", "cross-entropy alone"),
        (LocalTraining(momentum=0.9), None, "its rate or its number|their rate or their number"),
    ],
)
def test_refusals_say_what_to_do(training: LocalTraining, loss: str | None, words: str) -> None:
    update, *_ = sent(
        12, 4, training, learning_rate=0.1, rate_known=training.learning_rate is not None
    )
    with pytest.raises(UnsumError, match=words):
        unsum.separate(network(40, 96, 96, 5), update, "spans", loss=loss)


@pytest.mark.parametrize(("shown", "doubted"), [([0.2, 0.3], True), ([0.2, 50.0], False)])
def test_a_shared_weight_tells_the_number_only_beside_a_sample_that_is_surely_one(
    shown: list[float], doubted: bool
) -> None:
    """Two pairs of twins share a weight as two samples do: bred cases whose steps were all twins
    had been claimed."""
    replayed = SimpleNamespace(
        contributions=lambda: torch.full((2,), 100.0), twins=lambda _seed: torch.tensor(shown)
    )
    doubts = judge._doubt_samples(replayed, torch.ones(2), Knowledge(), 0, weighed=True)
    assert bool(doubts) == doubted
