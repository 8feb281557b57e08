"""AuditStrategy against Flower itself, without a network between."""

from __future__ import annotations

import copy
import json
import math
import resource
import time
from pathlib import Path

import pytest
import torch
from flwr.app import Error, Message
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAdam, FedAvg
from messages import answers, ask, reply
from networks import network, photos, trained
from torch.utils.tensorboard import SummaryWriter  # noqa: F401 (the curves below need it)

import unsum
import unsum.integrations.flower as flower
from unsum import Noise
from unsum.integrations.flower import AuditStrategy, LocalTraining

RATE = 0.1
KNOWN = LocalTraining(learning_rate=RATE)


def one_step(model):
    return lambda place, _sent: trained(model, *photos(4 * (place % 4)), rate=RATE)


def run(strategy, model, nodes=3, number=1):
    return strategy.aggregate_train(
        number, answers(ask(strategy, model, nodes, number), one_step(model))
    )


def test_every_client_is_found_with_its_labels_and_the_history_says_so() -> None:
    model = network()
    strategy = AuditStrategy(FedAvg(), model, training=KNOWN, budget_seconds=60)
    _, metrics = run(strategy, model)
    assert metrics["leak-audited"] == metrics["leak-exact"] == 3
    assert metrics["leak-exact-samples"] == 12
    assert metrics["leak-worst"] > 0.999999
    assert metrics["leak-statistics"] == 3
    assert metrics["loss"] == 1.5  # the inner strategy's own metrics stay
    assert [finding.client for finding in strategy.findings] == ["1000", "1001", "1002"]
    for place, finding in enumerate(strategy.findings):
        labels = [label for label, count in finding.label_counts.items() for _ in range(count)]
        assert labels == sorted(photos(4 * place)[1].tolist())
        assert (finding.batch_size, finding.num_examples, finding.local_steps) == (4, 4, 1)
        assert "mean and variance of 24 channels" in finding.notes[-1]


def test_the_weights_that_were_sent_count_not_the_models_own() -> None:
    model = network(seed=3)
    strategy = AuditStrategy(FedAvg(), network(seed=99), training=KNOWN, budget_seconds=60)
    _, metrics = run(strategy, model)
    assert metrics["leak-exact"] == 3
    assert torch.equal(strategy.worst[1][0].weight, model[0].weight)


@pytest.mark.parametrize("build", [FedAvg, FedAdam])
def test_training_is_the_same_with_and_without(build) -> None:
    model = network()
    plain, wrapped = build(), AuditStrategy(build(), model, training=KNOWN, budget_seconds=60)
    one, _ = run(plain, model)
    two, _ = run(wrapped, model)
    for first, second in zip(one.to_numpy_ndarrays(), two.to_numpy_ndarrays(), strict=True):
        assert (first == second).all()


def test_what_arrives_is_audited_not_what_the_server_clips_it_to() -> None:
    model = network()
    private = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1e-3, 3)
    strategy = AuditStrategy(private, model, training=KNOWN, budget_seconds=60)
    _, metrics = run(strategy, model)
    assert metrics["leak-exact"] == 3
    assert strategy.clipping_norm == 1e-3  # others see the inner strategy's attributes


def test_a_clients_error_is_passed_on_and_takes_nobodys_place() -> None:
    model = network()
    strategy = AuditStrategy(FedAvg(), model, training=KNOWN, clients=2, budget_seconds=60)
    messages = ask(strategy, model, 3)
    replies = answers(messages, one_step(model))
    replies[0] = Message(Error(code=0, reason="out of memory"), reply_to=messages[0])
    arrays, metrics = strategy.aggregate_train(1, iter(replies))
    assert arrays is not None
    assert metrics["leak-exact"] == 2
    assert [finding.client for finding in strategy.findings] == ["1001", "1002"]


def test_a_failing_audit_never_breaks_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_arguments, **_options):
        raise ZeroDivisionError("on purpose")

    model = network()
    strategy = AuditStrategy(FedAvg(), model, training=KNOWN, budget_seconds=60)
    monkeypatch.setattr(flower, "attack_seen", broken)
    arrays, metrics = run(strategy, model)
    assert arrays is not None
    assert metrics["leak-audited"] == 0
    assert strategy.findings[0].notes == ("The audit failed with ZeroDivisionError: on purpose",)
    monkeypatch.setattr(strategy, "_audit", broken)
    arrays, metrics = run(strategy, model, number=2)
    assert arrays is not None
    assert dict(metrics) == {"loss": 1.5}


