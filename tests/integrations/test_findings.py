"""What a server's metrics say of one client: the batch size granted, and nothing that passes for 0
where nobody knows."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from unsum.integrations.finding import ClientFinding, attack_seen, figures_of, finding_of
from unsum.integrations.guard import Guard
from unsum.integrations.rounds import Seen, seen
from unsum.local_training import LocalTraining

KNOWN = LocalTraining(learning_rate=0.1)


def one_step(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    local = copy.deepcopy(model)
    optimizer = torch.optim.SGD(local.parameters(), lr=0.1)
    nn.functional.cross_entropy(local(x), y).backward()
    optimizer.step()
    return local.state_dict()


def found(model: nn.Module, round_: Seen) -> ClientFinding:
    return finding_of(1, "7", round_.update, attack_seen(model, round_, None, train=True, seed=0))


def crowd() -> tuple[nn.Module, dict[str, Tensor]]:
    """Twelve samples of three classes, in units that see all of them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 3))
    return model, one_step(model, torch.randn(12, 8), torch.arange(12) % 3)


def test_a_crowd_has_no_worst_leakage_instead_of_none() -> None:
    model, after = crowd()
    finding = found(model, seen(model, model.state_dict(), after, KNOWN, num_examples=12))
    assert finding.state == "not decidable"
    assert math.isnan(finding.leakage)
    assert "cannot tell" in finding.reason
    figures = figures_of([finding], 0.1)
    assert "leak-worst" not in figures
    assert figures["leak-not-decidable"] == 1
    assert finding.to_dict()["leakage"] is None
    assert finding.to_dict()["state"] == "not decidable"


def test_a_guard_keeps_back_what_it_cannot_decide() -> None:
    model, after = crowd()
    judged = Guard(model, training=KNOWN).judge(model.state_dict(), after)
    assert judged.weights is None
    assert "cannot tell" in judged.reason


def test_a_guard_passes_nothing_undecided_however_high_its_threshold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, after = crowd()
    monkeypatch.setattr(Guard, "_leakage", lambda *_: (0.3, "the others cannot be told apart"))
    judged = Guard(model, 0.5, training=KNOWN).judge(model.state_dict(), after)
    assert judged.weights is None
    assert judged.reason == "Not known whether the update leaks: the others cannot be told apart."


def test_the_number_of_examples_is_granted_as_the_batch_size_and_said() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 30))
    after = one_step(model, torch.randn(4, 20), torch.tensor([1, 1, 5, 9]))
    told = found(model, seen(model, model.state_dict(), after, KNOWN, num_examples=4))
    assert told.granted[1] == "The batch size (4)."
    assert told.state == "leaks"
    # A client may have drawn its batch from many more examples.
    untold = found(model, seen(model, model.state_dict(), after, KNOWN, num_examples=6))
    assert untold.batch_size == 4
    assert untold.expected > 0.99
    assert untold.state == "not decidable"  # nothing certifies that these four are all
    assert not any("batch size" in sentence for sentence in untold.granted)


def test_rows_of_the_first_layer_count_in_the_metrics() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 2))
    x = torch.randn(4, 10)
    after = one_step(model, x, torch.tensor([0, 1, 1, 0]))
    finding = found(model, seen(model, model.state_dict(), after, KNOWN, num_examples=4))
    assert finding.method == "ratio"
    assert finding.expected > 0.99
    assert figures_of([finding], 0.1)["leak-expected"] > 0.99
    # A report on the same update says so, too: nothing certifies what a single row holds.
    assert (finding.exact, finding.state) == (False, "not decidable")
    assert "leak-worst" not in figures_of([finding], 0.1)
