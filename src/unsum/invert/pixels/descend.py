"""From a gray picture to the one that explains the maps: coarse to fine, Gauss–Newton steps solved
by conjugate gradients.

A picture of a few colored patches is fitted first, then one of four times as many, down to the
pixels. This matters more than the solver: fitting all pixels at once from a gray picture ends in
the fine grain of a wrong one on untrained networks (misfit 0.4), while coarse pictures have no
grain to end in, and lead to where steps converge quadratically.

The steps minimize ‖J d + r‖² + λ t ‖d‖² (Levenberg), t the mean of JᵀJ's diagonal.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from unsum.engine import conjugate
from unsum.engine.budget import Budget
from unsum.engine.descend import NonlinearProblem, Products, StoppingRule, beside, inner
from unsum.engine.descend import descend as descend_rows
from unsum.invert.pixels.equations import Derivative, Equations, OwnSquares, Product
from unsum.invert.pixels.own_squares import are_due, compute, divided_by
from unsum.running.progress import Progress

_UNTRIED = "further steps towards the pictures"
# [products] of J and Jᵀ in one step: about the condition number of trained networks' maps.
# Chosen by: arbitrary budget.
_PRODUCTS = 400
# [relative gain of the misfit] of a step below which a size, the last one or another, is done.
# Chosen by: arbitrary margin.
_SLOW = {True: 1e-3, False: 2e-2}
# At one size most take ten steps; float64 begins where float32 has ended. A step is halved rather
# than solved for again: its products cost far more than a pass. Chosen by: arbitrary budget.
_BUDGETS = {
    torch.float32: Budget(steps=60, patience=3, refusals=3, halvings=3),
    torch.float64: Budget(steps=60, patience=1, refusals=1, halvings=3),
}
# [squared misfit] from which steps converge quadratically, up to rounding.
# Chosen by: arbitrary margin.
_NEAR = {torch.float32: 1e-8, torch.float64: 0.0}
_HALVED = 0.25  # [of the squared misfit] a step that leaves more from there on has met rounding
# [of the mean of JᵀJ's diagonal] damping at first, and once pictures are found.
# Chosen by: arbitrary budget.
_FIRST, _FINE = 1e-2, 1e-9
# [of the residual at first] that conjugate gradients leave at last; by own squares, of the error.
# Chosen by: arbitrary margin.
_TIGHT, _TIGHT_BY_OWN = 1e-4, 1e-3


@dataclass
class Ended:
    """Unknowns (B, c, rows, columns) of one size, and the misfits (B,) of their pictures."""

    z: Tensor
    misfit: Tensor


def sizes(shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """(rows, columns) from a patch or two to the whole picture, each about twice the one before."""
    found = [(shape[1], shape[2])]
    while min(found[0]) > 1:
        found.insert(0, (-(-found[0][0] // 2), -(-found[0][1] // 2)))
    return found


def enlarge(z: Tensor, size: tuple[int, int]) -> Tensor:
    """Derivative between the centers; as it is at its own size."""
    return (
        z
        if z.shape[2:] == size
        else nn.functional.interpolate(z, size=size, mode="bilinear", align_corners=False)
    )


def descend(
    equations: Equations, start: Tensor, shape: tuple[int, ...], progress: Progress
) -> Ended:
    """The pictures that explain the maps best, from `start` (B, c, rows, columns) of any size
    on."""
    full = (shape[1], shape[2])
    state = None
    ladder = [size for size in sizes(shape) if size[0] >= start.shape[2]]
    for size in ladder:
        z = enlarge(start if state is None else state.z, size)
        state = _at_size(
            equations, z, partial(enlarge, size=full), progress, _FIRST, last=size == full
        )
        if equations.over():
            break
    assert state is not None
    state.z = enlarge(state.z, full)
    return state


def polish(equations: Equations, pictures: Tensor, progress: Progress, *, scaled: bool) -> Ended:
    """A batch that is one problem, from pictures that nearly explain it, with its scale as
    sensitive as all else.

    Pictures that are `scaled` already keep their scale.

    BatchNorm divides the scale x of the batch out of everything above, but for its ε: J x is 1e-5
    of other products. So pictures are y + (κ − 1) x̂ ⟨x̂, y⟩, which stretches this one direction of
    the unknowns y, and conjugate gradients see it.
    """
    towards = pictures / pictures.norm()
    size = pictures.norm()
    if scaled:

        def held(y: Tensor) -> Tensor:
            return y + (size - (towards * y).sum()) * towards

        state = _at_size(equations, pictures, held, progress, _FINE, last=True)
        state.z = held(state.z)
        return state
    linear = equations.linear(lambda x: x, pictures)
    v = torch.randn(pictures.shape, generator=torch.Generator().manual_seed(0)).to(pictures)
    stretch = float(
        linear.forward(v).norm() / v.norm() / linear.forward(towards).norm().clamp_min(1e-300)
    )

    def pictures_of(y: Tensor, by: float = max(stretch, 1.0)) -> Tensor:
        return y + (by - 1) * (towards * y).sum() * towards

    along = (towards * pictures).sum() * towards
    state = _at_size(
        equations,
        pictures + (1 / max(stretch, 1.0) - 1) * along,
        pictures_of,
        progress,
        _FINE,
        last=True,
    )
    state.z = pictures_of(state.z)
    return state


def _at_size(
    equations: Equations,
    z: Tensor,
    pictures_of: Product,
    progress: Progress,
    damping: float,
    *,
    last: bool,
) -> Ended:
    problem = _Pictures(equations, pictures_of, progress, last)
    budget = replace(
        _BUDGETS[z.dtype],
        damping=damping,
        stalled=(1 - _SLOW[last]) ** 2,
        seconds=equations.end - time.monotonic(),
    )
    ends = descend_rows(
        problem, problem.rows(z), budget, StoppingRule(0.0, _NEAR[z.dtype], _HALVED, _UNTRIED)
    )
    return Ended(problem.pictures(ends.s), ends.misfit.expand(len(z)))


@dataclass
class _Pictures(NonlinearProblem):
    """Unknowns of pictures: a row is a sample, or the whole batch where its samples are tied."""

    equations: Equations
    pictures_of: Product
    progress: Progress
    last: bool  # whether this is the last size
    number: int = 0  # of linearizations

    def rows(self, z: Tensor) -> Tensor:
        """Of (B, …) what belongs to each row."""
        return z[None] if self.equations.together else z

    def pictures(self, s: Tensor) -> Tensor:
        """(B, …) of what belongs to each row."""
        return s[0] if self.equations.together else s

    def take(self, rows: Tensor) -> _Pictures:
        own = self.equations.own
        squares = None if own.squares is None else own.squares[rows]
        some = replace(self.equations.of(rows), own=OwnSquares(squares, own.products))
        return replace(self, equations=some)

    def costs(self, s: Tensor) -> Tensor:
        r = self.rows(self.equations.residual(self.pictures_of(self.pictures(s))))
        return inner(r, r)

    def linearize(self, s: Tensor) -> Products:
        equations, z = self.equations, self.pictures(s)
        if self.last and are_due(equations.own, z):
            compute(equations, self.pictures_of(z))
        linear = equations.linear(self.pictures_of, z)
        r = self.rows(linear.residual)
        cost, gradient = inner(r, r), self.rows(linear.back(linear.residual))
        self.progress.step(self.number, float(cost.max()) ** 0.5)
        self.number += 1
        v = torch.randn(z.shape, generator=torch.Generator().manual_seed(0)).to(z)
        v, Jv = self.rows(v), self.rows(linear.forward(v))
        size = beside(inner(Jv, Jv) / inner(v, v), s)  # the mean of the diagonal of JᵀJ

        def precondition(damping: Tensor) -> Product:
            each = (damping * size).flatten().expand(len(z))
            divided = divided_by(equations.own, each, z)
            return lambda d: self.rows(divided(self.pictures(d)))

        tightest = _TIGHT if equations.own.squares is None else _TIGHT_BY_OWN
        return Products(
            cost,
            gradient,
            lambda d: self.rows(_counted(equations, linear, self.pictures(d))),
            lambda u: self.rows(linear.back(self.pictures(u))),
            self.costs,
            beside(cost.sqrt().clamp(tightest, 0.1), s),
            min(_PRODUCTS, 2 * s[0].numel()),
            lambda d: size * d,
            precondition,
            equations.over,
        )


def _counted(equations: Equations, linear: Derivative, d: Tensor) -> Tensor:
    equations.own.products += 1
    return linear.forward(d)


def least_squares(
    equations: Equations, linear: Derivative, target: Tensor, damping: Tensor, tolerance: Tensor
) -> Tensor:
    """Conjugate gradients on (JᵀJ + damping) d = Jᵀ target, all samples at once, with each sample's
    own inverse where known."""
    right = linear.back(target)

    unknowns = right[0].numel() * (len(right) if equations.together else 1)
    return conjugate.least_squares(
        lambda p: _counted(equations, linear, p),
        linear.back,
        right,
        tolerance,
        min(_PRODUCTS, 2 * unknowns),
        ridge=lambda p: damping * p,
        precondition=divided_by(equations.own, damping, right),
        dots=equations.dots,
        over=equations.over,
    )[0]
