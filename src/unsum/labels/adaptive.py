"""Labels read off the adaptive separator: those that the exact solver finds, and those that a defense left.

Pruning empties most of the bias gradient, which other rules look at first; the label rows of ∇W stay the longest.
"""

from __future__ import annotations

import math

from torch import Tensor

from unsum.errors import UnsumError
from unsum.knowledge import Knowledge
from unsum.labels.method import Evidence, label_rule
from unsum.labels.needs import Needs


@label_rule(
    "adaptive",
    summary="every label that a defense left, read off the adaptive separator (unsum)",
    needs=Needs(fewer_samples_than_classes=True, hard_labels=False),
)
def adaptive_labels(evidence: Evidence) -> Tensor:
    """(B,) the label of every sample that the adaptive separator finds."""
    from unsum.separate.adaptive import adaptive  # here, because separators import label rules

    leak = adaptive(evidence.head, Knowledge(batch_size=evidence.knowledge.known_batch_size), seed=evidence.seed)
    if math.isinf(leak.predicted_error) and leak.residual == 1:  # the solver's empty-handed answer
        raise UnsumError(f"'adaptive' finds no label: {leak.notes[0]} Give the labels, or another rule.")
    return leak.labels
