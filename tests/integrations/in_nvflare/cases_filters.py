"""NVFlare's own filters beside ours: the same entries come out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.filters.exclude_vars import ExcludeVars
from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy
from nvflare.app_common.filters.svt_privacy import SVTPrivacy

from unsum import Update
from unsum.defend import NvflareExcludeVars, NvflarePercentile, NvflareSVT, platforms


def change(size: float = 0.02) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    return {
        name: draw.normal(0, size, shape)
        for name, shape in (("fc.weight", (20, 30)), ("fc.bias", (20,)))
    }


def theirs(filter_: object, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    held = {name: array.copy() for name, array in arrays.items()}
    shareable = DXO(DataKind.WEIGHT_DIFF, data=held).to_shareable()
    return from_shareable(filter_.process(shareable, FLContext())).data


def ours(defense: object, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    update = Update({name: torch.from_numpy(array) for name, array in arrays.items()})
    return {name: g.numpy() for name, g in defense(update).gradients.items()}


def test_percentile() -> None:
    found, expected = ours(NvflarePercentile(), change()), theirs(PercentilePrivacy(), change())
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-12)
    # it does something
    assert 0 < sum(int((array == 0).sum()) for array in expected.values()) < 100


@pytest.mark.parametrize("told", [None, "bias$", ["fc.weight"]])
def test_exclude_vars(told) -> None:
    expected = theirs(ExcludeVars(exclude_vars=told), change())
    assert list(ours(NvflareExcludeVars(exclude_vars=told), change())) == list(expected)


def test_svt(monkeypatch) -> None:
    """As many entries, no larger, by noise of the same scales; and the same entries where every
    draw is zero and all are sent."""
    np.random.seed(0)
    torch.manual_seed(0)
    scales: tuple[list[float], list[float]] = [], []
    draw, own_draw = np.random.laplace, platforms._laplace
    monkeypatch.setattr(
        np.random, "laplace", lambda **given: scales[0].append(given["scale"]) or draw(**given)
    )
    monkeypatch.setattr(
        platforms, "_laplace", lambda *given: scales[1].append(given[1]) or own_draw(*given)
    )
    drawn, mine = theirs(SVTPrivacy(), change()), ours(NvflareSVT(), change())
    counts = [sum(int((array != 0).sum()) for array in arrays.values()) for arrays in (drawn, mine)]
    assert counts[0] == pytest.approx(counts[1], abs=8)
    assert max(float(np.abs(array).max()) for array in mine.values()) <= 1e-5
    np.testing.assert_allclose(sorted(set(scales[1])), sorted(set(scales[0])), rtol=1e-12)
    assert len(set(scales[0])) == 3  # of the threshold, the entries asked, and the entries sent
    every = {"fraction": 1.0, "gamma": 0.01, "tau": 0.0}
    monkeypatch.setattr(np.random, "laplace", lambda **given: np.zeros(given.get("size", ())))
    monkeypatch.setattr(platforms, "_laplace", lambda *given: given[2].new_zeros(given[0]))
    monkeypatch.setattr(torch, "randint", lambda high, *_, **__: torch.arange(high))
    found, expected = (
        ours(NvflareSVT(**every), change()),
        theirs(SVTPrivacy(**every, replace=False), change()),
    )
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-12)
