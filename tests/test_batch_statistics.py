"""What BatchNorm's buffers say of a batch, where a client sends them along."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import unsum
from unsum.batch_statistics import read_statistics


def network() -> nn.Module:
    torch.manual_seed(0)
    parts = [
        nn.Conv2d(3, 6, 3),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Dropout(),
        nn.Flatten(),
        nn.Linear(6 * 36, 4),
    ]
    return nn.Sequential(*parts)


def batch() -> tuple[Tensor, Tensor]:
    return torch.rand(5, 3, 8, 8, generator=torch.Generator().manual_seed(1)), torch.tensor(
        [0, 1, 2, 3, 3]
    )


def true_statistics(model: nn.Module) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        z = model[0](batch()[0]).double()
    return z.mean((0, 2, 3)), z.var((0, 2, 3))


def test_a_client_that_sends_its_buffers_tells_the_batchs_statistics() -> None:
    model = network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(2)
    update = unsum.capture(model, *batch(), buffers=True)
    mean, variance = true_statistics(model)
    assert torch.allclose(update.statistics.means["1"], mean, rtol=1e-5, atol=1e-6)
    assert torch.allclose(update.statistics.variances["1"], variance, rtol=1e-5, atol=1e-6)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())
    torch.manual_seed(2)
    without = unsum.capture(model, *batch())
    assert without.statistics.means == {}
    # dropout drew the same
    assert all(torch.equal(g, without.gradients[name]) for name, g in update.gradients.items())


def test_statistics_are_saved_and_come_back(tmp_path: Path) -> None:
    model = network()
    update = unsum.capture(model, *batch(), buffers=True)
    update.save(tmp_path / "client.safetensors")
    for read_for in (None, model):
        again = unsum.Update.load(tmp_path / "client.safetensors", model=read_for)
        assert again.gradients.keys() == update.gradients.keys()
        assert torch.equal(again.statistics.means["1"], update.statistics.means["1"])
        assert torch.equal(again.statistics.variances["1"], update.statistics.variances["1"])
        assert again.statistics.steps == 1
    again.validate(model)


@pytest.mark.parametrize("named", [True, False])
def test_two_checkpoints_tell_them_as_well(tmp_path: Path, named: bool) -> None:
    model = network()
    trained = network()
    trained.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trained(batch()[0])  # moves the statistics
    with torch.no_grad():
        trained[5].bias.add_(0.1)
    for file, state in (("before.pt", before), ("after.pt", trained.state_dict())):
        torch.save(
            dict(state) if named else dict(zip("abcdefghijk", state.values(), strict=False)),
            tmp_path / file,
        )
    update = unsum.Update.between(
        tmp_path / "before.pt", tmp_path / "after.pt", model=model, learning_rate=0.1
    )
    assert torch.allclose(
        update.statistics.means["1"], true_statistics(model)[0], rtol=1e-4, atol=1e-5
    )


def test_what_does_not_fit_is_refused_and_what_is_no_number_left_out() -> None:
    model = network()
    update = unsum.capture(model, *batch(), buffers=True)
    longer = replace(update.statistics, means={"1": torch.zeros(7)})
    with pytest.raises(unsum.UnsumError, match="batch statistics of '1'"):
        replace(update, statistics=longer).validate(model)
    state = dict(model.state_dict())
    after = state | {
        "1.running_mean": torch.full((6,), torch.nan),
        "1.num_batches_tracked": torch.tensor(1),
    }
    assert read_statistics(model, state, after).means == {}
