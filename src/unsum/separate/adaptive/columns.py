"""Features column by column: with G known, every column of ∇W = α Eᵀ F is a small least-squares problem of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from unsum.head import Head

_AFFORDABLE = 3e10  # multiplications for the normal matrices of all columns, above which only label rows are used
_BLOCK = 1 << 24  # entries handled at a time


def fit_all(head: Head, E: Tensor, alpha: float, sigma: float, rows: Tensor | None) -> tuple[Tensor, Tensor]:
    """(g, H) features and (g,) their standard deviations, where every entry of ∇W carries noise of the same size.

    E (g, C) is P − Y summed over each group; `rows` are the classes to use, all by default.
    """
    used = E if rows is None else E[:, rows]
    N = alpha**2 * used @ used.T
    # A direction that nothing determines must not blow up: the ridge is far below any that matters.
    inverse = torch.linalg.pinv(N, rtol=1e-10, hermitian=True)
    Q = head.mixed_rows(alpha * E) if rows is None else alpha * used @ head.grad_W[rows].double()
    return inverse @ Q, sigma * inverse.diagonal().clamp_min(0).sqrt()


def fit_survivors(
    head: Head, E: Tensor, alpha: float, labels: Tensor, mean: Tensor, precision: Tensor, *, signed: bool
) -> Tensor:
    """(g, H) features from the entries that are not zero, with a prior N(mean, 1/precision) on each feature.

    `precision` is in units of one over the variance of an entry of ∇W. Features that come out negative are taken out
    of their column's system and set to zero, unless they may be negative.
    """
    g, C = E.shape
    H = head.grad_W.shape[1]
    rows = labels if g * (g + 1) / 2 * C * H > _AFFORDABLE else torch.arange(C, device=E.device)
    F = torch.empty_like(mean)
    step = max(1, _BLOCK // max(len(rows), g * g))
    coefficient = alpha * E[:, rows]
    upper = torch.triu_indices(g, g, device=E.device)
    products = (coefficient[upper[0]] * coefficient[upper[1]]).float()
    for start in range(0, H, step):
        columns = slice(start, start + step)
        X = head.grad_W[rows, columns].float()
        packed = (products @ (X != 0).float()).double()
        N = packed.new_zeros(X.shape[1], g, g)
        N[:, upper[0], upper[1]] = packed.T
        N[:, upper[1], upper[0]] = packed.T
        Q = (coefficient.float() @ X).double()
        F[:, columns] = _solve(N, Q.T, mean[:, columns].T, precision[:, columns].T, signed=signed).T
    return F


def _solve(N: Tensor, Q: Tensor, mean: Tensor, precision: Tensor, *, signed: bool) -> Tensor:
    """(n, g) solutions of n small systems (N + precision) f = Q + precision·mean, non-negative if they must be."""
    N = N + torch.diag_embed(precision)
    right = Q + precision * mean
    f: Tensor = torch.linalg.solve(N, right)
    if signed:
        return f
    out = torch.zeros_like(f, dtype=torch.bool)
    for _ in range(4):
        negative = f < 0
        if not bool(negative.any()):
            break
        out = out | negative
        keep = (~out).to(N.dtype)
        system = N * keep[:, :, None] * keep[:, None, :] + torch.diag_embed(1 - keep)
        f = torch.linalg.solve(system, right * keep)
    return f.clamp_min(0)


def normal_equations_of_survivors(
    head: Head,
    coefficient: Tensor,
    outside: Tensor,
    features: Tensor,
    present: Tensor,
    labels: Tensor,
    threshold: float,
) -> tuple[Tensor, Tensor]:
    """N (n, n, H) and Q (n, H) of min ‖∇W − outsideᵀ features − coefficientᵀ F‖² over F (n, H), and over the entries of ∇W that
    are not zero or should not be.

    `present` (n, H) are the features as last estimated. A removed entry that they put above the threshold says that they are
    wrong: it counts as one at the threshold. Every other removed entry says nothing. Of the label rows only the first of
    `labels`, the group's own, takes part, in double precision: it is a thousand times larger than the rest.
    """
    n, (C, H) = len(coefficient), head.grad_W.shape
    every = torch.cat([coefficient, outside]).index_fill(1, labels, 0.0).float()
    own, own_outside = coefficient[:, labels[0]], outside[:, labels[0]]
    current = torch.cat([present, features]).float()
    left, right = torch.triu_indices(n, n, device=every.device)
    inner = every[left] * every[right]
    cross = (every[:n, None] * every[None, n:]).flatten(0, 1)
    products = torch.cat([inner, cross])
    N, Q = features.new_empty(n, n, H), features.new_empty(n, H)
    step = max(1, _BLOCK // C)
    for columns in (slice(start, start + step) for start in range(0, H, step)):
        X = head.grad_W[:, columns].float()
        predicted = every.T @ current[:, columns]
        wrong = (X == 0) & (predicted.abs() > threshold)
        X = torch.where(wrong, predicted.sign() * threshold, X)
        found = (products @ (X != 0).float()).double()
        N[left, right, columns] = found[: len(left)]
        N[right, left, columns] = found[: len(left)]
        others = found[len(left) :].view(n, -1, X.shape[1])
        Q[:, columns] = (every[:n] @ X).double() - (others * features[:, columns]).sum(1)
    N += (own[:, None] * own)[:, :, None]
    Q += own[:, None] * (head.grad_W[labels[0]].double() - own_outside @ features)
    return N, Q
