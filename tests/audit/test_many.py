"""Many updates at once: the same findings whoever computes them, nothing lost when something is
killed."""

from __future__ import annotations

import math
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import unsum
from support.many import Deadly, clients, figures, network, update
from unsum.audit.finding import ClientFinding, expected_leakage
from unsum.audit.many import Findings
from unsum.audit.many import arrived as one_update
from unsum.audit.many.arrived import in_folder, of_file
from unsum.errors import UnsumError
from unsum.leak import Attempt, Leak

TESTS = str(Path(__file__).parents[1])


def test_every_client_has_its_own_row() -> None:
    found = list(unsum.attack_many(network(), clients(6), processes=1))
    # by rounds first
    assert [finding.client for finding in found] == [f"client-000{n}" for n in (0, 3, 1, 4, 2, 5)]
    for finding in found:
        number = int(finding.client[-1])
        counts = {4: 3} if number == 4 else {4: 2, number: 1}
        assert (finding.exact, finding.batch_size, finding.label_counts) == (
            True,
            3,
            dict(sorted(counts.items())),
        )
        assert finding.leakage == pytest.approx(1.0, abs=1e-6)


def test_a_bad_update_is_one_row_with_its_sentence(tmp_path: Path) -> None:
    model = network()
    good = update(1, model)
    strange = unsum.Update({"0.weight": torch.zeros(2, 2)})
    broken = good.map(lambda _name, tensor: tensor * float("nan"))
    (tmp_path / "torn.npz").write_bytes(b"not an archive")
    sent = [good, strange, broken, tmp_path / "torn.npz", tmp_path / "missing.safetensors", good]
    found = {finding.client: finding for finding in unsum.attack_many(model, sent, processes=1)}
    assert [found[name].outcome for name in ("0", "1", "2", "torn", "missing", "5")] == [
        *("audited", "failed", "failed", "failed", "failed", "audited")
    ]
    assert "no parameter '0.weight'" in found["1"].reason
    assert "NaN" in found["2"].reason
    # never called safe
    assert all(found[name].state == "not decidable" for name in ("1", "2", "torn", "missing"))
    assert found["0"].label_counts == found["5"].label_counts == {1: 1, 4: 2}


def test_many_at_once_find_what_one_by_one_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model, alone = network(), []
    torch.manual_seed(0)
    sent: list[unsum.Arrived] = list(clients(5))
    sent[1] = replace(sent[1], update=unsum.Noise(1e-3)(update(1, model)))
    sent[3] = replace(
        sent[3], update=update(3, model).map(lambda _name, tensor: tensor * float("nan"))
    )
    file = tmp_path / "last.safetensors"
    update(7, model).save(file)
    everybody = [*sent, file, tmp_path / "missing.safetensors"]
    # NaN is not equal to itself
    expected = repr(figures(unsum.attack_many(model, everybody, processes=1)))
    look = unsum.Arrived.look
    monkeypatch.setattr(
        unsum.Arrived, "look", lambda one, *given: alone.append(one.client) or look(one, *given)
    )
    assert repr(figures(unsum.attack_many(model, everybody, at_once=4))) == expected
    assert alone == ["client-0001", "client-0003", "missing"]  # the rest was solved together
    with pytest.raises(UnsumError, match="one process"):
        unsum.attack_many(model, sent, at_once=4, processes=2)


def test_updates_are_taken_one_at_a_time() -> None:
    taken: list[int] = []
    done: list[int] = []

    class Counted(unsum.running.progress.Progress):
        def part(self, finished: int, total: int) -> None:
            done.append(min(finished, total))
            assert len(taken) - finished <= 1

    def noted() -> Iterator[unsum.Arrived]:
        for number, one in enumerate(clients(5)):
            taken.append(number)
            yield one

    unsum.attack_many(network(), noted(), processes=1, progress=Counted())
    assert done[-1] == 5


