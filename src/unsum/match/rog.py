"""ROG (reconstruction from obfuscated gradients): few unknowns, few steps, and a network that makes
the rest of the picture.

    1.  min over u of ‖∇L(bicubic₄(u), y) − ĝ‖² / ‖ĝ‖²        Adam, rate 0.05, 100 steps
    2.  x = D(bicubic₄(u)),  D a denoiser or a generator from coarse pictures to fine ones

A sixteenth of the unknowns is what few bits can still determine. Of pruned gradients (top-k) only
what came is compared, and where only signs came (`Signs`), signs. Unbiased rounding (QSGD) needs
nothing of the kind.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from unsum.match.engine import Matched, solve
from unsum.match.method import MatcherNeeds, matcher
from unsum.match.objective import Objective, Signs
from unsum.match.optimizers import Adam
from unsum.match.plug import load_denoiser, photos_of
from unsum.match.problem import Plan, Problem
from unsum.match.regularizers import TotalVariation
from unsum.match.traces import Traces
from unsum.match.unknown import LowResolution


@matcher(
    "rog",
    summary=(
        "gradient matching: pictures of a quarter of the side, for quantized and pruned updates "
        "(ROG)"
    ),
    needs=MatcherNeeds(
        rule="bias-sign", extra="a denoiser or generator for the last touch (optional)"
    ),
)
def rog(
    problem: Problem,
    *,
    denoiser: nn.Module | str = "",
    weights: str = "",
    steps: int = 100,
    restarts: int = 1,
    rate: float = 0.05,
    factor: int = 4,
    total_variation: float = 0.0,
) -> Matched:
    finish = load_denoiser(problem, denoiser, weights) if denoiser != "" else None
    traces = Traces.of(problem)
    plan = Plan(
        Signs()
        if traces.kind == "sign"
        else Objective("l2", masked=traces.kind == "pruned", relative=True),
        Adam(rate, decay=False),
        steps,
        regularizers=(TotalVariation(total_variation),) if total_variation else (),
        unknown=LowResolution(problem.shape[1:], factor),
        restarts=restarts,
    )
    found = solve(problem, plan)
    notes = [*traces.notes, *found.notes]
    if finish is None:
        notes.append(f"No denoiser was given, so nothing finer than {factor} pixels was drawn.")
        return replace(found, notes=notes)
    with torch.no_grad():
        images = finish(found.images).clamp(0, 1)
    return replace(found, images=images, notes=notes, photos=photos_of(denoiser, "denoiser"))
