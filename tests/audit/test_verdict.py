from __future__ import annotations

import pytest
import torch

from unsum import Leak
from unsum.audit import judge
from unsum.score import SampleScore


def sample(error: float, label: float = 1.0, psnr: float = float("nan")) -> SampleScore:
    return SampleScore(0, label, 0.0, error, 0.0, psnr, 0.0, 0.0)


def leak(size: int, exact: bool = False) -> Leak:
    targets = torch.eye(4)[:size]
    return Leak("test", targets, targets, targets, residual=0, predicted_error=0, exact=exact)


@pytest.mark.parametrize(
    ("errors", "labels", "level", "leakage"),
    [
        ([1e-6, 1e-6], [1, 1], "severe", 1.0),
        ([1e-6, 0.9], [1, 1], "partial", 0.5),
        ([0.9, 0.8], [1, 1], "labels", 0.0),
        ([0.9, 0.8], [0, 1], "low", 0.0),
        ([0.9, 0.8], [0, 0], "low", 0.0),
        ([float("inf"), 0.1], [0, 1], "partial", 0.5),
    ],
)
def test_levels(errors: list[float], labels: list[float], level: str, leakage: float) -> None:
    verdict = judge(leak(2), [sample(e, y) for e, y in zip(errors, labels, strict=True)])
    assert (verdict.level, verdict.share) == (level, leakage)


def test_sentences_count_right() -> None:
    verdict = judge(leak(2, exact=True), [sample(1e-6, psnr=25.0), sample(0.05, psnr=12.0)])
    text = " ".join(verdict.details)
    for part in ("2 of 2 labels", "1 of 2 samples", "1 of 2 pictures", "mean 18.5 dB", "calls the answer exact"):
        assert part in text


def test_a_wrong_batch_size_is_said() -> None:
    fewer = " ".join(judge(leak(1), [sample(1.0), sample(1.0)]).details)
    more = " ".join(judge(leak(3), [sample(1.0), sample(1.0)]).details)
    assert "took the batch for 1 instead of 2 samples." in fewer
    assert "took the batch for 3 instead of 2 samples; each true sample is compared" in more


def test_a_sample_that_was_not_found_did_not_come_back() -> None:
    gray = SampleScore(None, 0.0, 1.0, 1.0, 0.0, psnr=30.0, ssim=0.9, lpips=0.1)  # a grayish photo, "recovered" as gray
    verdict = judge(leak(1), [sample(1e-6, psnr=25.0), gray])
    assert any(detail.startswith("1 of 2 pictures") for detail in verdict.details)
