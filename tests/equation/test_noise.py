"""How noisy a gradient is, measured on the gradient itself."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from unsum import Update, capture
from unsum.equation.noise import measure_noise
from unsum.equation.observation import observe
from unsum.head import Head


@pytest.mark.parametrize("classes", [70, 100, 1000])
def test_its_size_is_that_of_the_noise_added(classes: int) -> None:
    """The largest directions are left out of the measurement, and their share of the noise is made
    up for."""
    torch.manual_seed(0)
    model = nn.Linear(512, classes)
    sent = capture(model, torch.randn(6, 512), torch.arange(6))
    noisy = Update(
        {name: value + 0.02 * torch.randn_like(value) for name, value in sent.gradients.items()}
    )
    noise = measure_noise(Head.of(model, noisy))
    assert noise.added
    assert float(noise.level.mean()) == pytest.approx(0.02, rel=0.1)


def test_noise_alone_passes_for_no_sample() -> None:
    torch.manual_seed(0)
    model = nn.Linear(512, 100)
    noise = Update({name: torch.randn_like(value) for name, value in model.named_parameters()})
    assert observe(Head.of(model, noise), None).rank == 0
