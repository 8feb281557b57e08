"""Pictures moved until the whole gradient fits: Gauss–Newton on every tensor, in units of what rounding explains.

    minimize over X   Σ_t ‖(∇_t sent − ∇_t(X)) / rounding_t‖² + Σ_p ‖(x_p − x_p found) / spread_p‖²

A patch that is known well stays where it is, and one that is known badly moves: without the second part good patches take up what
bad ones leave. J v is a difference of two gradients in float64, Jᵀ w one pass back through the backward pass; conjugate gradients
need no more. Most of the curvature is the patch layer's, ∇E = Dᵀ X, so (D Dᵀ + 1 / spread²)⁻¹ preconditions the steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from unsum.deadline import out_of_time
from unsum.engine.replay import Replay
from unsum.spans.tokens.network import PatchNetwork
from unsum.spans.tokens.replay import PictureBatch, Player

_STEPS = 40  # of conjugate gradients: the directions that a tensor shows best come first
_PATIENCE = 60.0  # seconds of such steps: of a large network a few must do
_CLOSE = 1e-6  # of the squares at first, from which they end
_MOVED = 1e-5  # of the pictures: the step of a difference, far above float64's rounding and below their curvature
_LEAST = 1e-7  # of the pictures' size: what no patch is known better than


def polished(
    network: PatchNetwork,
    player: Player,
    batch: PictureBatch,
    X: Tensor,
    spread: Tensor,
    delta: Tensor,
    replay: Replay,
) -> Tensor:
    """Patches X (B, N, n), known to `spread` (B, N), after one step; δ (B, N, d) is what the patch layer gets back for them."""
    layout, layer = network.layout, f"{network.name}.weight"

    def gradients(rows: Tensor) -> dict[str, Tensor]:
        return player.gradients_of(batch.at(layout.pictures(rows)))

    here = gradients(X)
    limits = dict(zip(replay.names, replay.rounding.tolist(), strict=True))
    units = {name: limits[name] / g.numel() ** 0.5 for name, g in here.items()}  # of an entry
    rest = {name: (player.gradients[name].double() - g) / units[name] for name, g in here.items()}
    prior = 1 / spread.clamp_min(_LEAST * float(X.square().mean().sqrt())).square()[..., None]  # (B, N, 1)

    def pushed(v: Tensor) -> dict[str, Tensor]:
        step = _MOVED * float(X.norm()) / max(float(v.norm()), 1e-300)
        there = gradients(X + step * v)
        return {name: (there[name] - g) / (step * units[name]) for name, g in here.items()}

    def pulled(w: dict[str, Tensor]) -> Tensor:
        weighted = {name: values / units[name] for name, values in w.items()}
        by_picture = player.pulled_back(batch.at(layout.pictures(X)), weighted)
        return (by_picture.flatten(1)[:, layout.pixels.to(X.device)] / layout.scale.to(X)).view_as(X)

    D = delta.flatten(0, 1) / (units[layer] if layer in units else max(units.values()))
    factor = torch.linalg.cholesky(D @ D.T + prior.flatten().diag())

    def conditioned(v: Tensor) -> Tensor:
        return torch.cholesky_solve(v.flatten(0, 1), factor).view_as(v)

    return X + _least_squares(pushed, pulled, conditioned, rest, prior)


def _least_squares(
    pushed: Callable[[Tensor], dict[str, Tensor]],
    pulled: Callable[[dict[str, Tensor]], Tensor],
    conditioned: Callable[[Tensor], Tensor],
    rest: dict[str, Tensor],
    prior: Tensor,
) -> Tensor:
    """The step v that leaves least of rest − J v and of v itself, by preconditioned conjugate gradients on JᵀJ + prior."""
    r = pulled(rest)
    z = conditioned(r)
    v, p, rz = torch.zeros_like(r), z, (r * z).sum()
    start, enough = time.monotonic(), _CLOSE * float(rz)
    for _ in range(_STEPS):
        late = time.monotonic() > start + _PATIENCE or out_of_time("the last digits of pictures")
        if late or not float(rz) > enough:
            break
        Jp = pushed(p)
        squares = torch.stack([values.square().sum() for values in Jp.values()]).sum() + (prior * p * p).sum()
        alpha = rz / squares.clamp_min(1e-300)
        v = v + alpha * p
        rest = {name: values - alpha * Jp[name] for name, values in rest.items()}
        r = pulled(rest) - prior * v
        z = conditioned(r)
        rz, before = (r * z).sum(), rz
        p = z + rz / before * p
    return v
