"""GradInversion (See Through Gradients): several seeds that keep to each other, and pictures as
BatchNorm remembers them.

    min over x of α ‖∇L(x, y) − ĝ‖² + α_tv TV(x) + α_l2 ‖x‖² + α_bn R_BN(x) + α_group ‖x − mean over
    seeds of x‖²

by Adam, rate 0.1 with a step decay, labels by the rule of the same paper. Before seeds are averaged
they are shifted onto each other (`registered_mean`, simpler than the published registration).
Without BatchNorm layers R_BN is nothing.

The published weights belong to a sum over gradients of ImageNet networks; here l2 is divided by
‖ĝ‖², so that one set of weights suits networks of all sizes.
"""

from __future__ import annotations

from torch import nn

from unsum.match.engine import Matched, solve
from unsum.match.method import MatcherNeeds, matcher
from unsum.match.objective import Objective
from unsum.match.optimizers import Adam
from unsum.match.problem import Plan, Problem
from unsum.match.regularizers import (
    BatchNormPrior,
    GroupConsistency,
    Regularizer,
    SquaredNorm,
    TotalVariation,
)
from unsum.match.unknown import Pixels


@matcher(
    "gradinversion",
    summary=(
        "gradient matching: BatchNorm's statistics and agreement of several seeds (GradInversion)"
    ),
    needs=MatcherNeeds(rule="gradinversion", batch_size=True, scale=True),
)
def gradinversion(
    problem: Problem,
    *,
    steps: int = 20_000,
    restarts: int = 4,
    total_variation: float = 1e-2,
    squared_norm: float = 1e-6,
    batch_norm: float = 1e-3,
    group: float = 1e-5,
    rate: float = 0.1,
    half: bool = False,
) -> Matched:
    has_norms = any(
        isinstance(module, nn.modules.batchnorm._BatchNorm) for module in problem.model.modules()
    )
    terms: list[Regularizer] = [TotalVariation(total_variation), SquaredNorm(squared_norm)]
    if has_norms and batch_norm:
        terms.append(BatchNormPrior(batch_norm))
    if restarts > 1 and group:
        terms.append(GroupConsistency(group))
    unknown, regularizers = Pixels("normal", box=True), tuple(terms)
    objective = Objective("l2", relative=True)
    plan = Plan(objective, Adam(rate), steps, regularizers, unknown, restarts=restarts, half=half)
    return solve(problem, plan)
