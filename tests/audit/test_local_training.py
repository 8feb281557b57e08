"""FedAvg with the truth: the client takes several steps, the attacker is told how, and the findings
record it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import unsum
from unsum import UnsumError

LABELS = torch.tensor([3, 17, 8, 29])


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 40))


@pytest.fixture(scope="module")
def followed() -> unsum.Audit:
    data = 2 * torch.randn(4, 30, generator=torch.Generator().manual_seed(1)), LABELS
    how = {"learning_rate": 0.05, "local_steps": 2, "momentum": 0.9, "weight_decay": 1e-3}
    return unsum.audit(network(), data, **how)


def test_samples_come_back_as_the_step_saw_them(followed: unsum.Audit) -> None:
    assert followed.leak.method == "local-steps"
    # those at the first weights would be farther off
    assert followed.scores["worst_feature_error"] < 1e-3
    assert followed.scores["label_correct"] == 1
    assert min(followed.leakages) > 0.99


def test_what_was_declared_is_granted_and_recorded(followed: unsum.Audit) -> None:
    declared = {
        "learning_rate": 0.05,
        "steps": 2,
        "batch_size": None,
        "weight_decay": 1e-3,
        "momentum": 0.9,
        "epochs": 1,
    }
    assert followed.to_dict()["setting"]["training"] == declared
    told = (
        "How the client trains: 2 local steps of SGD at a learning rate of 0.05, a momentum of "
        "0.9, a weight decay of 0.001."
    )
    assert told in followed.granted


def test_an_epoch_is_one_step_unless_steps_are_counted() -> None:
    data = torch.randn(4, 30), LABELS
    report = unsum.audit(network(), data, epochs=2, attack="exact")
    assert report.setting.training is not None
    assert (report.setting.training["steps"], report.setting.training["learning_rate"]) == (2, 0.01)
    assert unsum.audit(network(), data, attack="exact").setting.training is None
    with pytest.raises(UnsumError, match="3 steps are not 2 epochs"):
        unsum.audit(network(), data, epochs=2, local_steps=3)


def test_a_captured_update_says_itself_how_its_client_trained() -> None:
    model = network()
    update = unsum.capture(model, torch.randn(4, 30), LABELS)
    with pytest.raises(UnsumError, match="says how its client trained"):
        unsum.audit(model, update=update, local_steps=2)
