"""The optimisers of the literature as declarations, and the drivers that take their steps.

    LBFGS         as in DLG: 20 inner iterations a step, no line search; each restart has one of its own
    Adam          all restarts in one tensor: every entry goes its own way anyhow
    Adam(signed)  as in IG: Adam on the sign of the gradient

`decay` multiplies the rate by 0.1 after 3/8, 5/8 and 7/8 of the steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

Losses = tuple[Tensor, Tensor]  # (R,) what is minimised, (R,) the distance of gradients alone


class Evaluated(Protocol):
    """Where an optimiser gets losses and gradients from."""

    leaves: list[Tensor]  # (R, …) each, with .grad after `all`
    views: list[list[Tensor]]  # the same memory restart by restart, with .grad after `one`

    def all(self) -> Losses: ...

    def one(self, restart: int) -> tuple[Tensor, Tensor]: ...


class Driver(Protocol):
    """One step of all restarts; returns the losses of the leaves as they were before it."""

    def step(self, progress: float) -> Losses: ...

    def state(self) -> Any: ...

    def restore(self, state: Any) -> None: ...


@dataclass(frozen=True)
class Adam:
    rate: float
    signed: bool = False
    decay: bool = True

    def driver(self, evaluated: Evaluated) -> Driver:
        return _AdamDriver(self, evaluated)


@dataclass(frozen=True)
class LBFGS:
    rate: float = 1.0
    inner: int = 20
    history: int = 100
    line_search: bool = False

    def driver(self, evaluated: Evaluated) -> Driver:
        return _LBFGSDriver(self, evaluated)


Optimiser = Adam | LBFGS


def decayed(rate: float, progress: float) -> float:
    """`rate` after `progress` (0 to 1) of the steps.

    >>> [round(decayed(1.0, progress), 3) for progress in (0, 3 / 8, 5 / 8, 7 / 8)]
    [1.0, 0.1, 0.01, 0.001]
    """
    return rate * 0.1 ** sum(progress >= part / 8 for part in (3, 5, 7))


class _AdamDriver:
    def __init__(self, declared: Adam, evaluated: Evaluated) -> None:
        self._declared, self._evaluated = declared, evaluated
        self._adam = torch.optim.Adam(evaluated.leaves, lr=declared.rate, fused=True)

    def step(self, progress: float) -> Losses:
        losses = self._evaluated.all()
        if self._declared.signed:
            for leaf in self._evaluated.leaves:
                assert leaf.grad is not None
                leaf.grad.sign_()
        if self._declared.decay:
            self._adam.param_groups[0]["lr"] = decayed(self._declared.rate, progress)
        self._adam.step()
        return losses

    def state(self) -> Any:
        return [self._adam.state[leaf] for leaf in self._evaluated.leaves]

    def restore(self, state: Any) -> None:
        for leaf, kept in zip(self._evaluated.leaves, state, strict=True):
            self._adam.state[leaf] = {
                name: value.to(leaf.device) if name != "step" or leaf.is_cuda else value for name, value in kept.items()
            }


class _LBFGSDriver:
    """A restart whose loss is no longer finite stands still; the others go on."""

    def __init__(self, declared: LBFGS, evaluated: Evaluated) -> None:
        self._evaluated = evaluated
        self._optimisers = [
            torch.optim.LBFGS(
                views,
                lr=declared.rate,
                max_iter=declared.inner,
                history_size=declared.history,
                line_search_fn="strong_wolfe" if declared.line_search else None,
                tolerance_grad=0.0,
                tolerance_change=0.0,
            )
            for views in evaluated.views
        ]

    def step(self, progress: float) -> Losses:  # noqa: ARG002 (its rate does not decay)
        firsts = [self._step(restart, optimiser) for restart, optimiser in enumerate(self._optimisers)]
        totals, matches = zip(*firsts, strict=True)
        return torch.stack(totals), torch.stack(matches)

    def _step(self, restart: int, optimiser: torch.optim.LBFGS) -> tuple[Tensor, Tensor]:
        first: list[tuple[Tensor, Tensor]] = []

        def closure() -> float:
            total, match = self._evaluated.one(restart)
            if not first:
                first.append((total, match))
            return float(total)

        views = self._evaluated.views[restart]
        if not all(bool(torch.isfinite(view).all()) for view in views):
            gone = views[0].new_full((), torch.inf)
            return gone, gone
        optimiser.step(closure)
        return first[0]

    def state(self) -> Any:
        return [dict(next(iter(optimiser.state.values()), {})) for optimiser in self._optimisers]

    def restore(self, state: Any) -> None:
        for optimiser, kept in zip(self._optimisers, state, strict=True):
            if kept:
                optimiser.state[optimiser.param_groups[0]["params"][0]].update(kept)
