from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from support.material import pictures, small_net
from unsum import (
    DPSGD,
    Clip,
    LocalTraining,
    SmoothLabels,
    UnsumError,
    capture,
    capture_local,
    smooth_labels,
)

LABELS = torch.tensor([3, 3, 7, 11])


def test_one_step_is_the_gradient(net: nn.Sequential) -> None:
    gradient = capture(net, pictures(4), LABELS).gradients
    known = capture_local(net, pictures(4), LABELS, learning_rate=0.5)
    unknown = capture_local(net, pictures(4), LABELS, learning_rate=0.5, rate_known=False)
    assert (known.kind, known.scale_known, unknown.scale_known) == ("delta", True, False)
    for name, value in gradient.items():
        torch.testing.assert_close(known.gradients[name], value, atol=2e-7, rtol=1e-4)
        torch.testing.assert_close(unknown.gradients[name], 0.5 * value, atol=2e-7, rtol=1e-4)


def test_several_steps_are_torchs_own_sgd() -> None:
    net = small_net()
    before = copy.deepcopy(net.state_dict())
    sent = capture_local(
        net,
        pictures(4),
        LABELS,
        learning_rate=0.2,
        epochs=2,
        batch_size=3,
        defenses=SmoothLabels(0.1),
    )
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    reference = small_net().train()
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.2)
    rows = smooth_labels(LABELS, 0.1, 40)
    for batch in [slice(0, 3), slice(3, 4)] * 2:
        optimizer.zero_grad()
        nn.functional.cross_entropy(reference(pictures(4)[batch]), rows[batch]).backward()
        optimizer.step()
    for name, moved in reference.named_parameters():
        torch.testing.assert_close(
            sent.gradients[name], (before[name] - moved.detach()) / 0.2, atol=1e-6, rtol=1e-4
        )


def test_update_defenses_act_once_at_the_end(net: nn.Sequential) -> None:
    sent = capture_local(net, pictures(4), LABELS, learning_rate=0.2, epochs=3, defenses=Clip(0.25))
    assert float(torch.stack([g.norm() for g in sent.gradients.values()]).norm()) == pytest.approx(
        0.25, rel=1e-4
    )


@pytest.mark.parametrize("change", [{"learning_rate": 0}, {"epochs": 0}, {"batch_size": 0}])
def test_impossible_training_is_refused(net: nn.Sequential, change: dict[str, float]) -> None:
    with pytest.raises(UnsumError, match="Local training needs"):
        capture_local(net, pictures(4), LABELS, **{"learning_rate": 0.1} | change)  # type: ignore[arg-type]


@pytest.mark.parametrize("chosen", [{"batch_size": 2}, {"local_steps": 6}])
def test_momentum_and_weight_decay_are_torchs_own(chosen: dict[str, int]) -> None:
    net, settings = small_net(), {"momentum": 0.9, "weight_decay": 0.02}
    sent = capture_local(
        net, pictures(5), torch.arange(5), learning_rate=0.2, epochs=2, **chosen, **settings
    )
    reference = small_net().train()
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.2, **settings)
    for batch in [slice(0, 2), slice(2, 4), slice(4, 5)] * 2:
        optimizer.zero_grad()
        nn.functional.cross_entropy(
            reference(pictures(5)[batch]), torch.arange(5)[batch]
        ).backward()
        optimizer.step()
    for name, moved in reference.named_parameters():
        start = net.get_parameter(name).detach()
        torch.testing.assert_close(
            sent.gradients[name], (start - moved.detach()) / 0.2, atol=1e-5, rtol=1e-4
        )


def test_what_a_server_knows_of_the_training_goes_with_the_update(net: nn.Sequential) -> None:
    how = {"learning_rate": 0.2, "local_steps": 2, "weight_decay": 0.1}
    plain, told = (
        capture_local(net, pictures(4), LABELS, training_known=known, **how)
        for known in (False, True)
    )
    assert plain.training is None
    assert told.training == LocalTraining(0.2, 2, None, 0.1)
    assert told.learning_rate == pytest.approx(0.4)
    # the mean of the two, without the decay of the weights that were sent
    for name, whole in plain.gradients.items():
        torch.testing.assert_close(
            told.gradients[name], whole / 2 - 0.1 * net.get_parameter(name).detach()
        )


def test_more_steps_than_samples_are_refused(net: nn.Sequential) -> None:
    with pytest.raises(UnsumError, match="5 steps in an epoch of 4 samples"):
        capture_local(net, pictures(4), LABELS, learning_rate=0.1, local_steps=5)
    with pytest.raises(UnsumError, match="give one of the two"):
        capture_local(net, pictures(4), LABELS, learning_rate=0.1, local_steps=2, batch_size=2)


@pytest.mark.parametrize(
    ("loss", "targets", "own"),
    [
        ("bce", torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1]]), nn.BCEWithLogitsLoss()),
        ("mse", torch.tensor([[0.5, 0, 2], [0, -1, 0], [1, 1, 1]]), nn.MSELoss()),
    ],
)
def test_other_losses_are_torchs_own(loss: str, targets: Tensor, own: nn.Module) -> None:
    torch.manual_seed(0)
    net, inputs = nn.Linear(6, 3), torch.randn(3, 6)
    own(net(inputs), targets.float()).backward()
    sent = capture(net, inputs, targets, loss=loss)
    assert net.weight.grad is not None
    torch.testing.assert_close(sent.gradients["weight"], net.weight.grad)


def test_one_output_for_yes_and_no() -> None:
    net, inputs, answers = nn.Linear(6, 1), torch.randn(3, 6), torch.tensor([1, 0, 1])
    nn.functional.binary_cross_entropy_with_logits(net(inputs)[:, 0], answers.float()).backward()
    sent = capture(net, inputs, answers, loss="bce")
    torch.testing.assert_close(sent.gradients["weight"], net.weight.grad)
    with pytest.raises(UnsumError, match="loss='bce'"):
        capture(net, inputs, answers)
    private = capture(net, inputs, answers, loss="bce", defenses=DPSGD(0.0, clip=100.0))
    torch.testing.assert_close(private.gradients["weight"], sent.gradients["weight"])
