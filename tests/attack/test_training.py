"""What an update itself says of how the client trained: Adam is named, SGD is not, and one step is
said to be assumed."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typer.testing import CliRunner

import unsum
from support.long import long
from unsum.attack.training import (
    ADAPTIVE,
    ONE_STEP,
    UNBALANCED,
    doubt_training,
    fits_no_sgd,
    is_unbalanced,
)
from unsum.commands.main import app

Optimizer = Callable[..., torch.optim.Optimizer]
SGD: dict[str, Optimizer] = {
    "plain": partial(torch.optim.SGD, lr=0.1),
    "momentum": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "nesterov": partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True),
    "decay": partial(torch.optim.SGD, lr=0.05, weight_decay=1e-2),
}
ADAPTIVE_ONES: dict[str, Optimizer] = {
    "Adam": partial(torch.optim.Adam, lr=1e-3),
    "Adam, large": partial(torch.optim.Adam, lr=1e-2),
    "AdamW": partial(torch.optim.AdamW, lr=1e-3),
    "RMSprop": partial(torch.optim.RMSprop, lr=1e-3),
    "Adagrad": partial(torch.optim.Adagrad, lr=1e-2),
}
NETWORKS: dict[str, Callable[[], nn.Sequential]] = {
    "dense": lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 10)),
    "conv": lambda: nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, 2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(144, 20),
    ),
    "lenet": lambda: nn.Sequential(
        *(nn.Conv2d(3, 12, 5, 2, 2), nn.Sigmoid(), nn.Conv2d(12, 12, 5, 1, 2), nn.Sigmoid()),
        *(nn.Flatten(), nn.Linear(192, 20)),
    ),
    "last layer alone": lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 20)),
}


def _squares(out: Tensor, labels: Tensor) -> Tensor:
    return F.mse_loss(out, F.one_hot(labels, out.shape[1]).to(out))


def _yes_and_no(out: Tensor, labels: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(out, F.one_hot(labels, out.shape[1]).to(out))


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross-entropy": F.cross_entropy,
    "bce": _yes_and_no,
    "mse": _squares,
}


def trained(
    network: str,
    optimizer: Optimizer,
    steps: int,
    *,
    loss: str = "cross-entropy",
    seed: int = 0,
    batch: int = 8,
) -> tuple[nn.Sequential, dict[str, Tensor]]:
    """The network as it was sent out, and the client's change of its weights."""
    torch.manual_seed(seed)
    model = NETWORKS[network]()
    x, y = torch.rand(32, 3, 8, 8), torch.randint(0, 10, (32,))
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    stepper = optimizer(model.parameters())
    for step in range(steps):
        rows = torch.arange(step * batch, (step + 1) * batch) % 32
        stepper.zero_grad()
        LOSSES[loss](model(x[rows]), y[rows]).backward()
        stepper.step()
    change = {name: value.detach() - before[name] for name, value in model.named_parameters()}
    model.load_state_dict(before)
    return model, change


@pytest.mark.parametrize("network", ["dense", "conv"])
@pytest.mark.parametrize(
    ("optimizer", "steps"),
    [
        *((name, 1) for name in ADAPTIVE_ONES),
        ("Adam", 4),
        ("Adam", 8),
        ("Adam, large", 4),
        ("AdamW", 4),
    ],
)
def test_optimizers_that_give_every_entry_its_size_are_named(
    network: str, optimizer: str, steps: int
) -> None:
    model, change = trained(network, ADAPTIVE_ONES[optimizer], steps)
    assert doubt_training(model, unsum.Update.from_delta(change)) == ADAPTIVE
    told = unsum.Update.from_delta(change, 1e-3, training=unsum.LocalTraining(1e-3, steps))
    assert doubt_training(model, told) == ADAPTIVE  # whatever was declared


