"""The reconstruction that comes with soft-label recovery: separate the batch first, then match
gradients, features, or both.

    soft-g    all gradients                                          D(∇(x), ĝ) + α TV(x)
    soft-f    the head's gradient left out, features in its place    D(∇(x), ĝ) + s F(feat(x), f̂)
                                                                       + α TV(x)
    soft-gf   both

with D and F by `distance`: squared l2 (L-BFGS, rate 1, 300 steps) or 1 − cos (Adam, rate 0.1 with
step decay, 4800 steps). Features and targets, soft ones too, come from our own separator, for whole
batches and not only for one sample; from the published one, which is for one sample, with
`separator="soft"`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

from unsum.errors import check_name, needed
from unsum.gradients import Distance
from unsum.match.engine import Matched, solve
from unsum.match.method import MatcherNeeds, matcher
from unsum.match.objective import Objective
from unsum.match.optimizers import LBFGS, Adam, Optimizer
from unsum.match.problem import Plan, Problem
from unsum.match.regularizers import FeatureTerm, Regularizer, TotalVariation
from unsum.match.unknown import Pixels

_MODES = {
    "g": "all gradients",
    "f": "features and the backbone's gradients",
    "gf": "features and all gradients",
}
_STEPS = 4800  # as published
_ADAM_STEPS_PER_LBFGS_STEP = 16  # 4800 of the one are published beside 300 of the other


def _declare(mode: Literal["g", "f", "gf"]) -> Callable[..., Matched]:
    @matcher(
        f"soft-{mode}",
        summary=f"gradient matching after separation: {_MODES[mode]} (soft-label recovery)",
        needs=MatcherNeeds(separator="exact"),
    )
    def soft(
        problem: Problem,
        *,
        steps: int = _STEPS,
        restarts: int = 1,
        distance: Distance = "cosine",
        feature_weight: float = 1.0,
        total_variation: float = 1e-2,
        separator: str = "exact",  # noqa: ARG001 (it has separated the batch before this is called)
    ) -> Matched:
        check_name("distance", distance, get_args(Distance))
        terms: list[Regularizer] = [TotalVariation(total_variation)]
        if mode != "g":
            features = needed(problem.separated, "An answer of a separator").features.to(
                problem.zero
            )
            terms.append(FeatureTerm(feature_weight, features, distance))
        by_lbfgs = distance == "l2"
        optimizer: Optimizer = LBFGS() if by_lbfgs else Adam(0.1)
        plan = Plan(
            Objective(distance, relative=by_lbfgs),
            optimizer,
            max(1, steps // _ADAM_STEPS_PER_LBFGS_STEP) if by_lbfgs else steps,
            regularizers=tuple(terms),
            unknown=Pixels("normal", box=not by_lbfgs),
            restarts=restarts,
            gradients="backbone" if mode == "f" else "all",
        )
        return solve(problem, plan)

    return soft


soft_g, soft_f, soft_gf = (_declare("g"), _declare("f"), _declare("gf"))
