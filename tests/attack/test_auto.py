"""The one place that chooses: what is tried in which order, what is not tried, and what methods no
longer do by themselves."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import unsum
from separate.language_models import batch, gpt2
from support import dense
from support.local_client import Client
from support.material import pictures, small_net
from unsum.attack.auto import ROWS, row, rows
from unsum.local_training import LocalTraining
from unsum.peel import PEELERS
from unsum.separate import SEPARATORS

CASE = importlib.import_module("unsum.attack.case")
CROWD, CLASSES, FEATURES = 26, 20, 8000


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The separators that `auto` calls, in order."""
    methods: list[str] = []
    separate = CASE.separate

    def remembered(model: nn.Module, update: unsum.Update, method: str, **known: Any) -> unsum.Leak:
        methods.append(method)
        return separate(model, update, method, **known)

    monkeypatch.setattr(CASE, "separate", remembered)
    return methods


def crowd() -> tuple[nn.Module, unsum.Update, Tensor]:
    """More samples than classes, with features that a ReLU made sparse."""
    torch.manual_seed(0)
    features = torch.relu(0.4 * torch.randn(FEATURES) + torch.randn(CROWD, FEATURES) - 1.1) * 3
    model, labels = nn.Linear(FEATURES, CLASSES), torch.randint(CLASSES, (CROWD,))
    return model, unsum.capture(model, features, labels), labels


def test_the_list_can_be_read() -> None:
    order = [one.method for one in rows()]
    assert order[:7] == ["text", "exact", "tokens", "spans", "local-steps", "crowded", "crowded"]
    assert order[7:] == [
        "exact",
        "exact",
        "uneven",
        "adaptive",
        "fgla",
        "spans",
        "ratio",
        "label rules",
        "exact",
    ]
    known = [*(entry.name for entry in (*SEPARATORS, *PEELERS)), "label rules"]
    assert all(one.method in known and one.when for one in rows())
    assert all("{" not in one.says for one in rows())


def test_a_further_row_is_tried_in_its_place(
    tried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a plug-in registers one: before `exact`, whose place is 80."""
    list(ROWS)  # with the rows of this package
    monkeypatch.setattr(ROWS, "_entries", dict(ROWS._entries))
    reason = "The {before.method} solver was asked first."
    row("mine", "fgla", 85, when="always", applies=lambda _case: True, reason=reason)(
        lambda case: case.separate("fgla")
    )
    net = small_net()
    leak = unsum.attack(net, unsum.capture(net, pictures(3), torch.tensor([1, 2, 3])))
    assert tried[:2] == ["exact", "fgla"]
    assert leak.notes[0] == "The exact solver was asked first."
    with pytest.raises(ValueError, match="the row of auto 'mine' is registered already"):
        row("mine", "fgla", 86, when="always", applies=lambda _case: True)(lambda _case: None)


def test_layers_below_are_asked_first_where_the_head_cannot_follow_the_steps(
    tried: list[str],
) -> None:
    net, (x, y) = dense.network(24, 64, 64, 3), dense.batch(12, 24, 3)
    update = unsum.capture_local(net, x, y, learning_rate=0.1, local_steps=3, training_known=True)
    leak = unsum.attack(net, update, batch_size=12)
    assert tried == ["spans"]
    assert leak.exact
    assert leak.label_counts is None  # every label is known already
    assert float(dense.partners(leak, x)[1].max()) < 1e-3


def test_a_certain_answer_is_the_only_one(tried: list[str]) -> None:
    net = small_net()
    assert unsum.attack(net, unsum.capture(net, pictures(3), torch.tensor([1, 2, 3]))).exact
    assert tried == ["exact"]


def test_after_local_steps_that_answered_exact_is_not_tried(tried: list[str]) -> None:
    client = Client()
    update, _ = client.sends(LocalTraining(0.05, 2), 4, 0.05)
    assert unsum.attack(client.model, update, batch_size=8).exact
    assert tried == ["local-steps"]


@pytest.mark.long
def test_neither_after_steps_that_could_not_be_followed(tried: list[str]) -> None:
    """`local-steps` has taken them for one by then, as `exact` would."""
    # a small head: what cannot be followed is looked for long
    client = Client(features=32, classes=20)
    update, _ = client.sends(LocalTraining(0.5, 8), 4, 0.5)
    leak = unsum.attack(client.model, update)
    assert not leak.exact
    assert {"local-steps", "fgla"} <= set(tried)
    assert "exact" not in tried


def test_a_gradient_without_marks_is_tried_without_its_bias(tried: list[str]) -> None:
    net = small_net()
    update = unsum.capture(net, pictures(4), torch.arange(4))
    tripled = {name: 3 * g if name.endswith("bias") else g for name, g in update.gradients.items()}
    leak = unsum.attack(net, unsum.Update(tripled))
    assert leak.exact
    assert tried == ["exact", "exact"]
    assert leak.notes[0] == ROWS["exact, without the bias"].reason


def test_more_samples_than_classes_are_read_below_the_head(tried: list[str]) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
    )
    x, y = torch.randn(9, 20), torch.randint(2, (9,))
    leak = unsum.attack(net, unsum.capture(net, x, y), batch_size=9)
    assert tried == ["spans"]
    assert leak.exact
    assert leak.inputs is not None
    assert float(torch.cdist(x.double(), leak.inputs.double()).amin(1).max()) < 1e-4


def test_crowded_batches_are_a_choice_and_no_secret_of_exact(tried: list[str]) -> None:
    model, update, labels = crowd()
    leak = unsum.attack(model, update, labels=labels)
    assert (leak.method, tried[0]) == ("crowded", "crowded")
    assert not {"exact", "fgla"} & set(
        tried
    )  # neither has a chance, and the error of the worst sample speaks for one alone
    few = unsum.capture(model, torch.rand(3, FEATURES), torch.tensor([1, 2, 3]))
    assert unsum.attack(model, few, labels=torch.tensor([1, 2, 3])).method == "exact"


def test_exact_stays_exact_where_it_cannot_know() -> None:
    model, update, labels = crowd()
    leak = unsum.separate(model, update, labels=labels)
    assert leak.method == "exact"
    assert not leak.exact
    few = unsum.capture(model, torch.rand(3, FEATURES), torch.tensor([1, 2, 3]))
    assert unsum.separate(model, few).exact


def test_tied_language_models_are_read_as_text_and_exact_refuses_them(tried: list[str]) -> None:
    model, tokens = gpt2(tied=True), batch(2, 6)
    update = unsum.capture_text(model, tokens)
    with pytest.raises(unsum.UnsumError, match="use 'text', or 'auto'"):
        unsum.separate(model, update)
    assert unsum.attack(model, update).method == "text"
    assert tried == ["text"]