def test_a_model_that_does_not_fit_is_said_and_training_goes_on() -> None:
    strategy = AuditStrategy(FedAvg(), torch.nn.Linear(3, 2), training=KNOWN, budget_seconds=60)
    arrays, metrics = run(strategy, network())
    assert arrays is not None
    assert metrics["leak-not-audited"] == 3
    assert "pass the model that the client trained" in strategy.findings[0].notes[0]


def test_when_the_budget_is_over_the_audit_stops_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopped = []

    def endless(*_arguments, **_options):
        try:
            while True:
                time.sleep(0.01)
        finally:
            stopped.append(True)

    model = network()
    strategy = AuditStrategy(FedAvg(), model, training=KNOWN, budget_seconds=0.3)
    replies = answers(ask(strategy, model, 3), one_step(model))
    monkeypatch.setattr(flower, "attack_seen", endless)
    start = time.perf_counter()
    arrays, metrics = strategy.aggregate_train(1, replies)
    assert time.perf_counter() - start < 1.5
    assert arrays is not None
    assert metrics["leak-not-audited"] == 3
    assert {finding.outcome for finding in strategy.findings} == {"out of time"}
    assert "took longer than the 0.15 s it was given" in strategy.findings[0].notes[0]
    time.sleep(0.2)
    assert len(stopped) == 3


def test_by_default_audits_take_at_most_a_tenth_of_the_training_and_save_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    budgets, needed = [], 0.15

    def clock(seconds, work):
        budgets.append(seconds)
        time.sleep(min(seconds, needed))
        if seconds < needed:
            raise flower.OutOfTime
        return work()

    model = network()
    strategy = AuditStrategy(FedAvg(), model, training=KNOWN, clients=1)
    monkeypatch.setattr(flower, "within", clock)
    for number in range(1, 13):
        replies = answers(ask(strategy, model, 2, number), one_step(model))
        strategy._started = time.perf_counter() - 1.0  # a round of one second
        strategy.aggregate_train(number, replies)
    assert budgets[0] == pytest.approx(0.05, abs=0.02)
    # not before there was twice as much, and then all of it
    assert budgets[1] >= 4 * budgets[0] - 0.01
    assert {finding.outcome for finding in strategy.findings} == {"audited", "out of time"}
    assert strategy.training_seconds == pytest.approx(12, abs=0.5)
    assert strategy.audit_seconds < 0.1 * strategy.training_seconds + 0.1
    assert "budget of 0 s was over" in strategy.findings[1].notes[0]


def test_a_slow_audit_leaves_time_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    real = flower.attack_seen

    def slow_for_one(model, found, *arguments, **options):
        while found.update.num_examples == 99:
            time.sleep(0.01)
        return real(model, found, *arguments, **options)

    model = network()
    strategy = AuditStrategy(FedAvg(), model, training=KNOWN, budget_seconds=4)
    messages = ask(strategy, model, 3)
    replies = [
        reply(messages[0], one_step(model)(0, {}), 99),
        *answers(messages[1:], one_step(model)),
    ]
    monkeypatch.setattr(flower, "attack_seen", slow_for_one)
    strategy.aggregate_train(1, replies)
    assert [finding.outcome for finding in strategy.findings] == [
        "out of time",
        "audited",
        "audited",
    ]


def test_every_and_clients_choose_and_in_the_end_each_client_had_its_turn() -> None:
    model = network()
    strategy = AuditStrategy(FedAvg(), model, training=KNOWN, every=2, clients=1, budget_seconds=60)
    for number in range(1, 7):
        _, metrics = run(strategy, model, number=number)
        assert ("leak-audited" in metrics) is (number % 2 == 1)
    assert [(finding.round, finding.client) for finding in strategy.findings] == [
        (1, "1000"),
        (3, "1001"),
        (5, "1002"),
    ]


def test_the_journal_holds_a_line_a_client_and_tensorboard_a_curve(tmp_path: Path) -> None:
    model = network()
    strategy = AuditStrategy(
        FedAvg(), model, training=KNOWN, folder=tmp_path / "audit", budget_seconds=60
    )
    for number in (1, 2):
        run(strategy, model, number=number)
    lines = [
        json.loads(line)
        for line in (tmp_path / "audit" / "leakage.jsonl").read_text("utf-8").splitlines()
    ]
    assert [(line["round"], line["client"], line["exact"]) for line in lines] == [
        (number, client, True) for number in (1, 2) for client in ("1000", "1001", "1002")
    ]
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    curves = EventAccumulator(str(tmp_path / "audit"))
    curves.Reload()
    assert [event.value for event in curves.Scalars("unsum/leak-exact")] == [3, 3]
    assert len(curves.Scalars("unsum/client/1001")) == 2


