"""DLG (deep leakage from gradients): pixels and soft labels together, by L-BFGS, until their
gradient is the one received.

    min over x, ŷ of ‖∇L(x, softmax(ŷ)) − ĝ‖²

    from normal noise, 300 steps of L-BFGS with rate 1

Granted labels take the place of ŷ.
"""

from __future__ import annotations

from unsum.match.engine import Matched, solve
from unsum.match.method import MatcherNeeds, matcher
from unsum.match.objective import Objective
from unsum.match.optimizers import LBFGS
from unsum.match.problem import Plan, Problem
from unsum.match.unknown import Pixels


@matcher(
    "dlg",
    summary="gradient matching: pixels and soft labels by L-BFGS (DLG)",
    needs=MatcherNeeds(batch_size=True, scale=True),
)
def dlg(problem: Problem, *, steps: int = 300, restarts: int = 1, rate: float = 1.0) -> Matched:
    unknown, soft_labels = Pixels("normal", box=False), problem.targets is None
    plan = Plan(
        Objective("l2"),
        LBFGS(rate),
        steps,
        unknown=unknown,
        restarts=restarts,
        soft_labels=soft_labels,
    )
    return solve(problem, plan)
