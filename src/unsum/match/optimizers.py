"""The optimizers of the literature as declarations, and the drivers that take their steps.

    LBFGS         as in DLG: 20 inner iterations a step, no line search; each restart has one of its
                  own
    Adam          all restarts in one tensor: every entry goes its own way anyhow
    Adam(signed)  as in IG: Adam on the sign of the gradient

`decay` multiplies the rate by 0.1 after 3/8, 5/8 and 7/8 of the steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from unsum.errors import needed
from unsum.match.lbfgs import Memory

Losses = tuple[Tensor, Tensor]  # (R,) what is minimized, (R,) the distance of gradients alone


class Evaluated(Protocol):
    """Where an optimizer gets losses and gradients from."""

    leaves: list[Tensor]  # (R, …) each, with .grad after `all`
    views: list[list[Tensor]]  # the same memory restart by restart, with .grad after `one`

    def all(self) -> Losses: ...

    def one(self, restart: int) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True)
class Adam:
    rate: float
    signed: bool = False
    decay: bool = True

    def driver(self, evaluated: Evaluated) -> _AdamDriver:
        return _AdamDriver(self, evaluated)


@dataclass(frozen=True)
class LBFGS:
    rate: float = 1.0
    inner: int = 20
    history: int = 100

    def driver(self, evaluated: Evaluated) -> _LBFGSDriver:
        return _LBFGSDriver(self, evaluated)


Optimizer = Adam | LBFGS


def decayed(rate: float, progress: float) -> float:
    """`rate` after `progress` (0 to 1) of the steps.

    >>> [round(decayed(1.0, progress), 3) for progress in (0, 3 / 8, 5 / 8, 7 / 8)]
    [1.0, 0.1, 0.01, 0.001]
    """
    return rate * 0.1 ** sum(progress >= part / 8 for part in (3, 5, 7))


class _AdamDriver:
    """`step` takes one of all restarts and returns the losses of the leaves as they were before it;
    `forget` is for a restart that begins anew: what was learned on its way no longer holds."""

    def __init__(self, declared: Adam, evaluated: Evaluated) -> None:
        self._declared, self._evaluated = declared, evaluated
        self._adam = torch.optim.Adam(evaluated.leaves, lr=declared.rate, fused=True)

    def step(self, progress: float) -> Losses:
        losses = self._evaluated.all()
        if self._declared.signed:
            for leaf in self._evaluated.leaves:
                needed(leaf.grad, "The gradient of a picture").sign_()
        if self._declared.decay:
            self._adam.param_groups[0]["lr"] = decayed(self._declared.rate, progress)
        self._adam.step()
        return losses

    def forget(self, restart: int) -> None:
        for leaf in self._evaluated.leaves:
            for average in ("exp_avg", "exp_avg_sq"):
                self._adam.state[leaf][average][restart].zero_()

    def state(self) -> Any:
        return [self._adam.state[leaf] for leaf in self._evaluated.leaves]

    def restore(self, state: Any) -> None:
        for leaf, kept in zip(self._evaluated.leaves, state, strict=True):
            self._adam.state[leaf] = {
                name: value.to(leaf.device) if name != "step" or leaf.is_cuda else value
                for name, value in kept.items()
            }


class _LBFGSDriver:
    """A restart whose loss is no number, or that has no gradient left, has diverged: its loss is
    given as infinite."""

    def __init__(self, declared: LBFGS, evaluated: Evaluated) -> None:
        self._declared, self._evaluated = declared, evaluated
        flat = [torch.cat([view.detach().flatten() for view in views]) for views in evaluated.views]
        self._memories = [Memory(vector, declared.history) for vector in flat]

    def step(self, progress: float) -> Losses:  # noqa: ARG002 (its rate does not decay)
        firsts = [self._step(restart, memory) for restart, memory in enumerate(self._memories)]
        totals, matches = zip(*firsts, strict=True)
        return torch.stack(totals), torch.stack(matches)

    def _step(self, restart: int, memory: Memory) -> tuple[Tensor, Tensor]:
        views = self._evaluated.views[restart]
        first: tuple[Tensor, Tensor] | None = None
        for _ in range(self._declared.inner):
            losses = self._evaluated.one(restart)
            gradient = torch.cat([view.grad.flatten() for view in views if view.grad is not None])
            # far out, sigmoids are flat
            if not bool(torch.isfinite(losses[0])) or not bool(gradient.any()):
                gone = torch.full_like(losses[0], torch.inf)
                return first or (gone, gone)
            first = first or losses
            step = memory.direction(gradient, self._declared.rate)
            for view, part in zip(views, step.split([view.numel() for view in views]), strict=True):
                view.detach().add_(part.view_as(view))
        return needed(first, "A step of the optimizer")

    def forget(self, restart: int) -> None:
        self._memories[restart].clear()

    def state(self) -> Any:
        return [dict(vars(memory)) for memory in self._memories]

    def restore(self, state: Any) -> None:
        for memory, kept in zip(self._memories, state, strict=True):
            vars(memory).update(kept)
