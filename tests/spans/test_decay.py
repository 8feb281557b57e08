"""Weight decay that nobody declared, seen at the head and taken off every layer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import unsum
from unsum.head import collect_features

B = 6


def case(seed: int = 0, classes: int = 3) -> tuple[nn.Sequential, Tensor, Tensor]:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(30, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, classes)
    )
    return model, torch.randn(B, 30), torch.randint(0, classes, (B,))


def decayed(model: nn.Module, x: Tensor, y: Tensor, by: float, names: str = "") -> unsum.Update:
    """What a client sends whose optimizer decays the parameters whose names hold `names`."""
    gradients = unsum.capture(model, x, y).gradients
    weights = dict(model.named_parameters())
    return unsum.Update(
        {n: g + by * weights[n].detach() if names in n else g for n, g in gradients.items()}
    )


@pytest.mark.parametrize("names", ["", "weight"])  # all of them; biases spared
def test_every_sample_comes_back_certified(names: str) -> None:
    model, x, y = case()
    leak = unsum.separate(model, decayed(model, x, y, 0.01, names), "spans", batch_size=B)
    assert leak.exact
    assert leak.notes[0].startswith("The client decayed its weights by 0.01 times themselves")
    scores = unsum.score(leak, features=collect_features(model, x), targets=y)
    assert scores["worst_feature_error"] < 1e-4
    assert scores["label_correct"] == 1
    assert leak.inputs is not None
    assert float(torch.cdist(x.double(), leak.inputs.double()).min(1).values.max()) < 1e-3


@pytest.mark.parametrize("method", ["exact", "spans"])
def test_a_doubt_stands_beside_the_note_about_decay(method: str) -> None:
    """The same doubt as without decay: one sample more was said to be there than was found."""
    model, x, y = case(classes=20)
    clean, sent = unsum.capture(model, x, y), decayed(model, x, y, 0.01)
    plain, leak = (
        unsum.separate(model, update, method, batch_size=B + 1) for update in (clean, sent)
    )
    assert not plain.exact
    assert not leak.exact
    doubts = [note for note in plain.notes if "7" in note]
    assert doubts
    assert set(doubts) < set(leak.notes)
    assert any("decayed its weights by 0.01 times themselves" in note for note in leak.notes)


def test_a_change_of_weights_that_decayed_comes_back() -> None:
    model, x, y = case(1)
    sent = decayed(model, x, y, 5e-3)
    delta = {name: -0.05 * g for name, g in sent.gradients.items()}
    leak = unsum.attack(model, unsum.Update.from_delta(delta, learning_rate=0.05), batch_size=B)
    assert leak.exact
    assert unsum.score(leak, features=collect_features(model, x))["worst_feature_error"] < 1e-4


def test_a_head_that_decays_alone_is_read_as_well() -> None:
    model, x, y = case()
    leak = unsum.separate(model, decayed(model, x, y, 0.01, "4."), "spans", batch_size=B)
    assert leak.exact
    assert "taken off the head first" in leak.notes[0]
    assert unsum.score(leak, features=collect_features(model, x))["worst_feature_error"] < 1e-4


@pytest.mark.parametrize("names", ["0.", "2.weight"])
def test_layers_that_decay_alone_are_no_claim(names: str) -> None:
    model, x, y = case()
    assert unsum.separate(model, unsum.capture(model, x, y), "spans", batch_size=B).exact
    try:
        leak = unsum.separate(model, decayed(model, x, y, 0.01, names), "spans", batch_size=B)
    except unsum.UnsumError:
        return
    assert not leak.exact


def test_noise_is_not_taken_for_decay() -> None:
    model, x, y = case()
    torch.manual_seed(5)
    noisy = unsum.Noise(1e-4)(unsum.capture(model, x, y))
    leak = unsum.separate(model, noisy, "spans", batch_size=B)
    assert not any("decayed" in note for note in leak.notes)
