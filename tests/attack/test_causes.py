"""What an attack says of an update is its cause and no guess."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import unsum
from support.command import runner


def told(leak: unsum.Leak) -> str:
    return " ".join([*leak.notes, *(attempt.blind + attempt.refused for attempt in leak.tried)])


def test_units_that_are_off_for_the_whole_batch_were_not_held_back() -> None:
    """More samples than classes, and a fifth of the ReLUs silent: nothing fits, and these zeros are
    not why."""
    torch.manual_seed(5)
    model = nn.Linear(20, 3)
    features = torch.rand(4, 20)
    features[:, ::5] = 0
    update = unsum.capture(model, features, torch.arange(4) % 3)
    assert not update.gradients["weight"][:, ::5].any()
    leak = unsum.attack(model, update)
    assert "adaptive" in [attempt.method for attempt in leak.tried]
    said = told(leak) + " ".join(
        told(attempt.leak) for attempt in leak.tried if attempt.leak is not None
    )
    assert "held back" not in said
    assert "full rank of 2" in leak.undecided


@pytest.mark.parametrize("rate", [1e-2, 1e-4])
def test_the_rounding_of_weights_is_no_noise_that_was_added(rate: float) -> None:
    torch.manual_seed(5)
    model = nn.Linear(80, 20)
    inputs, labels = torch.randn(4, 80), torch.tensor([3, 7, 7, 12])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    gradients = unsum.capture(model, inputs, labels).gradients
    after = {name: value - rate * gradients[name] for name, value in before.items()}
    delta = unsum.Update.from_delta({n: after[n] - before[n] for n in before}, learning_rate=rate)
    leak = unsum.attack(model, delta)
    assert sorted(leak.labels.tolist()) == [3, 7, 7, 12]
    assert "was added" not in told(leak)
    assert "pruned" not in told(leak)


def test_crowded_says_what_to_grant(
    tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, update = (
        nn.Linear(80, 8),
        unsum.Update({"weight": torch.ones(8, 80), "bias": torch.ones(8)}),
    )
    with pytest.raises(unsum.UnsumError, match=r"grant them \(labels=\), or let a rule find them"):
        unsum.separate(model, update, "crowded")
    monkeypatch.chdir(tmp_path)
    result = runner(monkeypatch, capsys)(
        "audit", "--model", "mlp", "--batch", "2", "--attack", "crowded"
    )
    assert result.code == 2
    assert "--labels ilrg --batch-size-known" in result.err


@pytest.mark.parametrize("noise", [1e-4, 1e-2, 0.1])
def test_an_answer_out_of_noise_never_expects_to_be_perfect(noise: float) -> None:
    torch.manual_seed(5)
    model = nn.Linear(80, 20)
    update = unsum.capture(
        model, torch.randn(4, 80), torch.tensor([3, 7, 9, 12]), defenses=unsum.Noise(noise)
    )
    leak = unsum.attack(model, update)
    answers = [leak, *(attempt.leak for attempt in leak.tried if attempt.leak is not None)]
    assert "oise of" in told(leak)
    for answer in answers:
        assert math.isnan(answer.predicted_error) or answer.predicted_error > 1e-6
        assert "0.0e+00" not in repr(answer)


@pytest.mark.parametrize(
    ("given", "way"),
    [("layers", "name the method with method='layers'"), (3, "not of the type int")],
)
def test_the_third_argument_of_peel_is_said(given: object, way: str) -> None:
    model, update = (
        nn.Linear(8, 4),
        unsum.Update({"weight": torch.ones(4, 8), "bias": torch.ones(4)}),
    )
    with pytest.raises(
        unsum.UnsumError, match=f"The third argument of peel is a leak to continue; {way}."
    ):
        unsum.peel(model, update, given)  # type: ignore[arg-type]
