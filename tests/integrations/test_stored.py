"""A stored run, audited client by client and round by round; rounds that are missing, and files
that are damaged."""

from __future__ import annotations

import copy
import csv
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from support.command import Run, runner
from unsum.audit.ceilings import over_rounds
from unsum.audit.round_ceiling import NEEDS_DATA
from unsum.audit.wording import percent
from unsum.errors import UnsumError
from unsum.integrations.stored import (
    gaps,
    replies,
    sent_weights,
    store_back,
    store_sent,
    trained_as,
)
from unsum.local_training import LocalTraining

RATE, CLASSES = 0.05, 6
run = pytest.fixture(runner)

MODEL = """
from torch import nn


def network():
    dense = nn.Linear(192, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU()
    return nn.Sequential(nn.Flatten(), *dense, nn.Linear(48, 6))
"""


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(192, 48),
        nn.ReLU(),
        nn.Linear(48, 48),
        nn.ReLU(),
        nn.Linear(48, CLASSES),
    )


def trained(model: nn.Module, x: Tensor, y: Tensor, size: int) -> dict[str, Tensor]:
    local = copy.deepcopy(model)
    optimizer = torch.optim.SGD(local.parameters(), lr=RATE)
    for some in torch.randperm(len(x)).split(size):
        optimizer.zero_grad()
        nn.functional.cross_entropy(local(x[some]), y[some]).backward()
        optimizer.step()
    return local.state_dict()


@pytest.fixture
def stored(tmp_path: Path) -> tuple[Path, dict[str, Tensor]]:
    """Client 7 takes one step of 4 samples, client 8 twenty steps of 4; rounds 1 and 3, and the
    true labels of both."""
    folder, model = tmp_path / "seen", network()
    (tmp_path / "net.py").write_text(MODEL)
    x, y = torch.rand(80, 3, 8, 8), torch.randint(0, CLASSES, (80,))
    for number in (1, 3):
        store_sent(folder, number, model.state_dict(), {"lr": RATE, "name": "x", "odd": [1]})
        store_back(folder, number, trained(model, x[:4], y[:4], 4), "7", 4)
        store_back(folder, number, trained(model, x, y, 4), "8", 80)
    return folder, {"7": y[:4], "8": y}


def test_what_is_not_declared_is_taken_from_what_was_sent() -> None:
    known = LocalTraining(batch_size=32, momentum=0.9, epochs=2)
    told = trained_as(known, {"lr": 0.1, "learning-rate": 7}, 100)
    assert (told.learning_rate, told.steps, told.momentum) == (0.1, 8, 0.9)
    assert trained_as(LocalTraining(0.5, 3), {"lr": 0.1}, 100) == LocalTraining(0.5, 3)


def test_every_client_and_round_stands_on_one_page(
    stored: tuple[Path, dict[str, Tensor]], run: Run, tmp_path: Path
) -> None:
    folder, labels = stored
    (folder / "round-3" / "client-9.safetensors").write_bytes(b"no tensors")
    model, out = f"{tmp_path / 'net.py'}:network", tmp_path / "out"
    done = run(
        "audit",
        "--flower-run",
        str(folder),
        "--model",
        model,
        "--batch",
        "4",
        "--time-limit",
        "3",
        "--out",
        str(out),
    )
    assert done.code == 0, done.err
    content = json.loads((out / "run.json").read_text("utf-8"))
    rows = {(row["round"], row["client"]): row for row in content["updates"]}
    assert rows.keys() == {(1, "7"), (1, "8"), (3, "7"), (3, "8"), (3, "9")}
    for number in (1, 3):
        one = rows[number, "7"]
        assert one["exact"]
        assert one["label_counts"] == {
            str(c): n for c, n in enumerate(torch.bincount(labels["7"]).tolist()) if n
        }
        many = rows[number, "8"]
        assert not many["exact"]
        assert many["leakage"] is None  # nobody knows, and that is never 0
        true = torch.bincount(labels["8"], minlength=CLASSES)
        counted = many["counted"]
        assert counted["samples"] == 80
        assert (
            sum(
                low <= n <= high
                for n, low, high in zip(true.tolist(), counted["low"], counted["high"], strict=True)
            )
            >= 5
        )
        assert sum(abs(n - m) for n, m in zip(true.tolist(), counted["counts"], strict=True)) <= 8
    assert "client-9.safetensors" in rows[3, "9"]["reason"]
    assert content["headline"] == "2 of 5 updates give samples away."
    assert any("Round 2 is missing" in sentence for sentence in content["sentences"])
    page = (out / "run.html").read_text("utf-8")
    certain, unknown = (
        f'<circle class="{kind}-dot" cx="{{}}" cy="{height}" r="5"/>'
        for kind, height in (("worst", "34.0"), ("unknown", "262"))
    )
    for place in (104.0, 716.0):  # rounds 1 and 3: client 7 at 100 %, client 8 where nobody knows
        assert certain.format(place) in page
        assert unknown.format(place) in page
    assert "2 missing" in page
    assert page.count('<rect class="bar"') == CLASSES


