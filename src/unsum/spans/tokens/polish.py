"""Pictures moved until the whole gradient fits: Gauss–Newton on every tensor, in units of what
rounding explains.

    minimize over X   Σ_t ‖(∇_t sent − ∇_t(X)) / rounding_t‖² + Σ_p ‖(x_p − x_p found) / spread_p‖²

A patch that is known well stays where it is, and one that is known badly moves: without the second
part good patches take up what bad ones leave. J v is a difference of two gradients in float64, Jᵀ w
one pass back through the backward pass; conjugate gradients need no more. Most of the curvature is
the patch layer's, ∇E = Dᵀ X, so (D Dᵀ + 1 / spread²)⁻¹ preconditions the steps.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch
from torch import Tensor

from unsum.engine.conjugate import least_squares
from unsum.engine.replay import Replay
from unsum.running.deadline import out_of_time
from unsum.spans.tokens.network import PatchNetwork
from unsum.spans.tokens.replay import PictureBatch, Player

_STEPS = 40  # of conjugate gradients: the directions that a tensor shows best come first
_PATIENCE = 60.0  # seconds of such steps: of a large network a few must do
_TOLERANCE = 1e-3  # [of the residual at first]. Chosen by: arbitrary budget.
# of the pictures: the step of a difference, far above float64's rounding and below their curvature
_MOVED = 1e-5
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
    """Patches X (B, N, n), known to `spread` (B, N), after one step; δ (B, N, d) is what the patch
    layer gets back for them."""
    layout, layer = network.layout, f"{network.name}.weight"

    def gradients(rows: Tensor) -> dict[str, Tensor]:
        return player.gradients_of(batch.at(layout.pictures(rows)))

    here = gradients(X)
    limits = dict(zip(replay.names, replay.rounding.tolist(), strict=True))
    units = {name: limits[name] / g.numel() ** 0.5 for name, g in here.items()}  # of an entry
    sizes = [g.numel() for g in here.values()]

    def joined(tensors: Mapping[str, Tensor]) -> Tensor:
        """All tensors in units of an entry, as one vector."""
        return torch.cat([(tensors[name] / unit).flatten() for name, unit in units.items()])

    # (B, N, 1)
    prior = 1 / spread.clamp_min(_LEAST * float(X.square().mean().sqrt())).square()[..., None]

    def pushed(v: Tensor) -> Tensor:
        step = _MOVED * float(X.norm()) / max(float(v.norm()), 1e-300)
        there = gradients(X + step * v)
        return joined({name: (there[name] - g) / step for name, g in here.items()})

    def pulled(w: Tensor) -> Tensor:
        parts = zip(here.items(), w.split(sizes), strict=True)
        weighted = {name: part.view_as(g) / units[name] for (name, g), part in parts}
        by_picture = player.pulled_back(batch.at(layout.pictures(X)), weighted)
        return (by_picture.flatten(1)[:, layout.pixels.to(X.device)] / layout.scale.to(X)).view_as(
            X
        )

    D = delta.flatten(0, 1) / (units[layer] if layer in units else max(units.values()))
    factor = torch.linalg.cholesky(D @ D.T + prior.flatten().diag())

    def divided(v: Tensor) -> Tensor:
        return torch.cholesky_solve(v.flatten(0, 1), factor).view_as(v)

    start = time.monotonic()

    def late() -> bool:
        return time.monotonic() > start + _PATIENCE or out_of_time("the last digits of pictures")

    rest = joined({name: player.gradients[name].double() - g for name, g in here.items()})
    right = pulled(rest)
    step, _ = least_squares(
        pushed, pulled, right, _TOLERANCE, _STEPS, ridge=prior.mul, precondition=divided, over=late
    )
    return X + step
