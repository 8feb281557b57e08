"""iDLG (improved DLG): the label by rule first, then DLG for the pixels alone.

y = argmin_c Σ_k ∇W_ck,   min over x of ‖∇L(x, y) − ĝ‖²        300 steps of L-BFGS with rate 1
"""

from __future__ import annotations

from unsum.match.dlg import dlg
from unsum.match.engine import Matched
from unsum.match.method import MatcherNeeds, matcher
from unsum.match.problem import Problem


@matcher(
    "idlg",
    summary="gradient matching: the label by rule, then pixels by L-BFGS (iDLG)",
    needs=MatcherNeeds(rule="idlg", one_sample=True, scale=True),
)
def idlg(problem: Problem, *, steps: int = 300, restarts: int = 1, rate: float = 1.0) -> Matched:
    return dlg(problem, steps=steps, restarts=restarts, rate=rate)
