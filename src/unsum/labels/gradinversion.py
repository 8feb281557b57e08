"""GradInversion's label rule: the B rows of the head's gradient with the lowest entries.

∇W_ck = mean_i (p_ic − y_ic) f_ik with f ≥ 0: an entry is negative only where a sample of class c is
active, so

    labels = the B classes of lowest min_k ∇W_ck

The minimum over k instead of the sum keeps a label visible as long as one feature belongs to its
sample alone. Each class is named at most once.
"""

from __future__ import annotations

from torch import Tensor

from unsum.labels.method import Clues, RuleNeeds, label_rule


@label_rule(
    "gradinversion",
    summary="classes of the B lowest row minima (GradInversion)",
    needs=RuleNeeds(batch_size=True, non_negative_features=True, distinct_labels=True),
)
def gradinversion(evidence: Clues) -> Tensor:
    """(B,) distinct classes."""
    return evidence.head.grad_W.amin(1).argsort(stable=True)[: evidence.B]
