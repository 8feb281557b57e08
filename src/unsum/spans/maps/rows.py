"""What a 1×1 convolution read, place by place, out of its gradient: ∇W = Dᵀ X, one equation for
every output channel.

In eval mode D = (γ/σ) d is known, and X follows at once. In train mode BatchNorm sends back

    D = (γ/σ) (d − ∇β/N − x̂ ∇γ/N),

and two things in it are open: the deviation σ of every channel, and the normalized output x̂ where
the relu behind it is off.

- Whatever X is, diag(σ/γ) ∇W must lie in the span of the columns of D·(σ/γ). These are linear
  equations in σ, many times more
  than there are channels: σ is the vector that they leave, but for one factor that all channels
      share.
- Where the relu is on, what it wrote tells x̂. Where it is off, x̂ is taken from X, in rounds: at
  first from the mean that it must have there, since all x̂ of a channel add up to zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.network.conv_pair import ConvLayer
from unsum.peel.dense import SPARE
from unsum.update import Update

_ROUNDS = 60  # of x̂ where the relu is off; each takes about half of its error away
_SETTLED = 1e-7  # relative change of all rows in a round below which nothing moves any more
_SILENT = 1e-9  # of the loudest channel: those below send nothing
_ALIVE = 1e-4  # of the median γ: channels below send rounding alone
_WIDE = 1e-13  # of the largest eigenvalue: directions below are none
_RIDGE = 1e-13  # of a diagonal of ones, for Cholesky to stand rounding
# of inverse iteration: the next eigenvalue is ten times larger, and a million times at the end
_POWERS = 8


@dataclass(frozen=True)
class Behind:
    """A 1×1 convolution and its BatchNorm: parameters and their gradients, in float64."""

    train: bool
    W: Tensor  # (O, I)
    grad: Tensor  # (O, I)
    gamma: Tensor
    beta: Tensor
    grad_gamma: Tensor
    grad_beta: Tensor
    deviation: Tensor  # running

    @classmethod
    def of(
        cls, layer: ConvLayer, update: Update, device: torch.device, *, train: bool
    ) -> Behind | None:
        """None where a parameter, or a gradient, is missing."""
        norm = layer.batch_norm
        sent = (update.gradients.get(f"{layer.norm_name}.{part}") for part in ("weight", "bias"))
        if norm is None or norm.running_var is None or layer.conv.bias is not None:
            return None
        held = (
            layer.conv.weight,
            layer.grad,
            norm.weight,
            norm.bias,
            *sent,
            (norm.running_var + norm.eps).sqrt(),
        )
        whole = [part.detach().to(device).double() for part in held if part is not None]
        if len(whole) < len(held):
            return None
        W, grad, *vectors = whole
        return cls(train, W.flatten(1), grad.flatten(1), *vectors)


@dataclass(frozen=True)
class ReadRows:
    """Rows (N, I), in train mode less their mean and but for one factor of all, with deviations
    (N,); and x̂ (N, O)."""

    rows: Tensor
    deviations: Tensor
    normed: Tensor


def where_on(written: Tensor, behind: Behind) -> tuple[Tensor, Tensor]:
    """(x̂ (N, O), where it is sure): from what the relu wrote, where that is on; elsewhere the mean
    that is left for it."""
    on = written > 0
    x = (written - behind.beta) / torch.where(behind.gamma.abs() > 0, behind.gamma, torch.inf)
    return torch.where(on, x, -(x * on).sum(0) / (~on).sum(0).clamp_min(1)), on


def read_rows(behind: Behind, d: Tensor, normed: Tensor, on: Tensor) -> ReadRows | None:
    """From d (N, O) behind the BatchNorm and x̂ (N, O), which is sure where `on`; None where that
    does not determine them."""
    N, heard = len(d), d.norm(dim=0)
    alive = (heard > _SILENT * heard.max()) & (
        behind.gamma.abs() > _ALIVE * behind.gamma.abs().median()
    )
    if int(alive.sum()) < N - int(behind.train) + SPARE:
        return None
    gamma, grad = behind.gamma[alive], behind.grad[alive]
    if not behind.train:
        return ReadRows(
            *_RowEquations.of(d[:, alive] * (gamma / behind.deviation[alive])).solved(grad), normed
        )
    d, x, on = d[:, alive], normed[:, alive], on[:, alive]
    basis = torch.linalg.svd(grad, full_matrices=False)[2][: N - 1]  # all rows lie there
    grad, W = grad @ basis.T, behind.W[alive] @ basis.T
    centered, share, before = (
        d - d.mean(0),
        behind.grad_gamma[alive] / N,
        torch.zeros_like(grad[:1]),
    )
    for _ in range(_ROUNDS):
        equations = _RowEquations.of(centered - share * (x - x.mean(0)))
        sigma = equations.stretched(grad / gamma[:, None])
        rows, deviations = equations.solved(grad * (sigma / gamma)[:, None])
        x = torch.where(on, x, rows @ W.T / sigma)
        if float((rows - before).norm()) < _SETTLED * float(rows.norm()):
            break
        before = rows
    if not bool((sigma > 0).all()):
        return None
    normed = normed.clone()
    normed[:, alive] = x
    return ReadRows(rows @ basis, deviations, normed)


@dataclass(frozen=True)
class _RowEquations:
    """Dᵀ rows = something (O, I), every channel in units of its own size: M = D / size, and the
    eigenvectors of M Mᵀ."""

    M: Tensor  # (N, O)
    size: Tensor  # (O,)
    vectors: Tensor  # (N, rank) orthonormal
    values: Tensor  # (rank,)

    @classmethod
    def of(cls, D: Tensor) -> _RowEquations:
        size = D.norm(dim=0).clamp_min(1e-300)
        M = D / size
        values, vectors = torch.linalg.eigh(M @ M.T)
        kept = values > _WIDE * values[-1]
        return cls(M, size, vectors[:, kept], values[kept])

    def solved(self, right: Tensor) -> tuple[Tensor, Tensor]:
        """(rows (N, I), deviations (N,)): least squares."""
        right = right / self.size[:, None]
        inverse = (self.vectors / self.values) @ self.vectors.T
        rows = inverse @ (self.M @ right)
        spare = max(1, self.M.shape[1] - len(self.values))
        left = (right - self.M.T @ rows).square().sum() / spare
        return rows, (inverse.diagonal().clamp_min(0) * left).sqrt()

    def stretched(self, right: Tensor) -> Tensor:
        """(O,) factors, but for a common one, with which diag(factors) right lies in the span of
        Dᵀ.

        What of it lies outside is a quadratic form in the factors; inverse iteration finds the
        vector that it leaves smallest.
        """
        span = self.M.T @ (self.vectors * self.values.rsqrt())  # (O, rank) orthonormal
        right = right / self.size[:, None]
        form = -(span @ span.T) * (right @ right.T)
        form.diagonal().add_(right.square().sum(1))
        unit = form.diagonal().clamp_min(1e-300).rsqrt()
        form = form * unit[:, None] * unit
        form.diagonal().add_(_RIDGE)
        factor = torch.linalg.cholesky_ex(form)[0]
        found = torch.ones_like(unit)[:, None] / unit[:, None]
        for _ in range(_POWERS):
            found = torch.cholesky_solve(found / found.norm(), factor)
        found = found[:, 0] * unit
        return found / found.norm() * found.sum().sign()
