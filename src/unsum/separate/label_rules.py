"""Labels read off a separator: Y = softmax(T K + b) − B (U T⁻¹)ᵀ names every sample's label,
duplicates included.

`exact` needs no batch size, no bias, no scale, and takes soft labels too (the largest entry is the
label). What it costs and how far it goes is the solver's own story: fewer samples than classes, or
it may guess. `adaptive` finds those that a defense left: pruning empties most of the bias gradient,
which other rules look at first; the label rows of ∇W stay the longest.
"""

from __future__ import annotations

import math
from functools import partial

from torch import Tensor

from unsum.errors import UnsumError
from unsum.knowledge import Knowledge
from unsum.labels.method import Clues, RuleNeeds, label_rule
from unsum.separate.adaptive import adaptive
from unsum.separate.exact import exact
from unsum.separate.method import Separator

_NEEDS = RuleNeeds(fewer_samples_than_classes=True, hard_labels=False)


def _read_off(separator: Separator, name: str, evidence: Clues) -> Tensor:
    """(B,) the label of every sample that the separator finds."""
    leak = separator(
        evidence.head, Knowledge(batch_size=evidence.knowledge.known_batch_size), seed=evidence.seed
    )
    if math.isinf(leak.predicted_error) and leak.residual == 1:  # the solver's empty-handed answer
        raise UnsumError(
            f"{name!r} finds no label: {leak.notes[0]} Give the labels, or another rule."
        )
    return leak.labels


for _name, _separator, _summary in (
    ("exact", exact, "every label, read off the exact solver (unsum)"),
    (
        "adaptive",
        adaptive,
        "every label that a defense left, read off the adaptive separator (unsum)",
    ),
):
    label_rule(_name, summary=_summary, needs=_NEEDS)(partial(_read_off, _separator, _name))
