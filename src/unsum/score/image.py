"""Picture quality, one number per picture. Averages are taken over these, never over the batch's pooled pixels."""

from __future__ import annotations

from torch import Tensor

_PERFECT = 100.0  # dB at which a difference is below what float32 pixels hold; keeps averages finite


def psnr(found: Tensor, true: Tensor) -> float:
    """10 log10(1 / MSE) of one (3, h, w) picture in [0, 1], at most 100 dB."""
    from torchmetrics.functional.image import peak_signal_noise_ratio

    return min(float(peak_signal_noise_ratio(found[None], true[None], data_range=1.0)), _PERFECT)


def ssim(found: Tensor, true: Tensor) -> float:
    """Structural similarity of one (3, h, w) picture in [0, 1], 11×11 Gaussian window."""
    from torchmetrics.functional.image import structural_similarity_index_measure

    value = structural_similarity_index_measure(found[None], true[None], data_range=1.0)
    return float(value)  # type: ignore[arg-type]  # a tensor unless a full map is asked for
