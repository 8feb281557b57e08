"""L-BFGS without a line search, as torch.optim.LBFGS takes its steps, but with the direction in
matrix form.

With the last m steps s and changes of gradient y as rows of S and Y, R the upper triangle of S Yᵀ,
D its diagonal and γ = sᵀy / yᵀy of the last pair,

    H g = γ g + Sᵀ (R⁻ᵀ (D + γ Y Yᵀ) R⁻¹ S g − γ R⁻ᵀ Y g) − γ Yᵀ R⁻¹ S g

which is what the two loops over the history compute in hundreds of small operations. Written here
because of that: for a few thousand pixels torch's loops take as long as the network.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

_LEAST_CURVATURE = 1e-10  # sᵀy below which torch, too, forgets a step
# numbers of a block: small pictures have one for all pairs, large ones take a few at a time
_BLOCK = 2**24


class Memory:
    """One restart's history in a ring: row 2i of it is a step, row 2i + 1 the change of gradient
    that came with it.

    The rows stand in blocks of `rows` each, the last of which may be too long.
    """

    def __init__(self, like: Tensor, history: int, *, block: int = _BLOCK) -> None:
        self.m = history
        self.rows = 2 * min(history, max(1, block // (2 * like.numel())))
        self.blocks: list[Tensor] = []
        # pairs · Yᵀ
        self.products = torch.zeros(2 * history, history, dtype=torch.float64, device=like.device)
        self.count = 0
        self.gamma = 1.0
        self.gradient: Tensor | None = None
        self.step: Tensor | None = None

    def clear(self) -> None:
        self.count, self.gamma, self.gradient, self.step = 0, 1.0, None, None

    def direction(self, gradient: Tensor, rate: float) -> Tensor:
        """The step to take from a point with this gradient; remembers both for the next."""
        if self.gradient is None or self.step is None:
            step = -gradient * (rate * min(1.0, 1.0 / float(gradient.abs().sum())))
        else:
            onto = self._remembered(self.step, gradient - self.gradient, gradient)
            step = self._newton(gradient, onto).mul_(-rate)
        self.gradient, self.step = gradient.clone(), step
        return step

    def _remembered(self, s: Tensor, y: Tensor, gradient: Tensor) -> Tensor:
        """Put a new pair into the ring; returns the products of all pairs with the gradient."""
        curvature = float(y.dot(s))
        if not curvature > _LEAST_CURVATURE:
            return self._onto(gradient)
        place = self.count % self.m
        if 2 * place >= self.rows * len(self.blocks):
            self.blocks.append(s.new_zeros(self.rows, s.numel()))
        block, row = self.blocks[2 * place // self.rows], 2 * place % self.rows
        block[row], block[row + 1] = s, y
        self.count += 1
        held = self.held
        onto_y = self._onto(y)  # twice mv: mm with two columns takes several times as long on a CPU
        self.products[: 2 * held, place] = onto_y
        self.products[2 * place + 1, :held] = onto_y[1::2]
        self.gamma = curvature / float(y.dot(y))
        return self._onto(gradient)

    def _used(self) -> Iterator[Tensor]:
        for number, block in enumerate(self.blocks):
            yield block[: max(0, 2 * self.held - number * self.rows)]

    def _onto(self, vector: Tensor) -> Tensor:
        """The products of all rows with a vector."""
        parts = [block.mv(vector) for block in self._used()] or [vector.new_zeros(0)]
        return torch.cat(parts).double()

    @property
    def held(self) -> int:
        return min(self.count, self.m)

    def _newton(self, gradient: Tensor, onto: Tensor) -> Tensor:
        """H g, in float64 where it is small."""
        if self.count == 0:
            return gradient.clone()
        held = self.held
        # oldest first
        order = torch.arange(self.count - held, self.count, device=gradient.device) % self.m
        Sg, Yg = onto[2 * order], onto[2 * order + 1]
        SY, YY = self.products[2 * order][:, order], self.products[2 * order + 1][:, order]
        # below the diagonal stands what earlier occupants of the ring left
        R, D = SY.triu(), SY.diagonal()
        u = torch.linalg.solve_triangular(R, Sg[:, None], upper=True)[:, 0]
        inner = D * u + self.gamma * (YY.mv(u) - Yg)
        a = torch.linalg.solve_triangular(R.T, inner[:, None], upper=False)[:, 0]
        weights = torch.zeros_like(onto)
        weights[2 * order], weights[2 * order + 1] = a, -self.gamma * u
        step = gradient * self.gamma
        parts = weights.to(gradient).split(self.rows)
        # blocks of an earlier start may be empty
        for block, part in zip(self._used(), parts, strict=False):
            step.addmv_(block.T, part)
        return step
