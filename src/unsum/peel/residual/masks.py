"""Which entries of an activation are zero, confirmed by the bias gradient of the BatchNorm that feeds it.

h = ReLU(y), y from a BatchNorm with bias β: ∇β = Σ ∂loss/∂h over the places with h > 0, channel by channel. One entry on the
wrong side changes its channel's sum by its own gradient: the sum shows that there is one, and nearly always which.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.peel.residual.solve import Pin
from unsum.peel.residual.unit import as_maps, as_rows

_DISAGREES = 1e-5  # of the norm of a channel's gradients, at least
_OUTLIER = 8.0  # times the median disagreement
# Times the level asked for: the one that the fewest channels contradict is taken.
_LEVELS = (1.0, 0.5, 0.25, 2.0, 4.0, 8.0)
_NEAR = 3.0  # times the level of the noise: entries that may be on either side
_PAIRS = 60  # entries in doubt up to which two of them are tried together


@dataclass(frozen=True)
class Mask:
    """`positive` (B, C, h, w); `doubtful` channels disagree with their bias gradient, whatever is tried."""

    positive: Tensor
    repaired: int
    doubtful: int

    @property
    def without_zero(self) -> int:
        """Channels that are positive everywhere: nothing shows their mean."""
        return int(self.positive.all(3).all(2).all(0).sum())


def confirmed(maps: Tensor, gradient: Tensor, grad_beta: Tensor, level: float) -> Mask:
    """Positive entries of `maps`: those above about `level`, and where the bias gradient disagrees, those that make it agree."""
    h, d = as_rows(maps), as_rows(gradient)
    size = d.square().sum(0).sqrt()
    # Most channels are right from the start: how little they disagree tells the noise.
    off = (grad_beta - (d * (h > level)).sum(0)).abs() / size.clamp_min(1e-300)
    tolerance = size * max(_DISAGREES, _OUTLIER * float(off.median()))

    def disagreeing(cut: float) -> Tensor:
        return (grad_beta - (d * (h > cut)).sum(0)).abs() > tolerance

    level = min((level * factor for factor in _LEVELS), key=lambda cut: int(disagreeing(cut).sum()))
    positive = h > level
    missing = grad_beta - (d * positive).sum(0)
    bad = disagreeing(level).nonzero().flatten().tolist()
    repaired = 0
    for channel in bad:
        near = (h[:, channel].abs() < _NEAR * level).nonzero().flatten()
        value, slope, now = h[near, channel], d[near, channel], positive[near, channel]
        chosen = _explaining(value, slope, now, float(missing[channel]), float(tolerance[channel]))
        if chosen is not None:
            positive[near, channel] = chosen
            repaired += 1
    return Mask(as_maps(positive, maps.shape), repaired, len(bad) - repaired)


def _explaining(h: Tensor, d: Tensor, now: Tensor, missing: float, tolerance: float) -> Tensor | None:
    """Which of the entries near zero are positive: one of them turned, another threshold, or two turned."""
    if len(h) == 0:
        return None
    turned, nearest = torch.where(now, -d, d), h.abs().argsort()[:_PAIRS]
    best = int((turned - missing).abs().argmin())
    if abs(float(turned[best]) - missing) <= tolerance:
        return now.index_fill(0, nearest.new_tensor([best]), not bool(now[best]))
    order = h.argsort(descending=True)
    sums = torch.cat([d.new_zeros(1), d[order].cumsum(0)]) - (d * now).sum()
    count = int((sums - missing).abs().argmin())
    if abs(float(sums[count]) - missing) <= tolerance:
        return torch.zeros_like(now).index_fill(0, order[:count], True)
    pairs = torch.combinations(nearest)
    off = (turned[pairs].sum(1) - missing).abs()
    if len(pairs) == 0 or float(off.min()) > tolerance:
        return None
    return now.scatter(0, pairs[off.argmin()], ~now[pairs[off.argmin()]])


def scale_by(grad_beta: Tensor | None, gradient: Callable[[Tensor], Tensor]) -> Pin | None:
    """The factor by which maps are too small: their gradients are too large by the same, and ∇β shows how large they are.

    None without ∇β. A weighted median over channels, so that an entry on the wrong side of zero spoils its own channel alone.
    """

    if grad_beta is None:
        return None

    def pin(maps: Tensor, level: float) -> float:
        sums = as_rows(gradient(maps) * (maps > level)).sum(0)
        ratios, order = (sums / grad_beta).sort()
        weights = grad_beta.square()[order].cumsum(0)
        factor = float(ratios[torch.searchsorted(weights, weights[-1] / 2)])
        return min(max(factor, 0.1), 10.0)  # far from the answer sums mean little; one step must not lead further away

    return pin
