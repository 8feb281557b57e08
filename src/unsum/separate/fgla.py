"""FGLA, the ratio method: a label row of the head's gradient, cleaned of the others' share, is one
sample's features.

With G = (P − Y)/B, the row of a label y that only sample i carries is

    ∇W_y = (p_iy − 1)/B · f_i + Σ_{j≠i} p_jy/B · f_j        and ∇b_y alike with f = 1.

Near initialization p hardly depends on the class, so the last sum is about (B − 1)/B of the mean
row of the classes that nobody carries; subtract it and divide:

    f_i = (∇W_y − oW) / (∇b_y − ob),    oW = (B − 1)/B · mean_{c∉y} ∇W_c,  ob alike,    0/0 → 0.

Samples that share a label share a row and come back as one weighted mean. Of a compressed gradient,
what was set to zero is lost: a label without its bias entry has no denominator and comes back as
zeros (as published where ob vanished too).
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsum.errors import UnsumError
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.labels.bias_sign import are_soft, hard_labels
from unsum.leak import Leak
from unsum.separate.method import SEPARATORS, uncertified


@SEPARATORS.register(
    "fgla",
    summary="ratio of label rows (FGLA)",
    needs="bias gradient, distinct hard labels, early training",
)
def fgla(head: Head, knowledge: Knowledge, *, seed: int) -> Leak:
    """Features by f_i = (∇W_y − oW) / (∇b_y − ob), o = (B − 1)/B · mean over unlabeled classes.
    Uses no randomness."""
    if head.grad_b is None:
        raise UnsumError(
            "The attack 'fgla' needs the head's bias gradient; use 'exact', which does not."
        )
    labels = hard_labels(head, knowledge)
    present = labels.unique()
    absent = torch.ones(head.classes, dtype=torch.bool, device=labels.device)
    absent[present] = False
    if not absent.any():
        raise UnsumError(
            "The attack 'fgla' needs a class that no sample carries; every class is in this batch."
        )

    features = _ratios(head, head.grad_b, present, absent, len(labels))[
        torch.searchsorted(present, labels)
    ]
    targets = torch.nn.functional.one_hot(labels, head.classes).double()
    logits = features @ head.W.double().T + (0 if head.b is None else head.b.double())
    notes = _notes(head, len(labels), present, head.grad_b[present], are_soft(head, knowledge))
    return uncertified("fgla", head, logits, targets, features, notes)


def _ratios(head: Head, grad_b: Tensor, present: Tensor, absent: Tensor, B: int) -> Tensor:
    """(labels, H) in float64: one row for every class in `present`."""
    mean = absent.double() / absent.sum()
    others_share = (B - 1) / B
    o_W = head.mixed_rows(mean.unsqueeze(0)) * others_share
    o_b = (grad_b.double() @ mean) * others_share
    denominator = grad_b[present].double() - o_b
    # pruned: what is left of it would be the others' share alone
    denominator[grad_b[present] == 0] = torch.inf
    return torch.nan_to_num(
        (head.grad_W[present].double() - o_W) / denominator[:, None],
        nan=0.0,
        posinf=0.0,
        neginf=0.0,
    )


def _notes(head: Head, B: int, present: Tensor, grad_b: Tensor, soft: bool) -> list[str]:
    """What a person should know, of soft and of shared labels and of what a compressed gradient no
    longer holds."""
    without_bias, silent = int((grad_b == 0).sum()), int((~head.grad_W[present].any(0)).sum())
    shared = len(present) < B
    notes = {
        (
            "The ratio method carries no certificate: its features are approximate and their error "
            "is not predicted."
        ): True,
        (
            "The granted labels are soft; the ratio method is made for hard ones and used their "
            "largest entry only."
        ): soft,
        (
            f"{B} samples share {len(present)} labels: samples of one label are returned as one "
            "weighted mean."
        ): shared,
        (
            f"{without_bias} of {len(present)} labels have no bias gradient left (pruned): their "
            "features come back as zeros."
        ): (without_bias),
        f"{silent} of {head.grad_W.shape[1]} features are zero in every label row, pruned or "
        "silent in every sample; they are lost here.": silent,
    }
    return [note for note, holds in notes.items() if holds]
