"""Conjugate gradients for all methods: symmetric operators, and least squares by J and Jᵀ.

A vector may have any shape. Where several are solved for at once, `dots` gives the inner product
of each, in a shape that multiplies them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from unsum.cuda_graph import recorded
from unsum.deadline import out_of_time

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

    steps = _Steps(operator, precondition, right, by_rows)
    return steps.run(tolerance, iterations, out_of_patience, record=True)


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

    return _Steps(operator, precondition, right, dots).run(tolerance, iterations, over)


class _Steps:
    """The state of an iteration, which `advance` changes in place, so that it can be recorded."""

    def __init__(
        self,
        operator: Callable[[Tensor], tuple[Tensor, Tensor]],
        precondition: Product,
        right: Tensor,
        dots: Dots,
    ) -> None:
        self.operator, self.precondition, self.dots = operator, precondition, dots
        self.x, self.left = torch.zeros_like(right), right.clone()
        self.direction = precondition(self.left).clone()
        self.size = dots(self.left, self.direction).clone()

    def run(
        self,
        tolerance: float | Tensor,
        iterations: int,
        over: Callable[[], bool],
        *,
        record: bool = False,
    ) -> tuple[Tensor, bool]:
        goal, advance, stride = tolerance**2 * self.size, self.advance, 1
        if record and self.x.is_cuda:
            advance, stride = recorded(advance, self.x.device, often=True)[0], _STRIDE
        for _ in range(0, iterations, stride):
            if bool((self.size <= goal).all()) or over():
                break
            for _ in range(stride):
                advance()
        return self.x, bool((self.size <= goal).all())

    def advance(self) -> None:
        image, curvature = self.operator(self.direction)
        step = _ratio(self.size, curvature)
        self.x.add_(step * self.direction)
        self.left.sub_(step * image)
        z = self.precondition(self.left)
        size = self.dots(self.left, z)
        self.direction.mul_(_ratio(size, self.size)).add_(z)
        self.size.copy_(size)


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """a / b where b is positive; zero where a direction has vanished."""
    return torch.where(b > 0, a / b, 0)
