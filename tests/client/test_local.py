from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from support.material import pictures, small_net
from unsum import Clip, SmoothLabels, UnsumError, capture, capture_local, smooth_labels

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
        net, pictures(4), LABELS, learning_rate=0.2, epochs=2, batch_size=3, defenses=SmoothLabels(0.1)
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
        torch.testing.assert_close(sent.gradients[name], (before[name] - moved.detach()) / 0.2, atol=1e-6, rtol=1e-4)


def test_update_defenses_act_once_at_the_end(net: nn.Sequential) -> None:
    sent = capture_local(net, pictures(4), LABELS, learning_rate=0.2, epochs=3, defenses=Clip(0.25))
    assert float(torch.stack([g.norm() for g in sent.gradients.values()]).norm()) == pytest.approx(0.25, rel=1e-4)


@pytest.mark.parametrize("change", [{"learning_rate": 0}, {"epochs": 0}, {"batch_size": 0}])
def test_impossible_training_is_refused(net: nn.Sequential, change: dict[str, float]) -> None:
    with pytest.raises(UnsumError, match="Local training needs"):
        capture_local(net, pictures(4), LABELS, **{"learning_rate": 0.1} | change)  # type: ignore[arg-type]
