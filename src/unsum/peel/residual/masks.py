"""Which entries of an activation are zero, confirmed by the bias gradient of the BatchNorm that
feeds it.

h = ReLU(y), y from a BatchNorm with bias β: ∇β = Σ ∂loss/∂h over the places with h > 0, channel by
channel. One entry on the wrong side changes its channel's sum by its own gradient: the sum shows
that there is one, and nearly always which.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.network.unit import as_maps, as_rows
from unsum.peel.residual.solve import Pin

_DISAGREES = 1e-5  # of the norm of a channel's gradients, at least
_OUTLIER = 8.0  # times the median disagreement
# Times the level asked for: the one that the fewest channels contradict is taken.
_LEVELS = (1.0, 0.5, 0.25, 2.0, 4.0, 8.0)
_NEAR = 3.0  # times the level of the noise: entries that may be on either side
_ZEROS = 3  # entries of a channel that agree to be the lowest: one always does, two may by chance
_PAIRS = 60  # entries in doubt up to which two of them are tried together


@dataclass(frozen=True)
class Mask:
    """`positive` (B, C, h, w); `unexplained` channels disagree with their bias gradient, whatever
    is tried.

    `open_share` (B,) is the share of each sample's gradient that stands behind entries of which
    nothing tells the sign.
    """

    positive: Tensor
    repaired: int
    unexplained: Tensor  # (C,) bool
    open_share: Tensor

    @property
    def doubtful(self) -> int:
        return int(self.unexplained.sum())

    def without_zero(self, classes: Sequence[tuple[slice, slice]]) -> Tensor:
        """(1, C, h, w) entries of channels with hardly a zero among the places of one of the
        `classes`: nothing shows their mean.

        The lowest entry was taken for a zero; only several that agree are zeros indeed, and only
        where the bias gradient agrees.
        """
        hidden = torch.zeros_like(self.positive[:1])
        for down, across in classes:
            zeros = (~self.positive[..., down, across]).sum((0, 2, 3))
            hidden[..., down, across] = ((zeros < _ZEROS) | self.unexplained)[None, :, None, None]
        return hidden


def confirmed(
    maps: Tensor, gradient: Tensor, grad_beta: Tensor, level: Tensor, *, signed: bool = False
) -> Mask:
    """Positive entries of `maps`, and where the bias gradient disagrees, those that make it agree.

    Zeros of ReLU that were read back scatter by about `level` (B, 1, 1, 1): entries above it are
    positive. Where `signed`, `maps` are values before the ReLU, wrong by at most `level`.
    """
    h, d, levels = as_rows(maps), as_rows(gradient), as_rows(level.expand(-1, 1, *maps.shape[2:]))
    size = d.square().sum(0).sqrt()
    factors = (0.0,) if signed else _LEVELS
    # Most channels are right from the start: how little they disagree tells the noise.
    off = (grad_beta - (d * (h > factors[0] * levels)).sum(0)).abs() / size.clamp_min(1e-300)
    tolerance = size * max(_DISAGREES, _OUTLIER * float(off.median()))

    def disagreeing(factor: float) -> Tensor:
        return (grad_beta - (d * (h > factor * levels)).sum(0)).abs() > tolerance

    factor = min(factors, key=lambda one: int(disagreeing(one).sum()))
    positive = h > factor * levels
    missing = grad_beta - (d * positive).sum(0)
    doubt = h.abs() < _NEAR * max(factor, 1.0) * levels
    bad = disagreeing(factor).nonzero().flatten().tolist()
    unexplained = torch.zeros_like(size, dtype=torch.bool)
    for channel in bad:
        near = doubt[:, channel].nonzero().flatten()
        value, slope, now = h[near, channel], d[near, channel], positive[near, channel]
        chosen = _explaining(value, slope, now, float(missing[channel]), float(tolerance[channel]))
        unexplained[channel] = chosen is None
        if chosen is not None:
            positive[near, channel] = chosen
    # A sign is open where turning it would change the sum by less than can be seen. Few of the
    # zeros that were read back can be positive entries smaller than the noise; of a channel that is
    # not explained, what is missing stands for the wrong ones.
    odds = (
        1.0
        if signed
        else (_NEAR * level / maps.square().mean((1, 2, 3), keepdim=True).sqrt().clamp_min(1e-300))
    )
    unseen = as_maps(d.square() * (doubt & (d.abs() <= tolerance)), maps.shape) * odds
    open_squares = unseen.flatten(1).sum(1) + (missing * unexplained).square().sum()
    share = open_squares.sqrt() / gradient.flatten(1).norm(dim=1).clamp_min(1e-300)
    return Mask(
        as_maps(positive, maps.shape), len(bad) - int(unexplained.sum()), unexplained, share
    )


def _explaining(
    h: Tensor, d: Tensor, now: Tensor, missing: float, tolerance: float
) -> Tensor | None:
    """Which of the entries near zero are positive: one of them turned, another threshold, or two
    turned."""
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
    """The factor by which maps are too small: their gradients are too large by the same, and ∇β
    shows how large they are.

    None without ∇β. A weighted median over channels, so that an entry on the wrong side of zero
    spoils its own channel alone.
    """

    if grad_beta is None:
        return None

    def pin(maps: Tensor, level: Tensor) -> tuple[float, float]:
        sums = as_rows(gradient(maps) * (maps > level)).sum(0)
        factor = _weighted_median(sums / grad_beta, grad_beta.square())
        spread = _weighted_median((sums / grad_beta - factor).abs(), grad_beta.square())
        return factor, spread / max(abs(factor), 1e-300)

    return pin


def _weighted_median(values: Tensor, weights: Tensor) -> float:
    values, order = values.nan_to_num().sort()
    sums = weights[order].cumsum(0)
    return float(values[torch.searchsorted(sums, sums[-1] / 2).clamp_max(len(values) - 1)])
