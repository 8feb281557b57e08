"""PSNR and structural similarity, against torchmetrics."""

from __future__ import annotations

import math

import pytest
import torch
from torchmetrics.functional.image import (
    peak_signal_noise_ratio,
    structural_similarity_index_measure,
)

from unsum.score.pictures import picture_cosine, psnr, ssim


@pytest.mark.parametrize("shape", [(3, 32, 32), (3, 17, 41), (1, 12, 12)])
@pytest.mark.parametrize("noise", [0.0, 1e-3, 0.1, 1.0])
def test_they_are_those_of_the_library(shape: tuple[int, ...], noise: float) -> None:
    torch.manual_seed(0)
    true = torch.rand(shape)
    found = (true + noise * torch.randn(shape)).clamp(0, 1)
    library = peak_signal_noise_ratio(found[None], true[None], data_range=1.0)
    assert psnr(found, true) == pytest.approx(min(float(library), 100.0), rel=1e-5)
    expected = structural_similarity_index_measure(found[None], true[None], data_range=1.0)
    assert ssim(found, true) == pytest.approx(float(expected), abs=2e-5)  # type: ignore[arg-type]


def test_a_flat_picture_has_no_structure_to_lose() -> None:
    flat = torch.full((3, 16, 16), 0.5)
    assert (psnr(flat, flat), ssim(flat, flat)) == (100, pytest.approx(1))


def test_tone_does_not_count_for_the_cosine() -> None:
    photo, other = torch.rand(2, 3, 9, 9, generator=torch.Generator().manual_seed(1)).unbind()
    toned = torch.tensor([0.1, 0.3, 0.2]).view(3, 1, 1) + 0.05 * photo
    assert picture_cosine(toned, photo) == pytest.approx(1)
    assert picture_cosine(1 - photo, photo) == pytest.approx(-1)
    assert abs(picture_cosine(other, photo)) < 0.2
    assert math.isnan(picture_cosine(torch.full_like(photo, 0.5), photo))
