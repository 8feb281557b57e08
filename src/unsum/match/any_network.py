"""Gradient matching for networks that are no classifiers: pictures, and targets not granted.

    min over x in [0, 1] (and y) of 1 − cos(∇L(x, y), ĝ) + α TV(x)

as `ig` has it, with L the loss that the server handed out. Entries that came as zero are left out,
because defenses remove them.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

import torch
from torch import Tensor, nn

from unsum.errors import needed
from unsum.gradients import norm, quiet
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.match.engine import Matched, solve
from unsum.match.objective import Objective
from unsum.match.optimizers import Adam
from unsum.match.problem import Plan, Problem, pose_any
from unsum.match.protocol import Protocol
from unsum.match.regularizers import TotalVariation
from unsum.match.unknown import Pixels
from unsum.running.progress import SILENT, Progress
from unsum.update import Update

METHOD = "matching"
STEPS = 400  # as the last resort of classifiers takes
_RATE, _SMOOTH = 0.1, 1e-2  # as published for `ig`
_MOST_RESTARTS = 4  # signs of two numbers


def match_any(
    model: nn.Module,
    update: Update,
    protocol: Protocol,
    *,
    batch_size: int,
    targets: Tensor | None = None,
    steps: int = STEPS,
    seed: int = 0,
    progress: Progress = SILENT,
) -> Leak:
    """The pictures of `batch_size` samples whose gradient is the one received; `targets` where they
    are granted.

    Nothing vouches for them: `Leak.residual` is what they leave of the gradient unexplained, up to
    its scale.
    """
    start = time.perf_counter()
    if targets is None:
        protocol.check_estimate(model)
    problem = replace(
        pose_any(METHOD, model, update, protocol, batch_size, targets), seed=seed, progress=progress
    )
    numbers = targets is None and protocol.form == "numbers"
    plan = Plan(
        Objective("cosine", masked=True),
        Adam(_RATE, signed=True),
        steps,
        regularizers=(TotalVariation(_SMOOTH),),
        unknown=Pixels("normal", box=True),
        restarts=min(2**batch_size, _MOST_RESTARTS) if numbers else 1,
        soft_labels=targets is None,
    )
    matched = solve(problem, plan)
    return _leak(problem, matched, targets is not None, time.perf_counter() - start)


def _leak(problem: Problem, matched: Matched, granted: bool, seconds: float) -> Leak:
    how = "granted" if granted else "estimated along with them"
    note = (
        f"Pictures by gradient matching carry no certificate; the targets were {how}. After "
        f"{matched.steps} steps the distance of gradients is {matched.match:.2g}."
    )
    # there are no classes to name
    none = torch.full((problem.batch_size, 1), math.nan, dtype=torch.float64)
    rows = matched.targets.ndim == 2 and matched.targets.is_floating_point()
    return Leak(
        METHOD,
        matched.targets.detach().double() if rows else none,
        none,
        torch.zeros(problem.batch_size, 1),
        _unexplained(problem, matched),
        math.inf,
        exact=False,
        knowledge=Knowledge(targets_of_any_kind=problem.targets),
        pictures_first=True,
        images=matched.images.float(),
        seconds=seconds,
        notes=[*matched.notes, note],
        history={name: values.float() for name, values in matched.history.items()},
    )


def _unexplained(problem: Problem, matched: Matched) -> float:
    """‖∇ − ĝ‖ / ‖ĝ‖ of the pictures found, with ∇ stretched to fit best, since the cosine leaves
    its scale open."""
    protocol = needed(problem.protocol, "The loss")
    named = {name: p for name, p in problem.model.named_parameters() if name in problem.sent}
    with quiet(problem.model, named), torch.enable_grad():
        found = protocol.gradients(
            problem.model, matched.images, matched.targets, list(named.values())
        )
    sent = [problem.sent[name] for name in named]
    inner = sum(float((a.detach() * b).sum()) for a, b in zip(found, sent, strict=True))
    length = float(norm([g.detach() for g in found]))
    cosine = inner / max(length * float(norm(sent)), 1e-30)
    return math.sqrt(max(1 - cosine**2, 0.0)) if cosine > 0 else 1.0