def photos(folder: Path) -> Path:
    """Samples of the clients' kind, in a file as `--data` takes it."""
    generator = torch.Generator().manual_seed(5)
    images, labels = torch.rand(4, 3, 8, 8, generator=generator), torch.tensor([0, 3, 5, 1])
    path = folder / "kind.npz"
    np.savez(path, images=images.permute(0, 2, 3, 1).numpy(), labels=labels.numpy())
    return path


def test_the_ceiling_after_every_round_stands_beside_what_was_found(
    stored: tuple[Path, dict[str, Tensor]], run: Run, tmp_path: Path
) -> None:
    folder, _ = stored
    (folder / "round-3").rename(folder / "round-2")
    path, out = photos(tmp_path), tmp_path / "out"
    asked = (
        "audit",
        "--flower-run",
        str(folder),
        "--model",
        f"{tmp_path / 'net.py'}:network",
        "--time-limit",
        "3",
    )
    done = run(
        *asked, "--data", str(path), "--defense", "noise:2", "--image-size", "8", "--out", str(out)
    )
    assert done.code == 0, done.err
    content = json.loads((out / "run.json").read_text("utf-8"))
    true = [
        one.highest
        for one in over_rounds([network(), network()], str(path), noise=2.0, image_size=8)
    ]
    assert 0 < true[0] < true[1] < 1
    assert [one["ceiling"] for one in content["ceilings"]] == pytest.approx(true, abs=1e-6)
    assert [(row["round"], row["ceiling"]) for row in content["updates"]] == [
        (number, pytest.approx(true[number - 1], abs=1e-6)) for number in (1, 1, 2, 2)
    ]
    said = " ".join(content["sentences"])
    assert (
        f"After 2 rounds the ceiling is {percent(true[1])}, for a client with 4 samples like those "
        "given"
    ) in said
    assert "Declared is Noise(2); the ceiling holds if clients do that." in said
    assert "In 2 updates more was found than this ceiling" in said  # client 7 adds no noise
    assert content["level"] == "severe"
    page = (out / "run.html").read_text("utf-8")
    heights = [round(234 - 200 * value, 1) for value in true]
    assert f'd="M104.0 {heights[0]} L716.0 {heights[1]}"' in page
    assert page.count('class="interval"') == 4
    with (out / "updates.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["ceiling"]) for row in rows] == pytest.approx(
        [true[0], true[0], true[1], true[1]], abs=1e-6
    )
    for row in rows:
        content_of = (
            folder / f"round-{row['round']}" / f"client-{row['client']}.safetensors"
        ).read_bytes()
        assert row["sha256"] == hashlib.sha256(content_of).hexdigest()


