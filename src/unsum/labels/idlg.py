"""iDLG: the label of a single sample is the row of the head's gradient that points against the
features.

For one sample ∇W_c = (p_c − y_c) f with f ≥ 0. Only c = y has a negative factor, so only its row
sums to something negative:

    y = argmin_c Σ_k ∇W_ck
"""

from __future__ import annotations

from torch import Tensor

from unsum.labels.method import Clues, RuleNeeds, label_rule


@label_rule(
    "idlg",
    summary="one sample's label: the lowest row sum (iDLG)",
    needs=RuleNeeds(non_negative_features=True, one_sample=True),
)
def idlg(evidence: Clues) -> Tensor:
    """(1,) the class of the lowest row sum."""
    return evidence.row_sums.argmin()[None]
