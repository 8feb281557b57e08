"""The runner: what it measures, what it skips, and how it takes errors."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from support.bench_cells import BROKEN, CONV, FGLA, UNKNOWN_OPTION, cell, values
from unsum import capture, score, separate
from unsum_bench.declare import Attack, Network
from unsum_bench.material import Material
from unsum_bench.measure import measure
from unsum_bench.measure.many import batch_by_batch, play_head, rounds
from unsum_bench.measure.round import defenses, draw
from unsum_bench.networks import build
from unsum_bench.run import run
from unsum_bench.store import Store

EMBEDDED = Material()
CELLS = [cell(), cell(FGLA), cell(seed=1), cell(FGLA, same=4), cell(UNKNOWN_OPTION), cell(BROKEN)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store(tmp_path_factory.mktemp("run") / "store.sqlite")
    run(CELLS, EMBEDDED, store)
    return store


def test_figures_are_those_of_the_attacks() -> None:
    """The exact solver has every feature also where labels are alike; the ratio method has their
    mean."""
    exact, alike = (
        measure(cell(same=4), EMBEDDED).values,
        measure(cell(FGLA, same=4), EMBEDDED).values,
    )
    assert exact["feature_error"] < 1e-3
    assert exact["labels"] == exact["exact"] == 1
    assert alike["feature_error"] > 0.1
    assert exact["leakage"] > 0.999 > 0.8 > alike["leakage"]


def test_the_sum_of_few_clients_is_as_readable_as_one() -> None:
    """Two clients of two samples: all four are at stake, and 4 < 9 classes; without their number
    the cell has no meaning."""
    shared = measure(cell(batch=2, defense="secagg:2"), EMBEDDED).values
    assert shared["feature_error"] < 1e-3
    assert shared["labels"] == 1
    without = measure(cell(batch=2, defense="secagg"), EMBEDDED)
    assert (without.status, "its strength is missing" in without.sentence) == ("needs", True)


def test_errors_stay_in_their_cells(store: Store) -> None:
    found = {result.outcome.status: result.outcome for result in store}
    assert [r.outcome.status for r in store].count("measured") == 4
    assert found["needs"].sentence == "The attack 'exact' takes no options; leave 'turns' out."
    assert 'File "unsum_bench/measure/' in found["failed"].traceback
    assert str(Path(__file__).parents[2]) not in found["failed"].traceback  # stores are passed on
    assert found["failed"].sentence == "ValueError: could not convert string to float: 'high'"


def test_time_and_memory_are_recorded(store: Store) -> None:
    for result in store:
        assert 0 < result.outcome.cpu_seconds < 60
        assert result.outcome.seconds > 0
        assert 50 < result.outcome.peak_mb < 20_000
        assert {"code", "data_sha256", "hardware", "torch", "command"} <= result.origin.keys()


def test_a_second_run_measures_nothing_and_retries_only_what_has_no_figures(store: Store) -> None:
    again = run(CELLS, EMBEDDED, store)
    assert (again.known, again.measured, again.failed, again.failed_before) == (5, 0, 0, 1)
    assert "1 failed before (--retry-failed tries them again)" in str(again)
    retried = run(CELLS, EMBEDDED, store, retry_failed=True)
    assert (retried.known, retried.measured, retried.failed, retried.failed_before) == (4, 0, 1, 0)


def test_the_order_of_cells_changes_no_figure(store: Store, tmp_path: Path) -> None:
    with Store(tmp_path / "other.sqlite") as other:
        run(reversed(CELLS), EMBEDDED, other)
        assert values(other) == values(store)


def test_a_batch_that_the_data_do_not_have_is_a_need() -> None:
    outcome = measure(replace(cell(batch=40), network=Network("conv", 16, 100)), EMBEDDED)
    assert outcome.status == "needs"
    assert outcome.sentence == (
        "This cell needs 40 photos of distinct classes, and the data have 16; give more with "
        "--data."
    )


def test_a_network_without_its_weights_is_a_need() -> None:
    outcome = measure(replace(cell(), network=Network("resnet50", 224, 10)), EMBEDDED)
    assert (outcome.status, outcome.sentence) == (
        "needs",
        "The network 'resnet50' needs trained weights; give a file with --weights.",
    )


@pytest.mark.parametrize("labels", ["smooth", "mixup"])
def test_soft_labels_come_back(labels: str) -> None:
    lenet = Network("lenet", 16, 10, train=False)
    soft = replace(
        cell(Attack("exact", family="soft"), batch=1), network=lenet, labels=labels, draws=3
    )  # type: ignore[arg-type]
    assert measure(soft, EMBEDDED).values["recovered"] == 1


@pytest.mark.long  # two processes that import torch
def test_draws_dealt_out_to_processes_are_the_same_draws() -> None:
    lenet = Network("lenet", 16, 10, train=False)
    soft = replace(
        cell(Attack("soft", family="soft"), batch=1),
        network=lenet,
        labels="mixup",
        defense="noise:0.001",
        draws=8,
    )
    alone, dealt = (measure(soft, Material(threads=threads)).values for threads in (1, 2))
    assert 0 < alone["target_error"] < 0.1
    assert alone | {"attack_seconds": 0} == dealt | {"attack_seconds": 0}


def test_an_option_reaches_its_attack_and_its_key() -> None:
    from unsum_bench.material import key_of

    given = Material(options=(("rgla", "steps", "7"),))
    rgla = cell(Attack("rgla", (("steps", 1),), "labels"))
    assert key_of(rgla, given) != key_of(rgla, EMBEDDED)
    assert key_of(cell(), given) == key_of(cell(), EMBEDDED)
    assert measure(rgla, given).values["loss"] != measure(rgla, EMBEDDED).values["loss"]


def test_results_of_other_code_may_stand_for_those_of_this(store: Store, tmp_path: Path) -> None:
    """A release later every key is another one; what tables show already need not be measured
    again, refusals are."""
    with Store(tmp_path / "older.sqlite") as older:
        for result in store:
            older.put(
                f"of other code {result.key}", result.declaration, {}, result.outcome, result.origin
            )
        kept = run(CELLS[:5], EMBEDDED, older, any_code=True)
        assert (kept.known, kept.measured, kept.needs) == (4, 0, 1)
        again = run(CELLS[:5], EMBEDDED, older)
        assert (again.known, again.measured, again.needs) == (1, 4, 0)


MANY = {"draws": 2, "random_labels": True}


def test_a_cell_of_many_batches_is_the_mean_of_its_batches() -> None:
    """Each draw by itself, through the attack's own door, gives the same figures."""
    rgla = Attack("rgla", (("constant_D", True), ("steps", 400)), "labels")
    together = replace(cell(rgla, batch=4), **MANY)  # type: ignore[arg-type]
    values = measure(together, EMBEDDED).values
    errors = []
    for number, one in enumerate(rounds(together, EMBEDDED)):
        leak = separate(one.head, one.update, "rgla", labels=one.labels, seed=number, steps=400)
        errors.append(score(leak, features=one.features)["feature_error"])
    assert values["batches"] == 2
    assert values["feature_error"] == pytest.approx(sum(errors) / 2, rel=1e-3)
    assert values["feature_error_se"] == pytest.approx(abs(errors[0] - errors[1]) / 2, rel=1e-2)