def test_a_run_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, looked = tmp_path / "findings.sqlite", []
    real = one_update.attacked

    def counted(*arguments: object, **options: object) -> unsum.Leak:
        looked.append(1)
        return real(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(one_update, "attacked", counted)

    def interrupted() -> Iterator[unsum.Arrived]:
        yield from clients(3)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        unsum.attack_many(network(), interrupted(), results=file, processes=1)
    assert len(looked) == 3
    whole = unsum.attack_many(network(), clients(5), results=file, processes=1)
    assert len(looked) == 5  # none twice
    assert figures(whole) == figures(unsum.attack_many(network(), clients(5), processes=1))
    changed = [
        replace(one, update=update(17, network())) if n == 2 else one
        for n, one in enumerate(clients(5))
    ]
    again = unsum.attack_many(network(), changed, results=file, processes=1)
    # five for the comparison, and one that is another update under the same name
    assert len(looked) == 11
    assert next(f for f in again if f.client == "client-0002").label_counts == {4: 2, 17: 1}


def test_findings_as_parquet(tmp_path: Path) -> None:
    table = pytest.importorskip("pyarrow.parquet")
    found = unsum.attack_many(network(), clients(3), processes=1)
    found.to_parquet(tmp_path / "findings.parquet")
    rows = table.read_table(tmp_path / "findings.parquet").to_pylist()
    assert [(row["round"], row["client"], row["exact"], row["batch_size"]) for row in rows] == [
        (finding.round, finding.client, 1, 3) for finding in found
    ]
    assert [row["leakage"] for row in rows] == [finding.leakage for finding in found]


def test_findings_of_another_model_or_attack_are_not_mixed(tmp_path: Path) -> None:
    file = tmp_path / "findings.sqlite"
    unsum.attack_many(network(), clients(1), results=file, processes=1)
    other = network()
    with torch.no_grad():
        other[1].weight[0, 0] += 1
    with pytest.raises(UnsumError, match="of another model or attack"):
        unsum.attack_many(other, clients(1), results=file, processes=1)
    with pytest.raises(UnsumError, match="of another model or attack"):
        unsum.attack_many(network(), clients(1), "fgla", results=file, processes=1)


def test_a_folder_of_rounds(tmp_path: Path) -> None:
    model = network()
    for number, place in enumerate(["round-2/anna", "round-10/anna", "bert"]):
        file = (tmp_path / place).with_suffix(".safetensors")
        file.parent.mkdir(exist_ok=True)
        update(number, model).save(file)
    (tmp_path / "notes.txt").write_text("nothing")
    named = [(one.round, one.client) for one in in_folder(tmp_path)]
    assert named == [(0, "bert"), (10, "round-10/anna"), (2, "round-2/anna")]
    found = unsum.attack_many(model, in_folder(tmp_path), processes=1)
    assert [(f.round, f.label_counts) for f in found] == [
        (0, {2: 1, 4: 2}),
        (2, {0: 1, 4: 2}),
        (10, {1: 1, 4: 2}),
    ]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UnsumError, match="holds no update"):
        in_folder(tmp_path / "empty")


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"processes": 0}, "number of processes"),
        ({"processes": 2, "ray": "local"}, "its own processes"),
        ({"method": "ig"}, "use 'auto' or a separator"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(
    wrong: dict[str, object], sentence: str
) -> None:
    with pytest.raises(UnsumError, match=sentence):
        unsum.attack_many(network(), clients(1), **wrong)  # type: ignore[arg-type]


@pytest.mark.long
def test_on_processes_a_killed_worker_costs_nothing(tmp_path: Path) -> None:
    """One that dies of an update gets another try; an update that nobody survives is a row that
    says so."""
    sent = list(clients(6))
    sent[1] = Deadly(sent[1].client, sent[1].update, sent[1].round, tmp_path, 1)
    sent[4] = Deadly(sent[4].client, sent[4].update, sent[4].round, tmp_path, 9)
    found = unsum.attack_many(network(), sent, processes=2)
    alone = figures(unsum.attack_many(network(), clients(6), processes=1))
    by_client = {row[1]: row for row in figures(found)}
    assert [by_client[row[1]] for row in alone if row[1] != "client-0004"] == [
        r for r in alone if r[1] != "client-0004"
    ]
    assert by_client["client-0004"][2] == "failed"
    assert "worker was lost 3 times" in str(by_client["client-0004"][-1])
    assert len(list(tmp_path.iterdir())) == 1 + 3


def count(file: Path) -> int:
    try:
        with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as database:
            return int(database.execute("SELECT count(*) FROM findings").fetchone()[0])
    except sqlite3.OperationalError:  # not there yet
        return 0


@pytest.mark.long
def test_killed_and_resumed_is_the_same_as_uninterrupted(tmp_path: Path) -> None:
    file, environment = tmp_path / "findings.sqlite", os.environ | {"PYTHONPATH": TESTS}
    words = [sys.executable, "-m", "support.many", str(file), "100"]
    process = subprocess.Popen(words, env=environment)
    end = time.monotonic() + 300
    while count(file) < 5 and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL  # it was still at work
    assert 5 <= count(file) < 100
    subprocess.run(words, env=environment, check=True, timeout=600)
    whole = unsum.attack_many(network(), clients(100), processes=1)
    kept = unsum.attack_many(network(), clients(100), results=file, processes=1)
    assert len(kept) == 100
    assert figures(kept) == figures(whole)


@pytest.mark.long
def test_on_ray_a_killed_worker_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0"
    )  # which Ray reads when it is imported: `uv run` starts the tests
    pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", TESTS)
    monkeypatch.setenv("RAY_TMPDIR", "/tmp")
    total = 1000
    sent = (
        Deadly(one.client, one.update, one.round, tmp_path, 1) if number in (3, 150) else one
        for number, one in enumerate(clients(total))
    )
    found = unsum.attack_many(network(), sent, results=tmp_path / "findings.sqlite", ray="local")
    assert len(list(tmp_path.glob("client-*"))) == 2  # two workers died
    assert figures(found) == figures(unsum.attack_many(network(), clients(total), processes=1))


