"""The ceiling over rounds of a client that stand-in data play, in this process and beside it."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import torch
from torch import nn

import unsum
from integrations.networks import network, photos
from unsum import Clip, Noise, UnsumError
from unsum.audit.ceilings import over_rounds
from unsum.audit.round_ceiling import RoundCeiling
from unsum.integrations.stand_in import Beside, OverRounds, StandIn, like_this_one
from unsum.local_training import LocalTraining

SLOW = 120.0  # [s] that no machine needs, so that the number of pairs is the same


def dense(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(8, 4)


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(3, 8, generator=generator), torch.tensor([0, 1, 3])


def weights(seed: int) -> dict[str, Any]:
    return dict(dense(seed).state_dict())


def test_rounds_add_up_as_over_rounds_adds_them() -> None:
    curve = OverRounds(dense(9), StandIn(data(), [Noise(1.0)], seconds=SLOW))
    got = [curve.add(number, weights(number)) for number in (1, 2, 3)]
    asked = over_rounds([dense(1), dense(2), dense(3)], data(), noise=1.0)
    assert [one.ceiling for one in got] == pytest.approx([one.highest for one in asked])
    assert [(one.round, one.rounds, one.why) for one in got] == [(1, 1, ""), (2, 2, ""), (3, 3, "")]
    assert got[0].ceiling < got[1].ceiling < got[2].ceiling < 1.0
    assert got[2].sentence.startswith(
        f"After 3 rounds the ceiling is {100 * got[2].ceiling:.0f} %, for a client with 3 samples"
    )


def test_a_clip_and_noise_cap_every_round_at_the_mechanisms_bound() -> None:
    """μ = 2c/σ = 0.1 of one round and 0.1 √4 = 0.2 of four: 1 − mmse(μ²/4) = 0.0025 and 0.0098."""
    curve = OverRounds(dense(), StandIn(data(), [Clip(0.5), Noise(10.0)]))
    got = [curve.add(number, weights(1)) for number in (1, 2, 3, 4)]
    assert got[0].ceiling == pytest.approx(0.0025, abs=2e-4)
    assert got[3].ceiling == pytest.approx(0.0098, abs=4e-4)


def test_local_steps_are_played_as_they_are_declared() -> None:
    known = LocalTraining(learning_rate=0.1, batch_size=1, epochs=2)
    one, label = (part[:1] for part in data())
    got = OverRounds(dense(), StandIn((one, label), [Noise(1.0)], known, seconds=SLOW)).add(
        1, weights(1)
    )
    how: dict[str, Any] = {"learning_rate": 0.1, "local_steps": 2, "epochs": 2, "pairs": 64}
    assert got.ceiling == pytest.approx(
        unsum.ceiling(dense(1), (one, label), noise=1.0, **how).highest
    )
    with pytest.raises(UnsumError, match="needs a learning rate"):
        StandIn(data(), [Noise(1.0)], LocalTraining(steps=3))
    with pytest.raises(UnsumError, match="must be positive"):
        StandIn(data(), [Noise(1.0)], seconds=0)


def test_without_noise_nothing_hides_the_samples() -> None:
    got = OverRounds(dense(), StandIn(data())).add(1, weights(1))
    assert got.ceiling == 1.0
    assert "nothing random hides" in got.sentence


def test_a_round_that_was_not_played_leaves_no_proof() -> None:
    """A noise that proves 1 % in other rounds proves nothing once a round is not known."""
    curve = OverRounds(dense(), StandIn(data(), [Noise(100.0)]))
    assert curve.add(1, weights(1)).ceiling < 0.2
    broken = {"weight": torch.zeros(7, 7), "bias": torch.zeros(7)}
    assert curve.add(2, broken).ceiling == 1.0
    last = curve.add(3, weights(1))
    assert (last.ceiling, last.pairs, last.rounds) == (1.0, 0, 3)
    assert last.why.startswith("Round 2 could not be played.")


def test_batchnorms_statistics_pass_by_the_noise() -> None:
    model = network()
    images, labels = photos(0)
    sent = dict(model.state_dict())
    how = {"defenses": [Noise(1e4)]}
    got = OverRounds(model, StandIn((images, labels), **how)).add(1, sent)
    assert got.ceiling == 1.0
    assert "BatchNorm's statistics" in got.why
    assert (
        OverRounds(model, StandIn((images, labels), **how, train=False)).add(1, sent).ceiling < 0.2
    )
    kept_back = {
        name: value
        for name, value in sent.items()
        if "running" not in name and "tracked" not in name
    }
    assert OverRounds(model, StandIn((images, labels), **how)).add(1, kept_back).ceiling < 0.2


@pytest.mark.long
def test_beside_the_training_it_is_the_same_curve() -> None:
    client = StandIn(data(), [Noise(1.0)], seconds=SLOW)
    beside = Beside(dense(9), client)
    for number in (1, 2):
        beside.offer(number, lambda number=number: weights(number))  # type: ignore[misc]
    got = beside.finish()
    curve = OverRounds(dense(9), client)
    asked = [curve.add(number, weights(number)) for number in (1, 2)]
    assert [(one.round, one.ceiling, one.pairs) for one in got] == [
        (o.round, o.ceiling, o.pairs) for o in asked
    ]
    assert beside.ready() == []


def test_a_killed_process_and_a_lost_round_leave_no_proof() -> None:
    beside = Beside(dense(9), StandIn(data(), [Noise(100.0)]))
    beside.offer(1, lambda: weights(1))
    assert beside._pool is not None
    beside._waiting[0][2].result(120)
    for process in beside._pool._processes.values():
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    beside.offer(2, lambda: weights(2))
    beside.offer(3, lambda: weights(3), "Round 3 could not be played. Clients were sent others.")
    first, second, third = beside.finish()
    assert first.ceiling < 0.2
    assert (second.ceiling, third.ceiling, third.rounds) == (1.0, 1.0, 3)
    assert all("could not be played." in one.why for one in (second, third))


def test_too_many_rounds_behind_are_said_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    beside = Beside(dense(), StandIn(data(), [Noise(1.0)]))
    monkeypatch.setattr("unsum.integrations.stand_in.BEHIND", 0)
    beside.offer(1, lambda: pytest.fail("its weights were read"))  # type: ignore[arg-type,return-value]
    (only,) = beside.ready()
    assert only == RoundCeiling(1, 1, 1.0, 0, 0.0, "Ceilings were 0 rounds behind.")


def test_a_model_that_cannot_travel_is_refused_at_once() -> None:
    class Local(nn.Linear):
        """Known inside this function alone."""

    with pytest.raises(UnsumError, match="cannot be sent to another process"):
        Beside(Local(8, 4), StandIn(data()))


def test_a_round_whose_weights_are_not_known_leaves_no_proof() -> None:
    curve = OverRounds(dense(), StandIn(data(), [Noise(100.0)]))
    assert curve.add(1, weights(1)).ceiling < 0.2
    assert curve.add(2, None).ceiling == 1.0
    assert curve.add(3, weights(1)).why.startswith(
        "Round 2 could not be played. The weights that were sent to everybody"
    )


def test_rounds_that_are_taken_to_be_alike() -> None:
    """The ceiling of k such rounds is that of squared distances k times as large."""
    client = StandIn(data(), [Noise(2.0)], seconds=SLOW)
    got = like_this_one(dense(1), client, [2, 5], bare=False)
    one = unsum.ceiling(dense(1), data(), noise=2.0, pairs=64)
    assert [(point.round, point.rounds) for point in got] == [(2, 1), (5, 2)]
    assert [point.ceiling for point in got] == pytest.approx(
        [one.highest, float(one.after(2).max())]
    )
    bare = like_this_one(dense(1), client, [0], bare=True)
    assert (bare[0].ceiling, bare[0].pairs) == (1.0, 0)


def test_data_that_cannot_stand_in_are_refused_at_once() -> None:
    images, labels = data()
    for wrong in (images, "photos/", (images, labels.tolist()), (images, labels, labels)):
        with pytest.raises(UnsumError, match="two tensors with a row for each sample"):
            StandIn(wrong)
    for odd in ((images, labels[:2]), (images[:0], labels[:0])):
        with pytest.raises(UnsumError, match="as many targets as inputs"):
            StandIn(odd)


def test_a_client_that_cannot_be_played_has_no_ceiling_and_the_page_says_why() -> None:
    wide = torch.randn(2, 9), torch.tensor([0, 1])
    (only,) = like_this_one(dense(), StandIn(wide, [Noise(1.0)]), [4], bare=False)
    assert (only.round, only.ceiling) == (4, 1.0)
    assert only.sentence.startswith(
        "After 1 round the ceiling is 100 %: round 4 could not be played."
    )
