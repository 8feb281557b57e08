"""The two spaces that a dense layer's gradient gives away: what it read, and the gradients at what
it wrote.

∇W = Dᵀ A, with a row of A and of D for every sample. While there are fewer samples than the matrix
has rows and columns, the row space of ∇W is the span of A and its column space the span of D. A
bias reads a 1 from everybody: [∇W, ∇b] = Dᵀ [A, 1].
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from unsum.equation.noise import unit_of
from unsum.head import orthonormal_rows
from unsum.network.products import left_product, right_product

# times the largest singular value that noise of the measured size should have (Marchenko–Pastur)
_EDGE = 1.3
_ROUNDED = 2.0  # times what rounding of every entry makes: sums round more than once
_GRAM = 6e-8  # of the largest singular value: what squares in float64 resolve
_TAIL = 16  # values at least that can look like noise
_SKETCH = 256  # directions of a random sketch: batches up to this are read of it
_MOST = 0.8  # of all directions that samples may take for the rest to be recognized as noise


class SentLayer(Protocol):
    """What an update holds of one layer: ∇W (m, n), and ∇b (m,) where there is one."""

    @property
    def grad_W(self) -> Tensor: ...

    @property
    def grad_b(self) -> Tensor | None: ...


@dataclass(frozen=True)
class LayerSpan:
    """Row space (N, n [+ 1]) and column space (N, m) of one layer's gradient, orthonormal; singular
    values (N,) descending; the gradient in these coordinates, core (N, N) = columns · ∇W · rowsᵀ,
    so that nobody needs the whole again.

    `noise` is the standard deviation of an entry, and `noise_share` all of it, relative to the
    gradient.
    """

    rows: Tensor
    columns: Tensor
    values: Tensor
    core: Tensor
    noise: float
    noise_share: float
    has_bias: bool
    noisy: bool  # more than rounding hides the directions that are missing
    quiet: bool  # directions are missing, and only rounding hides them
    # as many directions as the matrix has rows or columns: there may be more samples than
    # directions
    full: bool

    def __len__(self) -> int:
        return len(self.values)

    @property
    def lacking(self) -> bool:
        """Whether a direction of the rows belongs to no column: it was found otherwise
        (`missing`)."""
        return len(self.columns) < len(self.rows)

    @property
    def points(self) -> tuple[Tensor, Tensor]:
        """(origin (N,), directions (k, N)) of t such that t · rows may have been read: with a bias,
        a 1 beside it."""
        if not self.has_bias:
            eye = torch.eye(len(self), dtype=torch.float64, device=self.rows.device)
            return torch.zeros_like(eye[0]), eye
        ones = self.rows[:, -1]  # t · ones = 1: the entry that the bias reads
        return ones / ones.square().sum(), torch.linalg.qr(ones[:, None], mode="complete")[0][
            :, 1:
        ].T.contiguous()

    def extended(self, rows: Tensor) -> Tensor:
        """Rows (…, n) with the 1 that a bias reads, where there is one."""
        return torch.cat([rows, torch.ones_like(rows[..., :1])], dim=-1) if self.has_bias else rows

    def outside(self, rows: Tensor) -> Tensor:
        """The part of each row (…, n) that the row space does not hold."""
        rows = self.extended(rows)
        return rows - (rows @ self.rows.T) @ self.rows

    def without(
        self, delta: Tensor, read: Tensor, rank: int, left_behind: float = 0.0
    ) -> LayerSpan:
        """The spaces of the gradient less that of found samples, δ (R, m) and what they read (R,
        n): `rank` directions.

        Samples lie in the two spaces, so all is done there. What they err by stays behind, as noise
        of an entry.
        """
        core = self.core - (delta @ self.columns.T).T @ (self.extended(read) @ self.rows.T)
        # a GPU takes ten times as long for it
        U, values, V = (part.to(core) for part in torch.linalg.svd(core.cpu()))
        U, values, V = U[:, :rank].T, values[:rank], V[:rank]
        rows, columns = V @ self.rows, U @ self.columns
        return replace(
            self,
            rows=rows,
            columns=columns,
            values=values,
            core=values.diag(),
            noise=self.noise + left_behind,
        )

    def first(self, rank: int) -> LayerSpan:
        """Its strongest directions alone."""
        rows, columns, values = (part[:rank] for part in (self.rows, self.columns, self.values))
        return replace(
            self,
            rows=rows,
            columns=columns,
            values=values,
            core=self.core[:rank, :rank],
            full=False,
        )

    @classmethod
    def of(cls, step: SentLayer, rank: int | None = None, rounded: float = 0.0) -> LayerSpan:
        """The spaces of a layer's gradient, with the directions that stand out of its noise, or so
        many as `rank` says.

        `rounded` is the deviation of an entry at most that the rounding of something else, weights
        say, has left in it.
        """
        matrix, bias = step.grad_W, step.grad_b
        m, n = matrix.shape[0], matrix.shape[1] + (bias is not None)
        wide = m <= n
        values, vectors, rest = _spectrum(matrix, bias, wide=wide)
        rounding = max(rounding_of(matrix), rounded)
        noise, found = _above_noise(values, m, n, rounding, rest)
        noise = noise if rank is None else min(noise, rounding)
        if rounded and len(values) - found >= _TAIL:  # what it has left indeed
            noise = min(noise, max(rounding_of(matrix), _noise_of(values, m, n, rest, found)))
        found = max(1, found if rank is None else min(rank, int((values > 0).sum())))
        side = vectors[:, :found].T  # (N, m) or (N, n)
        other = orthonormal_rows(
            _times(side, matrix, bias) if wide else _transposed_times(side, matrix, bias)
        )
        rows, columns = (other, side) if wide else (side, other)
        # Units that no sample drives leave rows of zeros, and those that none switches on columns
        # of zeros.
        most = min(int(matrix.any(1).sum()), int(matrix.any(0).sum()) + (bias is not None))
        share = noise * (m * n) ** 0.5 / max(float(values.norm()), 1e-300)
        noisy, full = rank is None and noise > rounding, found >= most
        core, has_bias = _times(columns, matrix, bias) @ rows.T, bias is not None
        return cls(
            rows,
            columns,
            values[:found],
            core,
            noise,
            share,
            has_bias,
            noisy,
            not noisy and not full,
            full,
        )


def rounding_of(matrix: Tensor) -> float:
    """The standard deviation of an entry by rounding alone."""
    size = float(torch.linalg.vector_norm(matrix.float())) / matrix.numel() ** 0.5
    return _ROUNDED * 0.29 * unit_of(matrix) * size


def _spectrum(matrix: Tensor, bias: Tensor | None, *, wide: bool) -> tuple[Tensor, Tensor, float]:
    """(singular values, vectors of the shorter side as columns, what of the square all others
    hold).

    Of small matrices all; of large ones the first few, by a random sketch (Halko, Martinsson and
    Tropp, 2011), while these hold every sample: a batch is far smaller than such a layer, and
    squaring the whole takes a hundred times as long.
    """
    side = min(matrix.shape[0], matrix.shape[1] + (bias is not None))
    for size in (_SKETCH, 4 * _SKETCH):
        if 4 * size > side:
            break
        found = _sketched(matrix, bias, size, wide=wide)
        rounds = rounding_of(matrix) * (matrix.shape[0] ** 0.5 + matrix.shape[1] ** 0.5)
        if float(found[0][-1]) < max(_EDGE * rounds, _GRAM * float(found[0][0])):
            return found
    values, vectors = torch.linalg.eigh(_gram(matrix, bias, wide=wide))
    return values.flip(0).clamp_min(0).sqrt(), vectors.flip(1), 0.0


def _sketched(
    matrix: Tensor, bias: Tensor | None, size: int, *, wide: bool
) -> tuple[Tensor, Tensor, float]:
    generator = torch.Generator().manual_seed(0)
    length = matrix.shape[0] if wide else matrix.shape[1] + (bias is not None)
    start = torch.randn(size, length, generator=generator, dtype=torch.float64).to(matrix.device)
    there, back = (_times, _transposed_times) if wide else (_transposed_times, _times)
    turned = orthonormal_rows(there(start, matrix, bias))
    side = orthonormal_rows(back(turned, matrix, bias))
    core = there(side, matrix, bias)
    values, inner = torch.linalg.eigh(core @ core.T)
    values = values.flip(0).clamp_min(0).sqrt()
    total = float(torch.linalg.vector_norm(matrix, dtype=torch.float64)) ** 2
    total += 0.0 if bias is None else float(bias.double().square().sum())
    return values, (inner.flip(1).T @ side).T, max(total - float(values.square().sum()), 0.0)


def _above_noise(values: Tensor, m: int, n: int, rounding: float, rest: float) -> tuple[float, int]:
    """(noise of an entry, number of singular values above it); `rest` is the square of values that
    are not listed.

    Rounding is known. Where all values stand above it, noise was added, or there are as many
    samples as directions: noise is what looks like noise, a tail whose largest value is no larger
    than its root mean square allows.
    """
    root = (m - torch.arange(len(values))) ** 0.5 + (n - torch.arange(len(values))) ** 0.5
    resolved = _GRAM * float(values[0])
    found = int((values > max(_EDGE * rounding * float(root[0]), resolved)).sum())
    if found <= _MOST * len(values):  # square matrices of noise have a few tiny values as well
        return rounding, found
    noises = values.new_tensor(
        [_noise_of(values, m, n, rest, first) for first in range(len(values))]
    ).cpu()
    like_noise = (values.cpu() < _EDGE * noises * root).nonzero()[:, 0]
    first = int(like_noise[0]) if len(like_noise) else len(values)
    if first > _MOST * len(values) or len(values) - first < _TAIL:  # the last few always do
        return rounding, found
    return float(noises[first]), first


def _noise_of(values: Tensor, m: int, n: int, rest: float, first: int) -> float:
    """The deviation of an entry of (m, n) numbers if all singular values from the `first` on are
    noise."""
    return (float(values[first:].square().sum() + rest) / ((m - first) * (n - first))) ** 0.5


def _gram(matrix: Tensor, bias: Tensor | None, *, wide: bool) -> Tensor:
    """[∇W, ∇b] times its transpose, or the other way round, in float64, block by block."""
    m, n = matrix.shape
    size = m if wide else n + (bias is not None)
    gram = torch.zeros(size, size, dtype=torch.float64, device=matrix.device)
    step = max(1, (1 << 22) // m) if wide else max(1, (1 << 22) // n)
    for start in range(0, n if wide else m, step):
        block = (
            matrix[:, start : start + step].double()
            if wide
            else matrix[start : start + step].double()
        )
        if bias is not None and not wide:
            block = torch.cat([block, bias[start : start + step, None].double()], dim=1)
        gram.addmm_(block, block.T) if wide else gram.addmm_(block.T, block)
    if bias is not None and wide:
        gram.addr_(bias.double(), bias.double())
    return gram


def _times(side: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    product = left_product(side, matrix)[0]
    return product if bias is None else torch.cat([product, (side @ bias.double())[:, None]], dim=1)


def _transposed_times(side: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    n = matrix.shape[1]
    product = right_product(matrix, side[:, :n]).T
    return product if bias is None else product + side[:, n:] * bias.double()
