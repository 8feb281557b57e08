"""Row sums through noise that is not the same in every entry, and where they hold nothing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import unsum
from unsum.errors import UnsumError

CLASSES, FEATURES = 40, 64
LABELS = torch.tensor([8, 9, 12, 13, 13, 15, 18, 23, 24, 26, 29, 30, 30, 34, 34, 37])


def head() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, CLASSES)).eval()


def sent(change: str) -> unsum.Update:
    """A gradient of 16 samples of 13 classes, with `change` done to ∇W."""
    model = head()
    features = torch.rand(len(LABELS), FEATURES, generator=torch.Generator().manual_seed(1))
    update = unsum.capture(model, features, LABELS)
    grad_W = CHANGES[change](update.gradients["1.weight"])
    return unsum.Update({**update.gradients, "1.weight": grad_W})


def random_rounding(grad_W: Tensor) -> Tensor:
    """Each entry becomes 0 or ± twice the largest; large entries are noisier than small ones."""
    top = 2 * grad_W.abs().max()
    chance = torch.rand(grad_W.shape, generator=torch.Generator().manual_seed(2))
    return top * grad_W.sign() * (grad_W.abs() / top + chance).floor()


def noise(grad_W: Tensor) -> Tensor:
    return torch.randn(grad_W.shape, generator=torch.Generator().manual_seed(3))


def shifted(grad_W: Tensor) -> Tensor:
    """All rows are lowered alike, as by rounding to few levels that lie off zero."""
    lower = 2 * grad_W.sum(1).max() / FEATURES
    return grad_W - lower


CHANGES = {
    "nothing": lambda grad_W: grad_W,
    "rounding": random_rounding,
    "noise": noise,
    "shift": shifted,
}


@pytest.mark.parametrize(("change", "fewest"), [("nothing", 13), ("rounding", 13)])
def test_sums_below_zero_are_named_where_few_of_them_can_be_noise(change: str, fewest: int) -> None:
    found = unsum.labels(head(), sent(change), "row-sum").tolist()
    assert len(found) == len(set(found)) >= fewest
    assert set(found) <= set(LABELS.tolist())


def test_noise_alone_names_nothing() -> None:
    with pytest.raises(UnsumError, match="No row sum lies far below the others"):
        unsum.labels(head(), sent("noise"), "row-sum")


def test_a_shift_of_all_sums_is_no_label() -> None:
    """Every sum is negative then; only those far below the others are named."""
    update = sent("shift")
    assert bool((update.gradients["1.weight"].sum(1) < 0).all())
    found = set(unsum.labels(head(), update, "row-sum").tolist())
    assert found <= set(LABELS.tolist())