def test_numbers_instead_of_names_are_matched_by_order() -> None:
    """Clients that send lists of arrays: Flower names them 0, 1, 2, …"""
    from flwr.app import ArrayRecord, ConfigRecord
    from messages import Grid

    model = network(norm=False)
    strategy = AuditStrategy(FedAvg(), model, training=KNOWN, budget_seconds=60)
    record = ArrayRecord([value.numpy() for value in model.state_dict().values()])
    messages = strategy.configure_train(1, record, ConfigRecord(), Grid(2))
    replies = []
    for message in messages:
        after = trained(model, *photos(), rate=RATE)
        replies.append(reply(message, dict(zip(record, after.values(), strict=True))))
    strategy.aggregate_train(1, replies)
    assert sorted(strategy.findings[0].label_counts) == sorted(set(photos(0)[1].tolist()))


def test_settings_that_say_nothing_are_refused() -> None:
    from unsum import UnsumError

    model = network()
    with pytest.raises(UnsumError, match="count from 1"):
        AuditStrategy(FedAvg(), model, every=0)
    with pytest.raises(UnsumError, match="budget above 0"):
        AuditStrategy(FedAvg(), model, budget_seconds=0)
    with pytest.raises(UnsumError, match="no attack"):
        AuditStrategy(FedAvg(), model, attack="exacct")


def test_several_local_steps_are_followed_without_being_asked_to() -> None:
    model = network()
    strategy = AuditStrategy(
        FedAvg(min_train_nodes=1, min_available_nodes=1),
        model,
        training=LocalTraining(0.02, 2, 4, epochs=2),
        budget_seconds=120,
    )
    messages = ask(strategy, model, 1)
    strategy.aggregate_train(
        1, answers(messages, lambda _place, _sent: trained(model, *photos(), rate=0.02, steps=2))
    )
    (finding,) = strategy.findings
    assert finding.method == "local-steps"
    assert [label for label, n in finding.label_counts.items() for _ in range(n)] == sorted(
        photos()[1].tolist()
    )


def test_rounds_on_the_same_batch_are_solved_together_where_the_user_says_so() -> None:
    model = network()
    strategy = AuditStrategy(
        FedAvg(min_train_nodes=1, min_available_nodes=1),
        model,
        training=KNOWN,
        repeats=True,
        budget_seconds=120,
    )
    for number in (1, 2):
        run(strategy, model, nodes=1, number=number)
    first, second = strategy.findings
    assert not any("rounds were solved together" in note for note in first.notes)
    assert any("2 rounds were solved together" in note for note in second.notes) or second.exact
    assert second.predicted_error <= first.predicted_error


def test_counters_that_a_client_made_up_take_no_memory_and_are_no_low_leak() -> None:
    model = network()

    def hostile(place, _sent):
        after = trained(model, *photos(), rate=RATE)
        for name in after if place == 0 else ():
            if name.endswith("num_batches_tracked"):
                after[name] += 30_000
        return after

    strategy = AuditStrategy(FedAvg(), model, training=KNOWN, budget_seconds=60)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    arrays, metrics = strategy.aggregate_train(1, answers(ask(strategy, model, 2), hostile))
    # kilobytes; a table took gigabytes
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 << 10
    assert arrays is not None
    assert (metrics["leak-audited"], metrics["leak-not-audited"], metrics["leak-exact"]) == (
        1,
        1,
        1,
    )
    forged = strategy.findings[0]
    assert (forged.outcome, forged.leakage == forged.leakage) == ("failed", False)
    assert "30,001 local steps" in forged.notes[0]
    assert "not audited" in forged.notes[0]


@pytest.mark.parametrize("examples", [100_000, 10**18, 1e300, math.inf, math.nan, -1, 0])
@pytest.mark.parametrize("counter", [1, 2**62, math.nan, math.inf, -5])
def test_no_number_of_a_client_breaks_the_audit_or_takes_memory(examples, counter) -> None:
    model = network()
    one = FedAvg(min_train_nodes=1, min_available_nodes=1)
    strategy = AuditStrategy(one, model, training=KNOWN, budget_seconds=60)
    after = trained(model, *photos(), rate=RATE)
    for name in after:
        if name.endswith("num_batches_tracked") and counter != 1:
            after[name] = torch.tensor(counter)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    figures = strategy._audit(1, [reply(ask(strategy, model, 1)[0], after, examples)])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 << 10
    (finding,) = strategy.findings
    assert figures["leak-audited"] + figures["leak-not-audited"] == 1
    # a sentence of our own, no other library's
    assert not any("failed with" in note for note in finding.notes)
    if counter == 1:
        assert finding.outcome == "audited"
        assert finding.leakage > 0.999
        assert finding.num_examples == (examples if 1 <= examples < 2**63 else None)


