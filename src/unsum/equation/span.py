"""The span of what a layer read: ∇W = δᵀ X, so every input of the layer lies in the row space of
its gradient.

With fewer positions than H that space is smaller than R^H, and a vector that has nothing to do with
the batch lies outside of it. Noise of σ per entry tilts the measured space: an input x then lies
outside by about σ √(H − R) ‖Σ⁻¹ V x‖.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.equation.noise import unit_of
from unsum.head import gram

# units in the last place of the largest singular value that rounding reaches in the smallest ones
_ROUNDING = 2.5
_CLIENT = 1e-5  # relative difference between the client's forward pass and ours
# of the tilt that independent noise explains, and that rounding does
_DEVIATIONS, _ROUGH_DEVIATIONS = 2.5, 10.0
_PART = 4096  # columns converted to float64 at a time
_ADDED = 10.0  # units in the last place of a usual entry: noise above this was added


@dataclass(frozen=True)
class Span:
    """The R directions (R, H) that stand out of the noise, their singular values (R,), and an
    entry's deviation."""

    V: Tensor
    singular_values: Tensor
    deviation: float
    noisy: bool  # the deviation is more than rounding
    # as many directions as its entries that are not all zero could have: inputs may lie anywhere
    full: bool

    @property
    def rank(self) -> int:
        return len(self.V)

    @property
    def room(self) -> int:
        """How many dimensions are left for a stranger to stand out in."""
        return self.V.shape[1] - self.rank

    def outside(self, x: Tensor) -> Tensor:
        """(n,) the part of each row of x (n, H) outside the span, relative to what noise explains:
        above 1 it is a stranger."""
        x = x.double()
        return self.outside_by(x.square().sum(1), x @ self.V.T)

    def outside_by(self, squares: Tensor, inside: Tensor) -> Tensor:
        """The same from the squared lengths (n,) and the coordinates (n, R) in the span, where
        these are cheaper than x."""
        apart = (squares - inside.square().sum(1)).clamp_min(0).sqrt()
        tilt = self.deviation * self.room**0.5 * (inside / self.singular_values).norm(dim=1)
        allowed: Tensor = (
            _DEVIATIONS if self.noisy else _ROUGH_DEVIATIONS
        ) * tilt + _CLIENT * squares.sqrt()
        return apart / allowed.clamp_min(1e-300)

    @property
    def clearness(self) -> float:
        """How far the faintest direction stands out of the noise."""
        return float(self.singular_values[-1]) / max(self.deviation, 1e-300)


def span_of(gradient: Tensor) -> Span:
    """The row space of a gradient (outputs, H), through the smaller of its Gram matrices, in
    float64."""
    m, H = gradient.shape
    products = gram(gradient.T)  # of columns, where the gradient is square
    values, vectors = torch.linalg.eigh(products)
    singular = values.flip(0).clamp_min(0).sqrt()
    unit = unit_of(gradient)
    rounding = _ROUNDING * unit * float(singular[0])
    # Pure noise has singular values σ|√m ± √H|: the smallest one tells the largest, unless the
    # matrix is square.
    noise = 1.1 * float(singular[-1]) * (m**0.5 + H**0.5) / max(abs(m**0.5 - H**0.5), 0.2 * m**0.5)
    rank = int((singular > max(rounding, noise)).sum())
    tail = singular[rank:]
    level = float(tail.square().mean().sqrt()) / max(m, H) ** 0.5 if len(tail) else 0.0
    usual = float(singular.norm()) / (m * H) ** 0.5
    noisy = level > _ADDED * unit * usual
    leading = vectors.flip(1)[:, :rank].T.contiguous()
    if m < H:  # left directions so far
        leading = torch.cat(
            [leading @ part.double() for part in gradient.split(_PART, dim=1)], dim=1
        )
        leading = leading / singular[:rank, None]
    return Span(
        leading, singular[:rank], level, noisy, rank >= int((products.diagonal() > 0).sum())
    )
