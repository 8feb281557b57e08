"""IG (inverting gradients): the direction of the gradient, and smooth pictures.

    min over x in [0, 1] of 1 − cos(∇L(x, y), ĝ) + α TV(x)

by Adam on the sign of the gradient, rate 0.1, ×0.1 after 3/8, 5/8 and 7/8 of 24 000 steps.
"""

from __future__ import annotations

from unsum.match.engine import Matched, solve
from unsum.match.method import MatcherNeeds, matcher
from unsum.match.objective import Objective
from unsum.match.optimizers import Adam
from unsum.match.problem import Plan, Problem
from unsum.match.regularizers import TotalVariation
from unsum.match.unknown import Pixels


@matcher(
    "ig",
    summary="gradient matching: cosine and total variation, signed Adam (Inverting Gradients)",
    needs=MatcherNeeds(rule="exact"),
)
def ig(
    problem: Problem,
    *,
    steps: int = 24_000,
    restarts: int = 1,
    total_variation: float = 1e-2,
    rate: float = 0.1,
    masked: bool = False,
    half: bool = False,
) -> Matched:
    plan = Plan(
        Objective("cosine", masked=masked),
        Adam(rate, signed=True),
        steps,
        regularizers=(TotalVariation(total_variation),),
        unknown=Pixels("normal", box=True),
        restarts=restarts,
        half=half,
    )
    return solve(problem, plan)