# At ten times Adam's usual rate the change saturates, and its sums look like those of noise.
@pytest.mark.parametrize(
    ("steps", "optimizer", "network"),
    [
        *((30, "Adam", network) for network in ("dense", "lenet")),
        *long(*((30, other, "conv") for other in ("AdamW", "RMSprop", "Adagrad"))),
        *long((30, "AdamW", "last layer alone"), (60, "Adam", "last layer alone")),
        *long((60, "RMSprop", "lenet"), (60, "Adagrad", "dense"), (60, "AdamW", "conv")),
    ],
)
def test_sums_over_the_classes_name_them_after_any_number_of_steps(
    network: str, optimizer: str, steps: int
) -> None:
    model, change = trained(network, ADAPTIVE_ONES[optimizer], steps)
    assert is_unbalanced(model, unsum.Update.from_delta(change))
    told = unsum.Update.from_delta(change, 1e-3, training=unsum.LocalTraining(1e-3, steps))
    for update in (told, unsum.Update.from_delta(change)):
        assert doubt_training(model, update).startswith(
            "the change fits no SGD: did the client use Adam, or "
        )


def test_sgd_of_any_length_and_decay_adds_up_to_zero() -> None:
    for network in ("dense", "lenet"):
        for optimizer in (SGD["momentum"], SGD["decay"]):
            for steps in (1, 30):
                model, change = trained(network, optimizer, steps)
                assert not is_unbalanced(model, unsum.Update.from_delta(change))


@pytest.mark.parametrize("network", ["dense", *long("conv")])
@pytest.mark.parametrize(
    "defense",
    [
        *(unsum.Noise(scale) for scale in (1e-3, 1e-2, 1.0)),
        *(unsum.Prune(0.5), unsum.Prune(0.9), unsum.QSGD(8), unsum.Sign(), unsum.Clip(1e-3)),
        unsum.Laplace(1e-2),
    ],
    ids=repr,
)
def test_sums_that_a_defense_leaves_are_no_optimizer(network: str, defense: Any) -> None:
    for steps in (1, 12):
        model, change = trained(network, SGD["plain"], steps)
        assert not is_unbalanced(model, defense(unsum.Update.from_delta(change)))


def test_another_loss_that_is_known_is_no_optimizer() -> None:
    model, change = trained("dense", SGD["plain"], 12, loss="bce")
    update = unsum.Update.from_delta(change, 0.1, training=unsum.LocalTraining(0.1, 12))
    assert doubt_training(model, update) == UNBALANCED
    assert doubt_training(model, update, "bce") == ""


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("network", ["dense", *long("conv", "last layer alone")])
def test_sgd_is_never_taken_for_them(network: str, loss: str) -> None:
    for optimizer in SGD.values():
        for steps in (1, 5, 30):
            for seed, batch in ((0, 1), (1, 8)):
                model, change = trained(
                    network, optimizer, steps, loss=loss, seed=seed, batch=batch
                )
                assert not fits_no_sgd(model, unsum.Update.from_delta(change))


@pytest.mark.parametrize(
    "defense", [unsum.Noise(1.0), unsum.Prune(0.9), unsum.QSGD(8), unsum.Clip(1e-3)]
)
def test_neither_is_sgd_under_a_defense(defense: Any) -> None:
    for network in ("dense", "conv"):
        model, change = trained(network, SGD["plain"], 4)
        assert not fits_no_sgd(model, defense(unsum.Update.from_delta(change)))


def test_one_step_is_said_to_be_assumed_only_where_nothing_says_how_many() -> None:
    model, change = trained("dense", SGD["plain"], 4)
    known = unsum.LocalTraining(0.1, 4)
    assert doubt_training(model, unsum.Update.from_delta(change)) == ONE_STEP
    assert doubt_training(model, unsum.Update.from_delta(change, 0.1)) == ONE_STEP
    assert doubt_training(model, unsum.Update.from_delta(change, 0.1, training=known)) == ""
    assert doubt_training(model, unsum.Update(change)) == ""  # a gradient is of one step


