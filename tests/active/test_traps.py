"""Trap weights: their make-up, what they read, and what they vouch for."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import unsum
from support.active_photos import SIZE, cut, distances
from unsum import active
from unsum.active.method import on_grid
from unsum.active.traps import fitted_factor, trap_rows

SHAPE = (3, SIZE, SIZE)


def test_rows_are_halves_of_the_same_magnitudes() -> None:
    W = trap_rows(20, 101, 0.95, 0.5, torch.Generator().manual_seed(0))
    for row in W:
        low, high = (-row[row < 0]).sort().values, row[row > 0].sort().values
        assert len(low) == len(high) == 50
        torch.testing.assert_close(high, 0.95 * low)
    assert abs(float(W[W < 0].square().mean().sqrt()) - 0.5) < 0.03
    assert len({tuple((row < 0).tolist()) for row in W}) == 20


def test_the_factor_is_fitted_to_the_number_of_pixels() -> None:
    """Inputs of independent pixels excite a row as often as a Gaussian exceeds 1.5: one time in
    fifteen."""
    generator = torch.Generator().manual_seed(0)
    for size in (768, 12288):
        x = (0.447 + 0.23 * torch.randn(200, size, generator=generator)).clamp(0, 1)
        W = trap_rows(
            200, size, fitted_factor(size, float(x.mean()), float(x.std(1).mean())), 0.5, generator
        )
        share = float((x @ W.T > 0).float().mean())
        assert 0.05 < share < 0.09


@pytest.mark.parametrize("grid", [True, False])
def test_what_rows_agree_on_is_a_photo(plain: nn.Sequential, grid: bool) -> None:
    count = 0
    for seed in range(4):
        x = cut(12, seed, grid=grid)
        changed, reader = active.modify(plain, "traps", shape=SHAPE, seed=seed)
        found = reader.read(unsum.capture(changed, x, torch.arange(12)))
        # elsewhere siblings may share a row
        assert torch.equal(found.exact, on_grid(found.inputs.double()))
        assert not grid or bool(found.exact.all())
        psnr, partner = distances(found.inputs, x).max(1)
        assert float(psnr.min()) > 60
        assert len(set(partner.tolist())) == len(partner)  # no photo twice
        count += len(partner)
    assert count >= 24  # of 48


def test_rows_that_several_samples_excite_are_not_vouched_for(plain: nn.Sequential) -> None:
    """With a factor of one half of the samples excite every row: nearly all readings are
    mixtures."""
    x = cut(16, seed=2, grid=False)
    changed, reader = active.modify(plain, "traps:factor=1.0", shape=SHAPE)
    found = reader.read(unsum.capture(changed, x, torch.arange(16)))
    assert found.exact.tolist() == [False]
    assert "0 samples were alone" in found.notes[0]
    one = reader.read(replace(unsum.capture(changed, x[:1], torch.tensor([3])), batch_size=1))
    assert one.exact.tolist() == [True]
    assert float(distances(one.inputs, x[:1])) > 100


def test_nothing_excited_is_said(plain: nn.Sequential) -> None:
    changed, reader = active.modify(plain, "traps:factor=0.1,rows=8", shape=SHAPE)
    leak = active.attack(changed, unsum.capture(changed, cut(3), torch.arange(3)), reader)
    assert not bool(leak.inputs_exact.any())
    assert "Of 8 rows 0 were excited" in leak.notes[0]
