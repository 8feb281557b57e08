from __future__ import annotations

import pytest
import torch
from torch import nn

from support.material import pictures, small_net
from unsum import Clip, Noise, UnsumError, capture, mixup, smooth_labels


@pytest.mark.parametrize("train", [True, False])
def test_capture_is_the_gradient_of_the_mean_cross_entropy(net: nn.Sequential, train: bool) -> None:
    images, targets = pictures(6), torch.tensor([3, 3, 3, 7, 8, 9])
    update = capture(net, images, targets, train=train)
    reference = small_net().train(train)  # same seed, same weights
    nn.functional.cross_entropy(reference(images), targets).backward()
    assert list(update.gradients) == [name for name, _ in net.named_parameters()]
    for name, parameter in reference.named_parameters():
        torch.testing.assert_close(update.gradients[name], parameter.grad)


def test_train_and_eval_mode_differ(net: nn.Sequential) -> None:
    batch = pictures(4), torch.tensor([0, 1, 2, 3])
    train, evaluated = capture(net, *batch), capture(net, *batch, train=False)
    assert not torch.allclose(train.gradients["5.weight"], evaluated.gradients["5.weight"])


def test_the_model_is_left_as_it_was(net: nn.Sequential) -> None:
    net.train()
    net[1].eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    capture(net, pictures(4), torch.tensor([0, 1, 2, 3]))
    assert net.training
    assert not net[1].training
    assert all(p.grad is None for p in net.parameters())
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_the_update_says_nothing_about_the_batch(net: nn.Sequential) -> None:
    update = capture(net, pictures(4), torch.tensor([0, 1, 2, 3]))
    assert update.batch_size is None
    assert update.num_examples is None


def test_soft_targets_equal_their_mixture_of_hard_ones(net: nn.Sequential) -> None:
    """Cross-entropy is linear in the target: smoothing must give the mean of the hard gradients
    over all classes."""
    images, label = pictures(1), torch.tensor([5])
    soft = capture(net, images, smooth_labels(label, 0.4, 40), train=False).gradients["5.bias"]
    hard = capture(net, images, label, train=False).gradients["5.bias"]
    uniform = capture(net, images, torch.full((1, 40), 1 / 40), train=False).gradients["5.bias"]
    torch.testing.assert_close(soft, 0.6 * hard + 0.4 * uniform)


def test_frozen_layers_send_nothing(net: nn.Sequential) -> None:
    net[0].requires_grad_(False)
    assert "0.weight" not in capture(net, pictures(2), torch.tensor([0, 1])).gradients


def test_defenses_are_applied_in_order(net: nn.Sequential) -> None:
    batch = pictures(2), torch.tensor([0, 1])

    def norm(defenses: object) -> float:
        torch.manual_seed(0)
        gradients = capture(net, *batch, defenses=defenses).gradients.values()  # type: ignore[arg-type]
        return float(torch.stack([g.norm() for g in gradients]).norm())

    assert norm([Noise(1.0), Clip(0.5)]) == pytest.approx(0.5, rel=1e-4)
    assert norm([Clip(0.5), Noise(1.0)]) > 10
    assert norm(Noise(1.0) | Clip(0.5)) == pytest.approx(0.5, rel=1e-4)


def test_auxiliary_outputs_are_left_out() -> None:
    class TwoOutputs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.other = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.head(x), self.other(x)

    assert list(capture(TwoOutputs(), torch.rand(2, 4), torch.tensor([0, 1])).gradients) == [
        "head.weight",
        "head.bias",
    ]


@pytest.mark.parametrize(
    ("count", "targets", "sentence"),
    [
        (2, torch.tensor([0]), "as many targets as images"),
        (0, torch.tensor([], dtype=torch.long), "as many targets as images"),
        (1, torch.tensor([40]), r"must lie in 0…39"),
        (1, torch.tensor([-1]), r"must lie in 0…39"),
        (1, torch.rand(1, 39), r"\(B, 40\) rows"),
        (1, torch.full((1, 40), 1.0), "sum to 1"),
    ],
)
def test_bad_batches_are_refused(
    net: nn.Sequential, count: int, targets: torch.Tensor, sentence: str
) -> None:
    with pytest.raises(UnsumError, match=sentence):
        capture(net, pictures(count) if count else torch.empty(0, 3, 16, 16), targets)


def test_a_model_that_trains_nothing_is_refused(net: nn.Sequential) -> None:
    with pytest.raises(UnsumError, match="no trainable parameter"):
        capture(net.requires_grad_(False), pictures(1), torch.tensor([0]))


def test_mixup_blends_images_and_targets_alike() -> None:
    images, targets = torch.tensor([0.0, 1.0, 0.5]).view(3, 1, 1, 1), torch.tensor([0, 1, 2])
    mixed, rows = mixup(images, targets, 3, weight=torch.tensor([0.75, 0.5, 1.0]))
    torch.testing.assert_close(mixed.flatten(), torch.tensor([0.25, 0.75, 0.5]))
    torch.testing.assert_close(
        rows, torch.tensor([[0.75, 0.25, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]])
    )
    same, rows = mixup(images, targets, 3, weight=0.3, partner=torch.tensor([0, 1, 2]))
    torch.testing.assert_close(same, images)
    torch.testing.assert_close(rows, torch.eye(3))


def test_augmentation_strengths_are_checked() -> None:
    with pytest.raises(UnsumError, match="between 0 and 1"):
        smooth_labels(torch.tensor([0]), 1.5, 3)
    with pytest.raises(UnsumError, match="between 0 and 1"):
        mixup(torch.zeros(2, 1), torch.tensor([0, 1]), 3, weight=-0.1)