def test_batches_that_were_measured_before_are_left_out() -> None:
    several = replace(cell(FGLA, batch=4), **MANY)  # type: ignore[arg-type]
    every = list(batch_by_batch(several, EMBEDDED, {}))
    assert len(every) == 2
    assert list(batch_by_batch(several, EMBEDDED, {}, first=1)) == every[1:]


@pytest.mark.parametrize("defense", ["none", "clip:0.5", "prune:0.5"])
def test_the_heads_own_update_is_that_of_the_whole_client(defense: str) -> None:
    """A forward pass and the head are enough, and clipping takes the norm of everything."""
    one = play_head(cell(defense=defense), EMBEDDED)
    model = copy.deepcopy(build(CONV, seed=0, weights=None))
    model[-1] = one.head  # type: ignore[index]
    whole = capture(model, one.images, one.labels, defenses=defenses(defense))
    for part in ("weight", "bias"):
        torch.testing.assert_close(
            one.update.gradients[part], whole.gradients[f"5.{part}"], rtol=1e-4, atol=1e-7
        )


def test_random_labels_repeat_and_photos_do_not() -> None:
    drawn = draw(replace(cell(batch=16), random_labels=True), EMBEDDED)
    assert len(drawn.labels.unique()) < 10 < len(drawn.images.flatten(1).unique(dim=0))
    other = draw(replace(cell(batch=16, seed=1), random_labels=True), EMBEDDED)
    assert not torch.equal(drawn.labels, other.labels)


def test_exact_features_come_back_of_every_batch() -> None:
    values = measure(replace(cell(same=2), draws=2), EMBEDDED).values
    assert values["feature_error"] < 1e-3
    assert (values["recovered"], values["labels"], values["batches"]) == (1, 1, 2)


def test_a_start_near_the_labels_ends_in_twins() -> None:
    options = (
        ("constant_D", True),
        ("objectives", ("w", "b", "loss")),
        ("start", "labels"),
        ("steps", 300),
    )
    near = replace(cell(Attack("rgla", options, "labels", family="twins")), draws=2)
    values = measure(near, EMBEDDED).values
    assert (values["twins"], values["batches"]) == (1, 2)
    assert values["twin_entropy"] < 0.2 < values["true_entropy"]


def test_cells_of_cifar_say_what_they_need() -> None:
    outcome = measure(replace(cell(), data="cifar"), EMBEDDED)
    assert (outcome.status, "--cifar" in outcome.sentence) == ("needs", True)


def test_the_estimated_loss_is_measured_on_networks_of_their_accuracy() -> None:
    goals = {}
    for accuracy in (0.1, 0.9):
        attack = Attack("l̂", (("accuracy", accuracy),), "labels", family="estimate")
        goals[accuracy] = measure(cell(attack, batch=8), EMBEDDED).values
    assert goals[0.9]["accuracy"] >= 0.9 > goals[0.1]["accuracy"] >= 0.1
    assert goals[0.9]["mean_loss"] < goals[0.1]["mean_loss"]
    assert goals[0.9]["loss_error_squared"] == pytest.approx(goals[0.9]["loss_error_l2"] ** 2 / 100)
