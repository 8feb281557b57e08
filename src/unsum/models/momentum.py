"""What a client's momentum carries from one round into the next, taken off.

A client that keeps its momentum buffer sends m_t = μ m_{t−1} + g_t, and the server has m_{t−1}: it
came the round before. What is left is g_t, a plain gradient. μ shows, too: g_t has few directions,
so m_t − μ m_{t−1} has fewer than m_t. X = m_t⁺ m_{t−1} has the eigenvalue 1/μ for every direction
of m_t that g_t lacks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from unsum.errors import UnsumError, shown
from unsum.running.declared import check_share
from unsum.update import Carried, Update

# units in the last place of the largest singular value: what is smaller is rounding
_RESOLVED = 10.0
_SAME = 1e-3  # relative distance of eigenvalues that are one
_INSIDE = 1e-3  # of m_{t−1} that may lie outside the directions of m_t
# eigenvalues that agree by more than chance, where m_t takes all directions and nothing can lie
# outside
_CHANCE = 3
_DECIMALS, _NEAR = 4, 1e-5  # people choose a momentum of so few digits; as near as that, it was one
_MOST_VALUES = 1 << 24  # of a matrix that is decomposed


def without_momentum(update: Update, previous: Update, momentum: float | None = None) -> Update:
    """The gradient of this round alone, for a client whose optimizer keeps its momentum from round
    to round.

    Args:
        update: what the client sent in this round, after one step.
        previous: what it sent in the round before.
        momentum: μ, where the server knows it; None finds it. Where none is found the update stays
            as it is, with a note.

    Examples:
        >>> import torch, unsum
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Linear(64, 20)
        >>> sent = [
        ...     unsum.capture(model, torch.randn(3, 64), torch.tensor([4, 4, number]))
        ...     for number in range(2)
        ... ]
        >>> second = unsum.Update(
        ...     {name: g + 0.9 * sent[0].gradients[name] for name, g in sent[1].gradients.items()}
        ... )
        >>> unsum.without_momentum(second, sent[0]).carried.momentum
        0.9
    """
    _check_alike(update, previous)
    found = momentum is None
    if momentum is None:
        momentum = find_momentum(update.gradients, previous.gradients)
        if momentum is None:
            note = "Nothing of the update before shows in this one: no momentum was taken off."
            return replace(update, notes=(*update.notes, note))
    check_share("The momentum", momentum, below=1)
    before = {name: momentum * g.double() for name, g in previous.gradients.items()}
    alone = {name: (g.double() - before[name]).to(g.dtype) for name, g in update.gradients.items()}
    return replace(update, gradients=alone, carried=Carried(momentum, found, update.gradients))


def find_momentum(sent: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> float | None:
    """μ by the matrix that most directions of speak for it; None where none does."""
    answers = [
        _of_matrix(g.double(), before[name].double(), torch.finfo(g.dtype).eps)
        for name, g in sent.items()
        if g.ndim == 2 and min(g.shape) > 2 and g.numel() <= _MOST_VALUES
    ]
    count, value = max(answers, default=(0, 0.0))
    if count == 0:
        return None
    plain = round(value, _DECIMALS)
    return plain if abs(value - plain) < _NEAR else value


def _of_matrix(M: Tensor, N: Tensor, unit: float) -> tuple[int, float]:
    """How many eigenvalues say so, and μ; (0, 0) where nothing tells."""
    U, S, Vh = torch.linalg.svd(M, full_matrices=False)
    rank = int((_RESOLVED * unit * max(M.shape) ** 0.5 * S[0] < S).sum())
    inner = U[:, :rank].T @ N @ Vh[:rank].T
    outside = (N.square().sum() - inner.square().sum()).clamp_min(0).sqrt()
    everywhere = rank >= min(M.shape) - 1  # a head's columns sum to zero
    if rank < 2 or (not everywhere and not float(outside) <= _INSIDE * float(N.norm())):
        return 0, 0.0
    values = torch.linalg.eigvals(inner / S[:rank, None])
    near = (values[:, None] - values).abs() < _SAME * values.abs()
    # Of a momentum below 1, and no more than float32 tells from nothing.
    usable = (values.imag.abs() < _SAME * values.abs()) & (values.real > 1) & (values.real < 1e4)
    counts = near.sum(1) * usable
    best = int(counts.argmax())
    count = int(counts[best])
    if count == 0 or (everywhere and count < _CHANCE):
        return 0, 0.0
    return count, 1 / float(values.real[near[best]].median())


def _check_alike(update: Update, previous: Update) -> None:
    if update.training is not None and update.training.several_steps:
        raise UnsumError(
            "A momentum is taken off the update of one step; this client took several."
        )
    for name, g in update.gradients.items():
        other = previous.gradients.get(name)
        if other is None or other.shape != g.shape:
            raise UnsumError(
                f"The update before is of another model: {shown(name)} is not the same there."
            )
        if not all(
            tensor.is_floating_point() and bool(torch.isfinite(tensor).all())
            for tensor in (g, other)
        ):
            raise UnsumError(
                f"No momentum can be taken off {shown(name)}: it holds NaN, Inf or whole numbers."
            )
