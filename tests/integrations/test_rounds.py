"""From weights sent out and back to what the server sees: signs, scales, names, and BatchNorm's
statistics."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import unsum
from integrations.networks import network, photos, trained
from unsum.integrations.rounds import fill, read_statistics, seen
from unsum.local_training import LocalTraining

RATE = 0.25


def relative(found: torch.Tensor, truth: torch.Tensor) -> float:
    return float((found - truth).norm() / truth.norm())


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return dict(unsum.capture(model, *photos()).gradients)


def test_one_step_gives_the_gradient_with_its_sign_and_size() -> None:
    model = network().double()
    images, targets = photos()
    after = trained(model, images.double(), targets, rate=RATE)
    update = seen(
        model, model.state_dict(), after, LocalTraining(learning_rate=RATE), num_examples=4
    ).update
    truth = unsum.capture(model, images.double(), targets).gradients
    assert update.gradients.keys() == truth.keys()  # no statistics among them
    # behind a BatchNorm, biases have a gradient of zero
    for name in ("0.weight", "7.weight", "7.bias"):
        assert relative(update.gradients[name], truth[name]) < 1e-12
    assert (update.num_examples, update.batch_size, update.scale_known) == (4, None, True)


def test_weight_decay_is_taken_out_again() -> None:
    model = network().double()
    images, targets = photos()
    after = trained(model, images.double(), targets, rate=RATE, decay=0.05, momentum=0.9)
    known = LocalTraining(learning_rate=RATE, weight_decay=0.05)
    truth = unsum.capture(model, images.double(), targets).gradients
    assert (
        relative(
            seen(model, model.state_dict(), after, known).update.gradients["7.weight"],
            truth["7.weight"],
        )
        < 1e-12
    )
    plain = seen(model, model.state_dict(), after, LocalTraining(learning_rate=RATE)).update
    assert relative(plain.gradients["7.weight"], truth["7.weight"]) > 0.01


def test_without_a_rate_the_scale_is_open() -> None:
    model = network()
    update = seen(model, model.state_dict(), trained(model, *photos(), rate=RATE)).update
    assert not update.scale_known
    assert relative(update.gradients["7.weight"] / RATE, gradients(model)["7.weight"]) < 1e-5


@pytest.mark.parametrize("given", [3, None])  # None: BatchNorm's counters tell
def test_several_steps_give_the_mean_of_their_gradients(given: int | None) -> None:
    model = network()
    after = trained(model, *photos(), rate=1e-3, steps=3)
    found = seen(model, model.state_dict(), after, LocalTraining(learning_rate=1e-3, steps=given))
    assert relative(found.update.gradients["7.weight"], gradients(model)["7.weight"]) < 0.05
    assert found.statistics.steps == 3
    assert found.statistics.means == {}
    assert any("3 local steps" in note for note in found.update.notes)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_statistics_give_the_batchs_mean_and_variance_away(momentum: float | None) -> None:
    model = network()
    for layer in (model[1], model[4]):
        layer.momentum = momentum
        layer.running_mean.uniform_(-1, 1)
        layer.num_batches_tracked.fill_(6)
    found = seen(model, model.state_dict(), trained(model, *photos(), rate=RATE)).statistics
    entering = model[0](photos()[0]).detach().double()
    assert found.layers == ("1", "4")
    assert relative(found.means["1"], entering.mean((0, 2, 3))) < 1e-4
    assert relative(found.variances["1"], entering.var((0, 2, 3))) < 1e-4
    assert found.note is not None
    assert "24 channels" in found.note


def test_without_statistics_nothing_is_read() -> None:
    model = network()
    before = {name: p.detach() for name, p in model.named_parameters()}
    after = {
        name: value
        for name, value in trained(model, *photos(), rate=RATE).items()
        if name in before
    }
    found = seen(model, before, after)
    assert found.statistics.note is None
    assert found.statistics.steps is None


def test_a_client_whose_momentum_is_zero_tells_no_means() -> None:
    model = network()
    model[1].momentum = 0.0
    found = seen(model, model.state_dict(), trained(model, *photos(), rate=RATE)).statistics
    assert found.layers == ("4",)


def test_arrays_under_numbers_are_matched_by_order() -> None:
    model = network()
    after = trained(model, *photos(), rate=RATE)
    numbered = [
        {str(i): value.numpy() for i, value in enumerate(state.values())}
        for state in (model.state_dict(), after)
    ]
    update = seen(model, *numbered, LocalTraining(learning_rate=RATE)).update
    assert relative(update.gradients["7.weight"], gradients(model)["7.weight"]) < 1e-5
    other = network(seed=9)
    fill(other, numbered[0])
    assert all(
        torch.equal(a, b)
        for a, b in zip(other.state_dict().values(), model.state_dict().values(), strict=True)
    )


def test_filling_with_parameters_alone_leaves_buffers() -> None:
    model, other = network(), network(seed=9)
    other[1].running_mean.fill_(3.0)
    fill(other, dict(model.named_parameters()))
    assert torch.equal(other[0].weight, model[0].weight)
    assert bool((other[1].running_mean == 3.0).all())


def test_what_does_not_fit_is_said_in_a_sentence() -> None:
    model = network()
    after = trained(model, *photos(), rate=RATE)
    without = {name: value for name, value in after.items() if name != "7.bias"}
    with pytest.raises(unsum.UnsumError, match=r"'7.bias' was sent out only"):
        seen(model, model.state_dict(), without)
    with pytest.raises(unsum.UnsumError, match="came back as"):
        seen(model, model.state_dict(), after | {"7.bias": torch.zeros(3)})
    with pytest.raises(unsum.UnsumError, match="learning rate is known"):
        LocalTraining(weight_decay=0.1)
    with pytest.raises(unsum.UnsumError, match="at least 1"):
        LocalTraining(steps=0)
    with pytest.raises(unsum.UnsumError, match="must be positive"):
        LocalTraining(learning_rate=0.0)
    with pytest.raises(unsum.UnsumError, match="must be at least 0"):
        LocalTraining(learning_rate=1.0, weight_decay=-1.0)


@pytest.mark.parametrize("counter", [float("nan"), float("inf"), -7, 10**18])
def test_counters_that_are_no_numbers_say_nothing(counter: float) -> None:
    model = network()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    after = trained(model, *photos(), rate=0.1)
    told = {
        name: torch.tensor(counter) if "num_batches" in name else tensor
        for name, tensor in after.items()
    }
    statistics = read_statistics(model, before, told)
    assert statistics.layers
    assert statistics.steps == (10**18 if counter == 10**18 else None)
    assert statistics.means == {}
