"""Whole gradient → images: the pictures whose gradient is the one received, found by optimization.

One engine (`engine.solve`) does all the work; a method is a declaration of what to minimize, over
what, and how. To add one, write a file like this and import it below:

```python
from unsum.match.engine import Matched, solve
from unsum.match.method import MatcherNeeds, matcher
from unsum.match.objective import Objective
from unsum.match.optimizers import Adam
from unsum.match.problem import Plan
from unsum.match.problem import Problem
from unsum.match.regularizers import TotalVariation
from unsum.match.unknown import LowResolution


@matcher(
    "coarse",
    summary="gradient matching: pictures of a quarter of the side",
    needs=MatcherNeeds(rule="exact"),  # how labels are found where none are granted
)
def coarse(problem: Problem, *, steps: int = 500, total_variation: float = 1e-3) -> Matched:
    plan = Plan(
        Objective("cosine"),  # or "l2"; masked=True: only where the received gradient is not zero
        Adam(0.05, signed=True),  # or LBFGS()
        steps,
        regularizers=(TotalVariation(total_variation),),
        unknown=LowResolution(problem.shape[1:]),
    )
    return solve(problem, plan)
```

The unknown is any object with `start`, `pictures` and `project` (see `unknown.py`): pixels, coarse
pixels, latents of a generator, or the generator's own weights. A `Regularizer` has a weight and a
`__call__` from a `Scene` to one value per restart. `Plan.amend` is called every `amend_every` steps
with one restart's leaves, to put them through a denoiser, say. A method of several stages calls
`solve` for each, with a `Plan.stage` that tells their checkpoints apart; a method that is no
optimization returns a `Matched` of its own. `problem` holds the model, the received gradients and
what is known of the batch; the truth is nowhere in it.
"""

from unsum.match import (  # noqa: F401 (registers them)
    dlg,
    ggl,
    gias,
    gradinversion,
    hcgla,
    idlg,
    ig,
    lti,
    posterior,
    rog,
    soft,
)
from unsum.match.engine import Matched, solve
from unsum.match.method import MATCHERS, MatcherNeeds, matcher
from unsum.match.problem import Plan, Problem
from unsum.match.run import match

__all__ = ["MATCHERS", "Matched", "MatcherNeeds", "Plan", "Problem", "match", "matcher", "solve"]
