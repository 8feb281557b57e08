"""LLG+: LLG with impact and offsets measured on labeled samples of the attacker's own.

For each class a there are samples of, batches of class a alone go through the model; g^a are the
row sums of their gradients. Then, averaged over ten rounds,

    m = (1 + 1/C)/B · mean_a g^a_a,    s_c = mean_{a ≠ c} g^a_c

A batch is drawn with replacement and holds at most 64 samples: its gradient is a mean, so more only
cost time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsum.errors import UnsumError, needed
from unsum.labels.llg import count_down
from unsum.labels.method import Clues, RuleNeeds, label_rule
from unsum.labels.probe import ROUNDS, Probe, negative_impact, probe_size


@label_rule(
    "llg+",
    summary="LLG with impact and offsets from auxiliary data (LLG+)",
    needs=RuleNeeds(batch_size=True, scale=True, auxiliary=True, non_negative_features=True),
)
def llg_plus(evidence: Clues) -> Tensor:
    """(B,) labels with m and s from single-class batches of `auxiliary`."""
    images, labels = needed(
        evidence.knowledge.auxiliary, "Labeled data of the attacker's own (auxiliary=)"
    )
    C, B = evidence.head.classes, evidence.B
    classes = labels.unique()
    if len(classes) < 2 or int(classes[0]) < 0 or int(classes[-1]) >= C:
        raise UnsumError(
            f"'llg+' needs auxiliary samples of two classes or more, numbered 0…{C - 1}; add some, "
            "or use 'llg*'."
        )
    generator = torch.Generator().manual_seed(evidence.seed)
    probe = Probe.of(evidence)
    g = evidence.row_sums.new_zeros(len(classes), C)
    for row, label in enumerate(classes):
        own = images[labels == label]
        for _ in range(ROUNDS):
            drawn = torch.randint(len(own), (probe_size(B),), generator=generator)
            g[row] += probe.row_sums(own[drawn.to(own.device)], int(label)) / ROUNDS
    at = (torch.arange(len(classes), device=g.device), classes.to(g.device))
    impact = float(g[at].mean()) * (1 + 1 / C) / B
    own_share = torch.zeros_like(g[0]).index_add_(0, at[1], g[at])
    others = len(classes) - torch.zeros_like(g[0]).index_fill_(0, at[1], 1)
    return count_down(
        evidence.row_sums, negative_impact("llg+", impact), (g.sum(0) - own_share) / others, B
    )
