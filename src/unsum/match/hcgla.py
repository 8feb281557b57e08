"""HCGLA (highly compressed gradient leakage attack): for updates of which pruning left one entry in
a hundred, or in a thousand.

    min over x in [0, 1] of Σ over entries with ĝ ≠ 0 of (∇L(x, y) − ĝ)² / ‖ĝ‖² + α TV(x)

by Adam, with x ← (1 − s) x + s D(x) every 5 steps for a denoiser D, s = 1: so few entries determine
no picture by themselves, and D keeps to those that look like one. Pictures begin where the model's
inverse draws them from the update's features, if there is an inverse; as noise otherwise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from unsum.errors import UnsumError, needed
from unsum.invert import invert, load_inverse
from unsum.match.engine import Matched, solve
from unsum.match.method import MatcherNeeds, matcher
from unsum.match.objective import Objective
from unsum.match.optimizers import Adam
from unsum.match.plug import load_denoiser, photos_of
from unsum.match.problem import Plan, Problem
from unsum.match.regularizers import TotalVariation
from unsum.match.unknown import Pixels, Shape, Unknown
from unsum.running.late_scipy import linear_sum_assignment
from unsum.separate import answered
from unsum.update import Update


@dataclass(frozen=True)
class Near(Unknown):
    """Pixels that begin near given pictures; restarts differ by a little noise."""

    images: Tensor = field(repr=False)
    spread: float = 0.05

    def start(self, count: int, shape: Shape, generator: torch.Generator) -> list[Tensor]:
        return [self.images.cpu() + self.spread * torch.randn((count, *shape), generator=generator)]


@matcher(
    "hcgla",
    summary=(
        "gradient matching: only entries that came, a denoiser in between, for pruned updates "
        "(HCGLA)"
    ),
    needs=MatcherNeeds(
        rule="adaptive", scale=True, extra="a denoiser, an inverse to begin with (optional)"
    ),
)
def hcgla(
    problem: Problem,
    *,
    denoiser: nn.Module | str = "",
    weights: str = "",
    inverse: str = "",
    steps: int = 1000,
    restarts: int = 1,
    rate: float = 0.05,
    total_variation: float = 1e-3,
    denoise_every: int = 5,
    strength: float = 1.0,
) -> Matched:
    if denoiser == "":
        raise UnsumError(
            "'hcgla' needs a denoiser: give denoiser= a module or FILE.py:FACTORY (with "
            "weights=FILE), or 'median' for a filter."
        )
    if strength > 1:
        raise UnsumError(f"The denoiser's strength is at most 1, not {strength}.")
    clean = load_denoiser(problem, denoiser, weights)
    unknown, photos, note = _begin(problem, inverse)

    def amend(leaves: list[Tensor]) -> None:
        leaves[0].lerp_(clean(leaves[0]).clamp(0, 1), strength)

    plan = Plan(
        Objective("l2", masked=True, relative=True),
        Adam(rate),
        steps,
        regularizers=(TotalVariation(total_variation),),
        unknown=unknown,
        restarts=restarts,
        amend=amend,
        amend_every=denoise_every,
        # Looks see pictures fresh from the denoiser.
        look_every=denoise_every * max(1, steps // (40 * denoise_every)),
    )
    found = solve(problem, plan)
    used = "; ".join(filter(None, [photos_of(denoiser, "denoiser"), photos]))
    return replace(found, notes=[note, *found.notes], photos=used)


def _begin(problem: Problem, path: str) -> tuple[Unknown, str, str]:
    """Where the pictures begin, the photos behind that, and a sentence on it."""
    try:
        inverse = load_inverse(problem.model, path or None)
    except UnsumError:
        if path:  # asked for by name: a refusal must not pass as a note
            raise
        return Pixels("uniform"), "", "Pictures began as noise: the model has no inverse."
    update = Update(problem.sent, reduction=problem.reduction)
    leak = answered(problem.model, update, "adaptive", labels=problem.targets)
    images = invert(problem.model, leak, inverse=inverse).to(problem.zero)
    if not math.isfinite(leak.predicted_error) or images.shape != (
        problem.batch_size,
        *problem.shape,
    ):
        return (
            Pixels("uniform"),
            "",
            "Pictures began as noise: the update's features could not be separated.",
        )
    targets = needed(problem.targets, "The labels of the batch")
    # The separator has an order of its own: each picture goes to its label's place.
    places = linear_sum_assignment(
        torch.cdist(targets.double(), leak.targets.to(problem.device)).cpu()
    )[1]
    note = "Pictures began where the model's inverse drew them from the update's features."
    return Near(images[torch.as_tensor(places)]), inverse.photos, note
