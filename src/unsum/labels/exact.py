"""Labels read off the exact solver: Y = softmax(T K + b) − B (U T⁻¹)ᵀ names every sample's label, duplicates included.

It needs no batch size, no bias, no scale, and takes soft labels too (the largest entry is the label). What it costs and how
far it goes is the solver's own story: fewer samples than classes, or it may guess.
"""

from __future__ import annotations

import math

from torch import Tensor

from unsum.errors import UnsumError
from unsum.knowledge import Knowledge
from unsum.labels.method import Evidence, label_rule
from unsum.labels.needs import Needs


@label_rule(
    "exact",
    summary="every label, read off the exact solver (unsum)",
    needs=Needs(fewer_samples_than_classes=True, hard_labels=False),
)
def exact_labels(evidence: Evidence) -> Tensor:
    """(B,) the label of every sample that the exact solver finds."""
    from unsum.separate.exact import exact  # here, because separators import label rules

    leak = exact(evidence.head, Knowledge(batch_size=evidence.knowledge.known_batch_size), seed=evidence.seed)
    if math.isinf(leak.predicted_error) and leak.residual == 1:  # the solver's empty-handed answer
        raise UnsumError(f"'exact' finds no label: {leak.notes[0]} Give the labels, or another rule.")
    return leak.labels
