"""The guard and its clock, without any framework."""

from __future__ import annotations

import json
import math
import threading
import time

import pytest
import torch

import unsum
from integrations.networks import network, photos, trained
from unsum.integrations.finding import ClientFinding, figures_of
from unsum.integrations.guard import Guard
from unsum.integrations.time_limit import OutOfTime, within
from unsum.local_training import LocalTraining

RATE = 0.1
KNOWN = LocalTraining(learning_rate=RATE)


def test_work_within_its_time_returns_or_raises() -> None:
    assert within(5, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        within(5, lambda: 1 / 0)


def test_work_beyond_its_time_is_stopped() -> None:
    ended = threading.Event()

    def endless() -> None:
        try:
            while True:
                try:
                    torch.ones(10).sum()
                except Exception:
                    continue  # broad handlers inside do not keep it alive
        finally:
            ended.set()

    start = time.perf_counter()
    with pytest.raises(OutOfTime):
        within(0.2, endless)
    assert time.perf_counter() - start < 2
    assert ended.wait(5)


def test_a_leaking_update_is_refused_and_a_drowned_one_passes_unchanged() -> None:
    model = network()
    guard, after = (
        Guard(model, training=KNOWN, attack="exact"),
        trained(model, *photos(), rate=RATE),
    )
    refused = guard.judge(model.state_dict(), after)
    assert refused.weights is None
    assert refused.leakage > 0.999
    drowned = {
        n: v + torch.randn(v.shape) if v.is_floating_point() else v for n, v in after.items()
    }
    passed = guard.judge(model.state_dict(), drowned)
    assert passed.weights is not None
    assert all(torch.equal(passed.weights[name], drowned[name]) for name in drowned)
    assert passed.leakage <= 0.2


def test_noise_is_no_more_than_needed() -> None:
    """Two steps less of it, and the attack still expects to succeed."""
    model = network()
    received, after = model.state_dict(), trained(model, *photos(), rate=RATE)
    judged = Guard(model, action="noise", training=KNOWN, attack="exact").judge(received, after)
    assert judged.weights is not None
    added = judged.weights["7.weight"] - after["7.weight"]
    assert float(added.std()) == pytest.approx(judged.noise, rel=0.05)
    less = {
        n: v + (judged.weights[n] - v) / 9 if v.is_floating_point() else v for n, v in after.items()
    }
    assert Guard(model, training=KNOWN, attack="exact").judge(received, less).weights is None


def test_noise_spares_what_was_not_trained_and_statistics_under_any_name() -> None:
    model = network()
    received = {name: value.clone() for name, value in model.state_dict().items()}
    # a frozen layer
    after = trained(model, *photos(), rate=RATE) | {"0.weight": received["0.weight"]}
    spared = ("0.weight", "1.running_mean", "1.running_var", "4.num_batches_tracked")
    for numbered in (False, True):
        names = {name: str(i) if numbered else name for i, name in enumerate(received)}
        sides = [{names[name]: value for name, value in side.items()} for side in (received, after)]
        judged = Guard(model, action="noise", training=KNOWN, attack="exact").judge(*sides)
        assert judged.weights is not None
        assert all(torch.equal(judged.weights[names[name]], after[name]) for name in spared)
        assert not torch.equal(judged.weights[names["3.weight"]], after["3.weight"])


def test_two_updates_never_get_the_same_noise() -> None:
    model = network()
    received, after = model.state_dict(), trained(model, *photos(), rate=RATE)
    guard = Guard(model, action="noise", training=KNOWN, attack="exact")
    torch.manual_seed(0)
    one = guard.judge(received, after).weights
    torch.manual_seed(0)
    two = guard.judge(received, after).weights
    assert one is not None
    assert two is not None
    assert not torch.equal(one["7.weight"], two["7.weight"])


@pytest.mark.parametrize(("way", "sent"), [("refuse", False), ("send", True)])
def test_out_of_time_is_unsure(way: str, sent: bool) -> None:
    model = network()
    guard = Guard(model, training=KNOWN, when_unsure=way, budget_seconds=1e-6)  # type: ignore[arg-type]
    judged = guard.judge(model.state_dict(), trained(model, *photos(), rate=RATE))
    assert (judged.weights is not None) is sent
    assert math.isnan(judged.leakage)
    assert "took longer than 1e-06 s" in judged.reason


def test_settings_that_say_nothing_are_refused() -> None:
    with pytest.raises(unsum.UnsumError, match="from 0 to below 1"):
        Guard(network(), threshold=1.0)
    with pytest.raises(unsum.UnsumError, match="action"):
        Guard(network(), action="drop")  # type: ignore[arg-type]
    with pytest.raises(unsum.UnsumError, match="unsure"):
        Guard(network(), when_unsure="wait")  # type: ignore[arg-type]


def test_a_finding_is_plain_json_and_figures_count_what_is_certain() -> None:
    sure = ClientFinding(
        1,
        "7",
        "audited",
        exact=True,
        predicted_error=1e-6,
        leakage=1.0,
        batch_size=8,
        distinct=8,
        label_counts={3: 8},
    )
    vague = ClientFinding(
        1, "8", "audited", predicted_error=math.inf, leakage=math.nan, batch_size=5
    )
    late = ClientFinding(1, "9", "out of time")
    content = json.loads(json.dumps(vague.to_dict(), allow_nan=False))
    assert content["predicted_error"] is None
    assert json.loads(json.dumps(sure.to_dict()))["label_counts"] == {"3": 8}
    figures = figures_of([sure, vague, late], 0.5)
    assert figures == {
        "leak-audited": 2, "leak-not-audited": 1, "leak-exact": 1, "leak-exact-samples": 8,
        "leak-statistics": 0, "leak-seconds": 0.5, "leak-worst": 1.0, "leak-not-decidable": 2,
    }  # fmt: skip
