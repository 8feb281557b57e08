"""Flower's own clipping and noise beside ours."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flwr.clientapp.mod import LocalDpMod

try:
    from flwr.supercore.differential_privacy import compute_clip_model_update  # from 1.32 on
except ImportError:
    from flwr.common.differential_privacy import compute_clip_model_update

from unsum import Update
from unsum.defend import FlowerAdaptiveClipping, FlowerFixedClipping, FlowerLocalDP


@pytest.mark.parametrize(
    "defense",
    [FlowerFixedClipping(), FlowerAdaptiveClipping(), FlowerFixedClipping(clipping_norm=1e9)],
)
def test_clipping(defense) -> None:
    draw = np.random.default_rng(0)
    before = [draw.normal(size=(30, 20)), draw.normal(size=30)]
    after = [array + draw.normal(size=array.shape) for array in before]
    change = {
        str(i): torch.from_numpy(new - old)
        for i, (new, old) in enumerate(zip(after, before, strict=True))
    }
    compute_clip_model_update(after, before, defense.clipping_norm)
    found = defense(Update(change)).gradients
    for i, (new, old) in enumerate(zip(after, before, strict=True)):
        np.testing.assert_allclose(found[str(i)].numpy(), new - old, rtol=1e-9, atol=1e-12)


def test_local_dp_takes_the_same_numbers() -> None:
    ours = FlowerLocalDP(clipping_norm=2.0, sensitivity=0.5, epsilon=3.0, delta=1e-6)
    theirs = LocalDpMod(2.0, 0.5, 3.0, 1e-6)
    assert vars(theirs) == {name: value for name, value in vars(ours).items() if name != "strength"}
    assert ours.deviation == pytest.approx(0.5 * np.sqrt(2 * np.log(1.25 / 1e-6)) / 3)
