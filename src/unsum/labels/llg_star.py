"""LLG*: LLG with impact and offsets measured on random inputs instead of data.

The inputs do not depend on the class they are labeled with, so one forward pass serves all C
single-class batches of a round: with probabilities p_i and feature sums S_i = Σ_k f_ik, a batch all
labeled a has g^a_c = mean_i (p_ic − [c = a]) S_i, hence

    m = (1 + 1/C)/B · mean_c mean_i (p_ic − 1) S_i = −(1 + 1/C)(1 − 1/C)/B · mean_i S_i,
    s_c = mean_i p_ic S_i

averaged over ten rounds of uniform noise.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsum.labels.llg import count_down
from unsum.labels.method import Clues, RuleNeeds, label_rule
from unsum.labels.probe import ROUNDS, Probe, negative_impact, probe_size


@label_rule(
    "llg*",
    summary="LLG with impact and offsets from random inputs (LLG*)",
    needs=RuleNeeds(batch_size=True, scale=True, non_negative_features=True),
)
def llg_star(evidence: Clues) -> Tensor:
    """(B,) labels with m and s from noise sent through the model."""
    C, B = evidence.head.classes, evidence.B
    generator = torch.Generator().manual_seed(evidence.seed)
    probe = Probe.of(evidence)
    shape = probe.input_shape()
    offset = torch.zeros_like(evidence.row_sums)
    for _ in range(ROUNDS):
        noise = torch.rand(probe_size(B), *shape, generator=generator)
        offset += probe.row_sums(noise, None) / ROUNDS
    # rows of p sum to 1, so s sums to mean_i S_i
    impact = -float(offset.sum()) * (1 - 1 / C) * (1 + 1 / C) / B
    return count_down(evidence.row_sums, negative_impact("llg*", impact), offset, B)
