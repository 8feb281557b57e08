"""A momentum that carries the update before on: found, taken off, and nothing claimed where it is
wrong."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import unsum
from support.command import runner
from support.long import long
from unsum.models.momentum import find_momentum

C, H, B = 30, 64, 4
Round = tuple[nn.Module, unsum.Update, Tensor]


def rounds(
    count: int, momentum: float = 0.9, *, deltas: bool = False, batch: int = B, rate: float = 0.1
) -> list[Round]:
    """The model that was sent, what came back and the features, round by round; other samples in
    every round."""
    torch.manual_seed(0)
    model = nn.Linear(H, C)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)
    sent: list[Round] = []
    for _ in range(count):
        start, features = copy.deepcopy(model), torch.randn(batch, H).relu()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(features), torch.randint(C, (batch,))).backward()
        optimizer.step()
        buffers = {
            name: optimizer.state[p].get("momentum_buffer", p.grad).clone()
            for name, p in model.named_parameters()
        }
        moved = {
            name: (p - dict(start.named_parameters())[name]).detach()
            for name, p in model.named_parameters()
        }
        update = unsum.Update.from_delta(moved, rate) if deltas else unsum.Update(buffers)
        sent.append((start, update, features))
    return sent


def farthest(leak: unsum.Leak, features: Tensor) -> float:
    """How far the worst true sample is from all that was found, relatively."""
    return float((torch.cdist(features, leak.features).amin(1) / features.norm(dim=1)).max())


# after twelve rounds the buffer has taken all directions
@pytest.mark.parametrize(("count", "momentum"), [(2, 0.9), (12, 0.9), *long((2, 0.99), (12, 0.5))])
def test_a_momentum_is_found_and_every_sample_of_the_round_comes_back(
    momentum: float, count: int
) -> None:
    (_, before, _), (model, update, features) = rounds(count, momentum)[-2:]
    alone = unsum.without_momentum(update, before)
    assert alone.carried is not None
    assert alone.carried.momentum == momentum
    leak = unsum.separate(model, alone, batch_size=B)
    assert (leak.exact, leak.batch_size) == (True, B)
    assert farthest(leak, features) < 1e-5
    assert any(f"A momentum of {momentum:g} was found" in note for note in leak.notes)
    assert "The client's update of the round before." in leak.knowledge.granted()


def test_changes_of_weights_carry_it_on_as_well() -> None:
    (_, before, _), (model, update, features) = rounds(4, deltas=True)[-2:]
    leak = unsum.separate(model, unsum.without_momentum(update, before), batch_size=B)
    assert leak.exact
    assert farthest(leak, features) < 1e-4


def test_rows_of_earlier_labels_carry_the_rounding_of_what_was_sent() -> None:
    """The error that is predicted must be that of subtracted numbers, which is larger than that of
    small ones."""
    (_, before, _), (model, update, features) = rounds(2)[-2:]
    scaled = unsum.Update({name: 300 * g for name, g in before.gradients.items()})
    carried = {
        name: (g - 0.9 * before.gradients[name]) + 0.9 * scaled.gradients[name]
        for name, g in update.gradients.items()
    }
    leak = unsum.separate(
        model, unsum.without_momentum(unsum.Update(carried), scaled, 0.9), batch_size=B
    )
    error = farthest(leak, features)
    assert 3e-6 < error < 1e-2  # far above what float32 leaves of a plain gradient
    assert error < 10 * leak.predicted_error


@pytest.mark.parametrize("momentum", long(0.0, 0.8, 0.899))
def test_nothing_is_claimed_where_the_declared_momentum_is_wrong(momentum: float) -> None:
    for sent in (rounds(2), rounds(2, rate=1e-6), rounds(2, batch=1, rate=1e-6)):
        (_, before, _), (model, update, _) = sent
        assert not unsum.separate(model, unsum.without_momentum(update, before, momentum)).exact
        assert unsum.separate(model, unsum.without_momentum(update, before, 0.9)).exact


def test_a_declared_momentum_is_named_with_what_was_granted() -> None:
    (_, before, _), (model, update, _) = rounds(2)[-2:]
    leak = unsum.attack(model, unsum.without_momentum(update, before, 0.9))
    assert leak.exact
    assert (
        "The client's update of the round before, and its momentum (0.9)."
        in leak.knowledge.granted()
    )
    assert any("A momentum of 0.9 is declared" in note for note in leak.notes)


def test_updates_that_have_nothing_to_do_with_each_other_stay_as_they_are() -> None:
    (_, before, _), (_, update, _) = rounds(2, momentum=0.0)
    assert find_momentum(update.gradients, before.gradients) is None
    alone = unsum.without_momentum(update, before)
    assert alone.carried is None
    assert alone.gradients is update.gradients
    assert alone.notes[-1].startswith("Nothing of the update before shows")


def test_what_does_not_fit_is_refused_in_one_sentence() -> None:
    (_, before, _), (_, update, _) = rounds(2)
    with pytest.raises(unsum.UnsumError, match="of another model"):
        unsum.without_momentum(update, unsum.Update({"weight": torch.zeros(3, 4)}))
    broken = {name: g.clone().fill_(float("nan")) for name, g in before.gradients.items()}
    with pytest.raises(unsum.UnsumError, match="'weight': it holds NaN"):
        unsum.without_momentum(update, unsum.Update(broken))
    with pytest.raises(unsum.UnsumError, match="momentum must be at least 0 and below 1"):
        unsum.without_momentum(update, before, 1.5)
    local = unsum.Update(update.gradients, kind="delta", training=unsum.LocalTraining(0.1, steps=3))
    with pytest.raises(unsum.UnsumError, match="took several"):
        unsum.without_momentum(local, before)


def test_the_command_line_takes_the_update_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runner(monkeypatch, capsys)
    (_, before, _), (model, update, _) = rounds(2)
    (tmp_path / "net.py").write_text(
        f"import torch\n\ndef net():\n    return torch.nn.Linear({H}, {C})\n"
    )
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    before.save(tmp_path / "before.safetensors")
    update.save(tmp_path / "now.safetensors")
    arguments = [
        "attack", "--model", f"{tmp_path}/net.py:net", "--weights", f"{tmp_path}/weights.pt",
        "--update", f"{tmp_path}/now.safetensors", "--out", f"{tmp_path}/out", "--json", "--force",
    ]  # fmt: skip
    for more, exact in (([], False), (["--previous", f"{tmp_path}/before.safetensors"], True)):
        told = json.loads(run(*arguments, *more).out)
        assert told["exact"] is exact
    assert told["batch_size"] == B
