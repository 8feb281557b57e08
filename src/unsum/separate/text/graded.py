"""How likely it is that a layer read a vector, where noise or rounding blurs the layer's span.

The gradient is ∇W = δᵀ X + σ E with E standard normal. Whatever the layer read is x = (δᵀ X)ᵀ w for
some weights w of its outputs, so x − ∇Wᵀ w = −σ Eᵀ w: normal with a variance of σ² ‖w‖² in each of
the H dimensions. A vector that few and small weights explain is likely, one that needs large ones
or leaves a residual is not. The weights are those of a ridge regression, whose strength is chosen
for each vector by the likelihood itself. Noise is taken off the singular values before.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

# [times the largest singular value that noise of this size has] from which a direction is the
# client's. Chosen by: the largest value fluctuates by a few per cent at 100 dimensions.
_EDGE = 1.05
_ROUNDS = 30  # [iterations] until rank and noise agree. Chosen by: 3 to 8 were needed.
_SCALINGS = 3  # [rounds] of rows and columns. Chosen by: a fourth changes them by less than 1 %.
_RIDGES = 9  # [strengths] that are tried. Chosen by: two for each decade of singular values.
# [relative] what a client's forward pass and ours differ by. Chosen by: float32's rounding.
_CLIENT = 1e-5


class GradedSpan:
    """The row space of a gradient (outputs, H) with noise of `deviation` on every entry.

    `rank` directions stand out of the noise. Rounding to sixteen bits is noise in proportion to
    each entry: rows and columns are scaled to one size before, so that its size is the same
    everywhere. Scaled rows span the same space, and scaled columns that of scaled vectors.

    `known` (n, H) was read by the layer for sure: it is taken out of the gradient and of every
    vector, so that what else was read stands out more.
    """

    def __init__(
        self, gradient: Tensor, *, rounded: bool = False, known: Tensor | None = None
    ) -> None:
        G = gradient.double()
        self._columns = torch.ones(G.shape[1], dtype=G.dtype, device=G.device)
        for _ in range(_SCALINGS if rounded else 0):
            G = G / _sizes(G, 1)[:, None]
            columns = _sizes(G, 0)
            G, self._columns = G / columns, self._columns * columns
        self._rest: Tensor | None = None
        if known is not None and 0 < len(known) < G.shape[1] - 1:
            taken = torch.linalg.qr((known.double() / self._columns).T, mode="complete")[0]
            self._rest = taken[:, len(known) :]
            G = G @ self._rest
        m, H = G.shape
        _, singular, vectors = torch.linalg.svd(G, full_matrices=False)
        squares, most, rank, variance = singular.square(), min(m, H) - 1, 0, 0.0
        for _ in range(_ROUNDS):
            variance = float(squares[rank:].sum()) / ((m - rank) * (H - rank))
            edge = _EDGE**2 * variance * ((m - rank) ** 0.5 + (H - rank) ** 0.5) ** 2
            found = min(most, int((squares > edge).sum()))
            if found <= rank:
                break
            rank = found
        self.rank, self.deviation = rank, variance**0.5
        self._squares = (squares[:rank] - (m - rank) * variance).clamp_min(1e-300)
        self._vectors = vectors[:rank].T

    @cached_property
    def _ridges(self) -> tuple[Tensor, Tensor]:
        """(R, ridges) what each direction leaves of a vector, and the squared weight it takes."""
        squares = self._squares[:, None]
        ends = self._squares[[0, -1]].log10().tolist()
        ridges = torch.logspace(ends[1] - 4, ends[0], _RIDGES).to(squares)
        return (ridges / (squares + ridges)).square(), squares / (squares + ridges).square()

    def likelihood(self, x: Tensor) -> Tensor:
        """(n,) by how many nats each row of x (n, H) is likelier read by the layer than a stranger
        of its length; 0 where it is none of what the layer shows."""
        x = x.double() / self._columns
        whole = x.square().sum(1, keepdim=True)
        x = x if self._rest is None else x @ self._rest
        sizes, H = x.square().sum(1, keepdim=True).clamp_min(1e-300), x.shape[1]
        if self.rank == 0:
            return torch.zeros(len(x), dtype=x.dtype, device=x.device)
        inside = (x @ self._vectors).square()
        kept, weights = self._ridges
        left = (sizes - inside.sum(1, keepdim=True)).clamp_min(0) + inside @ kept
        spread = self.deviation**2 * (inside @ weights) + _CLIENT**2 * whole / H
        nats = H / 2 * (1 - (H * spread / sizes).log()) - left / (2 * spread)
        return nats.amax(1).clamp_min(0)


def _sizes(G: Tensor, along: int) -> Tensor:
    """The usual size of an entry in each row or column; 1 where there is nothing."""
    sizes = G.square().mean(along).sqrt()
    return sizes.where(sizes > 0, 1.0)
