"""Conjugate gradients for all methods: symmetric operators, and least squares by J and Jᵀ.

A vector may have any shape. Where several are solved for at once, `dots` gives the inner product
of each, in a shape that multiplies them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from unsum.running.cuda_graph import recorded
from unsum.running.deadline import out_of_time

# [iterations] between two tests for convergence on a GPU, where each one waits for the device.
# Chosen by: arbitrary budget.
_STRIDE = 8

Product = Callable[[Tensor], Tensor]
Dots = Callable[[Tensor, Tensor], Tensor]


def by_rows(a: Tensor, b: Tensor) -> Tensor:
    """(…, 1) inner products of rows."""
    return (a * b).sum(-1, keepdim=True)


def whole(a: Tensor, b: Tensor) -> Tensor:
    """The inner product of two tensors, each of them one vector."""
    return (a * b).sum()


def out_of_patience() -> bool:
    """Whether the attack's time is over."""
    return out_of_time("further steps of the solver")


def conjugate_gradients(
    matvec: Product, precondition: Product, right: Tensor, tolerance: float, iterations: int
) -> tuple[Tensor, bool]:
    """Solve matvec(x) = right for a symmetric positive definite operator, for each row of `right`.

    Returns x, and whether the preconditioned residual fell below `tolerance` of where it began.
    """

    def operator(p: Tensor) -> tuple[Tensor, Tensor]:
        image = matvec(p)
        return image, by_rows(p, image)

    limits = tolerance, iterations, out_of_patience
    return _solve(operator, precondition, right, by_rows, *limits, record=True)


def least_squares(
    push: Product,
    pull: Product,
    right: Tensor,
    tolerance: float | Tensor,
    iterations: int,
    *,
    ridge: Product = torch.zeros_like,
    precondition: Product = Tensor.clone,
    dots: Dots = whole,
    over: Callable[[], bool] = out_of_patience,
) -> tuple[Tensor, bool]:
    """Minimize ‖J x − b‖² + ⟨x, ridge x⟩ from zero, with push = J, pull = Jᵀ and right = Jᵀ b.

    The curvature ⟨p, (JᵀJ + ridge) p⟩ is computed as ‖J p‖² + ⟨p, ridge p⟩, which rounding leaves
    positive. `over` ends it early. Returns what `conjugate_gradients` does.
    """

    def operator(p: Tensor) -> tuple[Tensor, Tensor]:
        Jp, damped = push(p), ridge(p)
        return pull(Jp) + damped, dots(Jp, Jp) + dots(p, damped)

    return _solve(operator, precondition, right, dots, tolerance, iterations, over)


def _solve(
    operator: Callable[[Tensor], tuple[Tensor, Tensor]],
    precondition: Product,
    right: Tensor,
    dots: Dots,
    tolerance: float | Tensor,
    iterations: int,
    over: Callable[[], bool],
    *,
    record: bool = False,
) -> tuple[Tensor, bool]:
    """`operator` gives the image of a direction and its curvature. All changes are in place, so
    that an iteration can be recorded."""
    x, left = torch.zeros_like(right), right.clone()
    direction = precondition(left).clone()
    size = dots(left, direction).clone()
    goal = tolerance**2 * size

    def advance() -> None:
        image, curvature = operator(direction)
        step = _ratio(size, curvature)
        x.add_(step * direction)
        left.sub_(step * image)
        z = precondition(left)
        new_size = dots(left, z)
        direction.mul_(_ratio(new_size, size)).add_(z)
        size.copy_(new_size)

    recording = record and right.is_cuda
    run = recorded(advance, right.device, often=True)[0] if recording else advance
    stride = _STRIDE if recording else 1
    for _ in range(0, iterations, stride):
        if bool((size <= goal).all()) or over():
            break
        for _ in range(stride):
            run()
    return x, bool((size <= goal).all())


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """a / b where b is positive; zero where a direction has vanished, and NaN where either is."""
    return (a / b).masked_fill_(b <= 0, 0.0)
