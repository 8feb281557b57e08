from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from unsum import UnsumError
from unsum.client.any_network import capture_any, is_annotated


class Detector(nn.Module):
    """As torchvision's: losses in train mode, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 1, 1)

    def forward(self, images: list[Tensor], targets: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        out = torch.stack([self.layer(image[None]).mean() for image in images])
        return {"boxes": out.sum(), "classes": 2 * out.sum() * float(len(targets))}


def test_masks_mean_cross_entropy_pixel_by_pixel() -> None:
    model = nn.Conv2d(3, 4, 1)
    images, masks = torch.rand(2, 3, 5, 5), torch.randint(4, (2, 5, 5))
    update = capture_any(model, images, masks, None, train=True)
    P = model(images).softmax(1) - nn.functional.one_hot(masks, 4).permute(0, 3, 1, 2)
    torch.testing.assert_close(update.gradients["bias"], (P.sum((0, 2, 3)) / 50).detach())


def test_a_detectors_own_losses_are_summed() -> None:
    """Each image's mean counts once, and twice times the two targets: five times in all."""
    images = [torch.rand(3, 4, 4), torch.rand(3, 6, 6)]
    targets = [{"labels": torch.tensor([1])}] * 2
    assert is_annotated((images, targets))
    update = capture_any(Detector(), images, targets, None, train=True)
    assert float(update.gradients["layer.bias"]) == pytest.approx(10.0)


def test_a_loss_of_the_users_is_taken() -> None:
    model = nn.Linear(3, 3)
    update = capture_any(
        model, torch.ones(2, 3), "ignored", lambda output, _targets: output.sum(), train=False
    )
    assert torch.equal(update.gradients["bias"], torch.full((3,), 2.0))


def test_what_nobody_knows_is_asked_for() -> None:
    with pytest.raises(UnsumError, match="What Conv2d minimizes is not known"):
        capture_any(
            nn.Conv2d(3, 4, 1), torch.rand(2, 3, 5, 5), torch.tensor([0, 1]), None, train=True
        )
    with pytest.raises(UnsumError, match=r"cannot be trained on these data \(RuntimeError"):
        capture_any(
            nn.Conv2d(3, 4, 1), torch.rand(2, 1, 5, 5), torch.tensor([0, 1]), None, train=True
        )
