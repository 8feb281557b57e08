"""Rows of ∇W along the mean feature: labels through noise, of features that may be negative."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import unsum
from unsum.errors import UnsumError

LABELS = torch.tensor([3, 11, 17, 28])


class Shifted(nn.Module):
    """Features tanh(a + x): of alternating signs, and alike for all inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = torch.tensor([1.5, -1.5]).repeat(100)
        self.head = nn.Linear(200, 40)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.shift + 0.3 * x))


def sent(noise: float) -> tuple[nn.Module, unsum.Update]:
    torch.manual_seed(0)
    model = Shifted()
    model.input_shape = (200,)  # type: ignore[assignment]
    clean = unsum.capture(model, torch.randn(4, 200), LABELS)
    return model, unsum.Noise(noise)(clean)


def test_labels_are_read_through_noise_that_hides_every_sum_and_bias() -> None:
    """g_y = (1/40 − 1/4) ‖f‖ ≈ −2.9 for noise of 0.3; the plain sum of a row is about 0, and the bias gradient's −0.2 is lost."""
    model, update = sent(0.3)
    assert unsum.labels(model, update, "template").tolist() == LABELS.tolist()
    assert unsum.labels(model, update, "template", batch_size=4).tolist() == LABELS.tolist()
    assert set(unsum.labels(model, update, "bias-sign", batch_size=4).tolist()) != set(LABELS.tolist())
    named = {tuple(one.labels.tolist()) for one in unsum.attack(model, update).tried if one.labels is not None}
    assert tuple(LABELS.tolist()) in named


def test_noise_alone_names_next_to_nothing() -> None:
    model, update = sent(100.0)
    try:
        found = unsum.labels(model, update, "template").tolist()
    except UnsumError:
        found = []
    assert len(found) <= 1


def test_what_it_cannot_do_is_refused() -> None:
    model, update = sent(0.0)
    model.shift = torch.zeros(200)
    model.forward = lambda x: model.head(torch.relu(x - 100))  # type: ignore[method-assign]
    with pytest.raises(UnsumError, match="The features of random inputs vanish"):
        unsum.labels(model, update, "template")