def test_behind_the_training_a_round_waits_for_no_audit_and_none_is_lost() -> None:
    model = network()
    strategy = AuditStrategy(FedAvg(), model, training=KNOWN, processes=1)
    arrays, metrics = run(strategy, model)
    assert arrays is not None
    assert metrics["leak-not-audited"] == 0
    assert metrics["leak-seconds"] < 1  # three updates were handed over, and nothing was computed
    strategy.finish()
    assert sorted(finding.client for finding in strategy.findings) == ["1000", "1001", "1002"]
    assert all(finding.exact and finding.batch_size == 4 for finding in strategy.findings)


def test_a_stand_in_client_gives_a_ceiling_over_rounds_and_training_is_the_same(
    tmp_path: Path,
) -> None:
    """Distances of rounds add, so that the ceiling rises; the figures stand in Flower's own
    history."""
    model = network(norm=False)
    images, labels = photos(8, 2)
    how = {"training": KNOWN, "budget_seconds": 60}
    strategy = AuditStrategy(
        *(FedAvg(), model),
        **how,
        data=(images, labels),
        defenses=Noise(20.0),
        ceiling_seconds=120,
        folder=tmp_path,
    )
    plain = AuditStrategy(FedAvg(), model, **how)
    for number in (1, 2, 3):
        one, metrics = run(strategy, model, number=number)
        two, without = run(plain, model, number=number)
        assert "leak-ceiling" not in without
        for first, second in zip(one.to_numpy_ndarrays(), two.to_numpy_ndarrays(), strict=True):
            assert (first == second).all()
    strategy.finish()
    found = strategy.ceilings
    assert [(point.round, point.rounds, point.why) for point in found] == [
        (1, 1, ""),
        (2, 2, ""),
        (3, 3, ""),
    ]
    assert 0 < found[0].ceiling < found[1].ceiling < found[2].ceiling < 1
    single = unsum.ceiling(model, (images, labels), noise=20.0, pairs=64)
    assert found[0].ceiling == pytest.approx(single.highest, abs=1e-3)
    # the same weights three times
    assert found[2].ceiling == pytest.approx(float(single.after(3).max()), abs=1e-3)
    lines = [
        json.loads(line) for line in (tmp_path / "ceilings.jsonl").read_text("utf-8").splitlines()
    ]
    assert [line["rounds"] for line in lines] == [1, 2, 3]
    _, metrics = run(strategy, model, number=4)
    assert metrics["leak-ceiling"] == found[2].ceiling  # of the last round that is known
    assert metrics["leak-ceiling-rounds"] == 3
    strategy.finish()


def test_weights_that_differ_from_client_to_client_leave_no_ceiling() -> None:
    model = network(norm=False)
    strategy = AuditStrategy(
        FedAvg(), model, training=KNOWN, budget_seconds=60, data=photos(8, 2), defenses=Noise(1e3)
    )
    messages = ask(strategy, model, 2)
    own = copy.deepcopy(messages[1])
    strategy._play(2, [messages[0], own])
    strategy.finish()
    assert strategy.ceilings[-1].ceiling == 1.0
    assert "not sent one record of the same weights" in strategy.ceilings[-1].why


def test_a_ceiling_that_fails_never_breaks_a_round(monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    def broken(*_arguments, **_options):
        raise ZeroDivisionError("on purpose")

    model = network(norm=False)
    strategy = AuditStrategy(FedAvg(), model, training=KNOWN, budget_seconds=60, data=photos(8, 2))
    monkeypatch.setattr(strategy._beside, "offer", broken)
    arrays, metrics = run(strategy, model)
    assert arrays is not None
    assert metrics["leak-audited"] == 3
    assert strategy.ceilings == []
    assert "no ceiling is computed any more" in caplog.text


def test_without_data_the_strategy_says_what_a_ceiling_needs(caplog) -> None:
    caplog.set_level("INFO", logger="flwr")
    AuditStrategy(FedAvg(), network(), training=KNOWN).summary()
    assert "nobody can play a client without data" in caplog.text