def test_a_low_ceiling_of_other_data_makes_no_run_green(
    stored: tuple[Path, dict[str, Tensor]], run: Run, tmp_path: Path
) -> None:
    """Client 8 is not decidable. The ceiling of a client with other data is 0 %, and says nothing
    about it."""
    folder, _ = stored
    for path in folder.glob("round-*/client-7*"):
        path.unlink()
    data, out = photos(tmp_path), tmp_path / "out"
    asked = (
        "audit",
        "--flower-run",
        str(folder),
        "--model",
        f"{tmp_path / 'net.py'}:network",
        "--time-limit",
        "3",
    )
    run(
        *asked,
        "--batch",
        "4",
        "--data",
        str(data),
        "--defense",
        "noise:1e6",
        "--image-size",
        "8",
        "--out",
        str(out),
    )
    content = json.loads((out / "run.json").read_text("utf-8"))
    assert content["ceilings"][0]["ceiling"] < 0.2
    assert content["level"] != "protected"
    # Round 2 is missing from the folder, so that nothing is proven after it.
    assert [one["ceiling"] for one in content["ceilings"][1:]] == [1.0, 1.0]
    assert "round 2 could not be played" in content["ceilings"][2]["sentence"]
    page = (out / "run.html").read_text("utf-8")
    assert '<section class="verdict protected"' not in page


def test_without_data_there_is_no_ceiling_and_one_sentence_says_what_to_give(
    stored: tuple[Path, dict[str, Tensor]], run: Run, tmp_path: Path
) -> None:
    folder, _ = stored
    out = tmp_path / "out"
    asked = (
        "audit",
        "--flower-run",
        str(folder),
        "--model",
        f"{tmp_path / 'net.py'}:network",
        "--time-limit",
        "1",
    )
    assert run(*asked, "--batch", "4", "--out", str(out)).code == 0
    content = json.loads((out / "run.json").read_text("utf-8"))
    assert content["ceilings"] == []
    assert any(NEEDS_DATA in sentence for sentence in content["sentences"])
    assert {row["ceiling"] for row in content["updates"]} == {None}
    assert 'class="interval"' not in (out / "run.html").read_text("utf-8")
    refused = run(*asked, "--defense", "noise:1", "--out", str(tmp_path / "other"))
    assert refused.code == 2
    assert "give these with --data" in " ".join(refused.err.split())


def test_weights_that_are_stored_client_by_client_count_where_they_are_the_same(
    tmp_path: Path,
) -> None:
    """As NVFlare's filter stores them; of a round that sent others to one client, nothing is known
    of all."""
    folder, model = tmp_path / "seen", network().state_dict()
    other = {name: value + 1 for name, value in model.items()}
    for number, second in ((1, model), (2, other), (3, model)):
        store_sent(folder, number, model, {}, "site-1")
        store_sent(folder, number, second, {"lr": 0.1}, "site-2")
    found = dict(sent_weights(folder))
    assert list(found) == [1, 3]
    assert all(torch.equal(found[1][name], value) for name, value in model.items())


def test_a_folder_without_rounds_or_weights_is_a_sentence(
    stored: tuple[Path, dict[str, Tensor]], tmp_path: Path
) -> None:
    folder, _ = stored
    with pytest.raises(UnsumError, match=r"There is no folder"):
        list(replies(tmp_path / "nothing"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UnsumError, match=r"holds no round-1.*StoreUpdates"):
        list(replies(tmp_path / "empty"))
    (folder / "round-3" / "sent.safetensors").unlink()
    last = list(replies(folder))[-1].audited(
        network(), LocalTraining(RATE, 1), "exact", train=True, seed=0, time_limit=3
    )
    assert last.finding.outcome == "failed"
    assert "round 3 sent out are missing" in last.finding.reason
    for path in (folder / "round-1").glob("client-*"):
        path.unlink()
    assert gaps(folder) == [
        (
            "Round 2 is missing from the folder; the others are audited, and of this one nothing "
            "is known."
        ),
        "Round 1 is without any client's answer.",
    ]
