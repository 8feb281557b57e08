"""From a gray picture to the one that explains the maps: coarse to fine, Gauss–Newton steps solved
by conjugate gradients.

A picture of a few colored patches is fitted first, then one of four times as many, down to the
pixels. This matters more than the solver: fitting all pixels at once from a gray picture ends in
the fine grain of a wrong one on untrained networks (misfit 0.4), while coarse pictures have no
grain to end in, and lead to where steps converge quadratically.

The steps minimize ‖J d + r‖² + λ t ‖d‖² (Levenberg), t the mean of JᵀJ's diagonal.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from unsum.engine import conjugate
from unsum.invert.pixels.equations import Derivative, Equations, Product
from unsum.invert.pixels.own_squares import are_due, compute, divided_by
from unsum.running.progress import Progress

_STEPS = 60  # at one size; most take ten
_PRODUCTS = 400  # of J and Jᵀ in one step: about the condition number of trained networks' maps
# relative gain of a step below which a size, the last one or another, is done
_SLOW = {True: 1e-3, False: 2e-2}
# steps that gain so little; float64 begins where float32 has ended
_PATIENCE = {torch.float32: 3, torch.float64: 1}
# misfit from which steps converge quadratically, up to rounding
_NEAR = {torch.float32: 1e-4, torch.float64: 0.0}
_SHRINK, _GROW = 0.25, 5.0  # of the damping, after good steps and bad ones
_FIRST, _FINE, _LEAST = 1e-2, 1e-9, 1e-12  # damping at first, once pictures are found, and at last
_TIGHT, _TIGHT_BY_OWN = (
    1e-4,
    1e-3,
)  # of conjugate gradients' start, at last; by own squares it counts errors, not residuals
_HALVINGS = 4  # of a step that makes it worse


@dataclass
class State:
    """Unknowns (B, c, rows, columns) of one size, each sample's damping, and its cost, the squared
    misfit."""

    z: Tensor
    damping: Tensor
    cost: Tensor

    @property
    def misfit(self) -> Tensor:
        return self.cost.sqrt().flatten()


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
) -> State:
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


def polish(equations: Equations, pictures: Tensor, progress: Progress, *, scaled: bool) -> State:
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
) -> State:
    r = equations.residual(pictures_of(z))
    cost = equations.dots(r, r)
    state = State(z, torch.full_like(cost, damping), cost)
    patience = torch.zeros_like(cost)
    for number in range(_STEPS):
        if last and are_due(equations.own, state.z):
            compute(equations, pictures_of(state.z))
        linear = equations.linear(pictures_of, state.z)
        d = _step(equations, linear, _damping(equations, linear, state))
        before = state.cost
        _take(equations, state, d, pictures_of)
        # a step that does not halve the misfit from here on has met rounding
        near = before < _NEAR[z.dtype] ** 2
        wanted = torch.where(near, 0.5, 1 - _SLOW[last])
        slow = state.cost.sqrt() > wanted * before.sqrt()
        patience = torch.where(slow, patience + 1, 0)
        progress.step(number, float(state.misfit.max()))
        if bool((patience >= torch.where(near, 1, _PATIENCE[z.dtype])).all()) or equations.over():
            break
    return state


def _damping(equations: Equations, linear: Derivative, state: State) -> Tensor:
    """λ t, with t from one random direction."""
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(state.z.shape, generator=generator).to(state.z)
    Jv = linear.forward(v)
    return state.damping * equations.dots(Jv, Jv) / equations.dots(v, v)


def _step(equations: Equations, linear: Derivative, damping: Tensor) -> Tensor:
    """d that minimizes ‖J d + r‖² + damping ‖d‖², the more exactly the smaller the misfit is."""
    misfit = equations.dots(linear.residual, linear.residual).sqrt()
    tightest = _TIGHT if equations.own.squares is None else _TIGHT_BY_OWN
    return least_squares(equations, linear, -linear.residual, damping, misfit.clamp(tightest, 0.1))


def least_squares(
    equations: Equations, linear: Derivative, target: Tensor, damping: Tensor, tolerance: Tensor
) -> Tensor:
    """Conjugate gradients on (JᵀJ + damping) d = Jᵀ target, all samples at once, with each sample's
    own inverse where known."""
    right = linear.back(target)

    def push(p: Tensor) -> Tensor:
        equations.own.products += 1
        return linear.forward(p)

    unknowns = right[0].numel() * (len(right) if equations.together else 1)
    return conjugate.least_squares(
        push,
        linear.back,
        right,
        tolerance,
        min(_PRODUCTS, 2 * unknowns),
        ridge=lambda p: damping * p,
        precondition=divided_by(equations.own, damping, right),
        dots=equations.dots,
        over=equations.over,
    )[0]


def _take(equations: Equations, state: State, d: Tensor, pictures_of: Product) -> None:
    """Each sample goes the whole step, or half of it, and so on; one that finds nothing better
    stays and is damped more."""
    taken = torch.zeros_like(state.cost, dtype=torch.bool)
    whole, start = taken, state.z
    for halvings in range(_HALVINGS):
        z = torch.where(taken, state.z, start + d / 2**halvings)
        r = equations.residual(pictures_of(z))
        cost = equations.dots(r, r)
        better = ~taken & (cost < state.cost)
        state.z = torch.where(better, z, state.z)
        state.cost = torch.where(better, cost, state.cost)
        whole = better if halvings == 0 else whole
        taken = taken | better
        if bool(taken.all()):
            break
    factor = torch.where(whole, _SHRINK, torch.where(taken, 1.0, _GROW))
    state.damping = (state.damping * factor).clamp(_LEAST, 1e6)