def test_a_certified_step_needs_no_word_on_how_many_there_were() -> None:
    model, change = trained("last layer alone", SGD["plain"], 1, batch=4)
    leak = unsum.attack(model, unsum.Update.from_delta(change))
    assert leak.exact
    assert leak.training_doubt == ""
    assert not any("ne step was assumed" in note for note in leak.notes)


NETWORK = """from torch import nn


def build():
    made = nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 10))
    made.image_size = 8
    return made
"""


def pair(folder: Path, optimizer: Optimizer, steps: int) -> list[str]:
    """Words for the command line, of checkpoints before and after."""
    model, change = trained("dense", optimizer, steps)
    state = model.state_dict()
    torch.save(state, folder / "before.pt")
    torch.save({name: value + change[name] for name, value in state.items()}, folder / "after.pt")
    (folder / "net.py").write_text(NETWORK)
    files = ["--before", str(folder / "before.pt"), "--after", str(folder / "after.pt")]
    return [
        "audit",
        "--model",
        f"{folder / 'net.py'}:build",
        *files,
        "--out",
        str(folder / "report"),
        "--json",
    ]


@pytest.mark.parametrize(
    ("optimizer", "steps", "declared", "reason"),
    [
        (ADAPTIVE_ONES["Adam"], 4, [], ADAPTIVE),
        (SGD["plain"], 8, [], ONE_STEP),
        (ADAPTIVE_ONES["AdamW"], 30, ["--lr", "1e-3", "--local-steps", "30"], UNBALANCED),
    ],
)
def test_the_command_line_names_the_optimizer_or_asks_for_the_steps(
    optimizer: Optimizer, steps: int, declared: list[str], reason: str, tmp_path: Path
) -> None:
    ran = CliRunner().invoke(app, [*pair(tmp_path, optimizer, steps), *declared])
    assert ran.exit_code == 0, ran.output
    found = json.loads(ran.stdout)
    first, mark, rest = reason.partition("?")  # the headline is one sentence
    assert found["verdict"]["headline"] == f"Not decidable: {first}{mark or '.'}"
    assert not rest or found["verdict"]["details"][0] == f"{rest.strip()}."
    assert found["verdict"]["state"] == "not decidable"
    assert f"{reason[0].upper()}{reason[1:]}." in found["attack"]["notes"]
    # what the attack makes of such a change is no sample, and its predictions are of nothing
    assert found["samples"] == []
    assert found["attack"]["predicted_error"] is None
    assert all(one["predicted_error"] is None and not one["found"] for one in found["tried"])
    said = " ".join([*found["verdict"]["details"], *found["attack"]["notes"]])
    assert "Found in the update" not in said
    assert "expected to be right" not in said
    for name in ("report.html", "report.md"):
        assert "recovered sample" not in (tmp_path / "report" / name).read_text()


def test_declared_steps_give_the_label_distribution_as_the_verdict(tmp_path: Path) -> None:
    words = pair(tmp_path, partial(torch.optim.SGD, lr=0.05), 12)
    ran = CliRunner().invoke(app, [*words, "--lr", "0.05", "--local-steps", "12", "--epochs", "3"])
    assert ran.exit_code == 0, ran.output
    found = json.loads(ran.stdout)
    assert found["verdict"]["headline"] == "This update gives away the client's label distribution."
    assert (found["verdict"]["state"], found["verdict"]["level"]) == ("leaks", "labels")
    assert found["samples"] == []  # what the attack makes of a sum is no sample
    torch.manual_seed(0)
    NETWORKS["dense"](), torch.rand(32, 3, 8, 8)
    true = torch.randint(0, 10, (32,)).bincount(minlength=10) / 32
    told = {one["name"]: one for one in found["distribution"]["classes"]}
    inside = [
        told[f"class {c}"]["low"] <= float(true[c]) <= told[f"class {c}"]["high"] for c in range(10)
    ]
    assert sum(inside) >= 8  # of ten intervals of 90 %
    for name in ("report.html", "report.md"):
        page = (tmp_path / "report" / name).read_text()
        assert "The client's labels" in page
        assert "recovered sample" not in page