def test_a_file_that_came_again_is_audited_again_though_its_size_is_the_same(
    tmp_path: Path,
) -> None:
    """A client sends its next update under the same name: as many bytes, other numbers, a later
    date."""
    model, file, results = network(), tmp_path / "anna.safetensors", tmp_path / "findings.sqlite"
    update(3, model).save(file)
    os.utime(file, ns=(10**18, 10**18))
    size, before = file.stat().st_size, of_file(file).fingerprint
    assert of_file(file).fingerprint == before
    assert next(
        iter(unsum.attack_many(model, [file], results=results, processes=1))
    ).label_counts == {3: 1, 4: 2}
    update(17, model).save(file)
    os.utime(file, ns=(10**18 + 10**9, 10**18 + 10**9))
    assert file.stat().st_size == size
    assert of_file(file).fingerprint != before
    again = list(unsum.attack_many(model, [file], results=results, processes=1))
    assert [finding.label_counts for finding in again] == [{4: 2, 17: 1}]


@pytest.mark.parametrize(
    ("leakage", "state"),
    [
        (0.2, "leaks"),
        (0.199, "unproven"),
        (0.0, "unproven"),
        (1.0, "leaks"),
        (math.nan, "not decidable"),
    ],
)
def test_a_finding_leaks_from_a_fifth_on(leakage: float, state: str) -> None:
    assert ClientFinding(3, "anna", "audited", leakage=leakage).state == state


def test_certain_findings_stand_first_and_unknown_ones_not_at_all() -> None:
    findings = Findings()
    for client, leakage, exact in (
        ("a", 0.9, False),
        ("b", 0.5, True),
        ("c", 0.7, True),
        ("d", math.nan, False),
    ):
        findings.put(ClientFinding(0, client, "audited", exact=exact, leakage=leakage), client)
    assert [finding.client for finding in findings.largest(9)] == ["c", "b", "a"]
    assert [finding.client for finding in findings.largest(1)] == ["c"]


def test_what_is_expected_to_leak_by_hand() -> None:
    """1 − e²: of e = 0.1 it is 0.99, of 0.95 0.0975, which is little and means something all the
    same."""
    rows = torch.zeros(2, 3)
    leak = Leak("exact", rows, rows, torch.ones(2, 4), 0.0, 0.1, exact=False)
    assert expected_leakage(leak) == pytest.approx(0.99)
    assert expected_leakage(replace(leak, predicted_error=0.95)) == pytest.approx(0.0975)
    assert expected_leakage(replace(leak, predicted_error=math.inf)) == 0
    assert math.isnan(expected_leakage(replace(leak, predicted_error=math.nan)))
    blind = (Attempt("exact", blind="there are too many samples"),)
    # no attack applies
    assert math.isnan(expected_leakage(replace(leak, predicted_error=0.95, tried=blind)))
    assert expected_leakage(replace(leak, tried=blind)) == pytest.approx(0.99)
    sure = replace(leak, predicted_error=math.inf, inputs_exact=torch.tensor([False, True]))
    assert expected_leakage(sure) == 1
