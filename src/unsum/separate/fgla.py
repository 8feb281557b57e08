"""FGLA, the ratio method: a label row of the head's gradient, cleaned of the others' share, is one sample's features.

With G = (P − Y)/B, the row of a label y that only sample i carries is

    ∇W_y = (p_iy − 1)/B · f_i + Σ_{j≠i} p_jy/B · f_j        and ∇b_y alike with f = 1.

Near initialisation p hardly depends on the class, so the last sum is about (B − 1)/B of the mean row of the classes that
nobody carries; subtract it and divide. Samples that share a label share a row and come back as one weighted mean.
"""

from __future__ import annotations

import torch

from unsum.errors import UnsumError
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.labels.bias_sign import bias_sign
from unsum.leak import Leak
from unsum.separate.method import SEPARATORS
from unsum.separate.misfit import relative_misfit


@SEPARATORS.register(
    "fgla", summary="ratio of label rows (FGLA)", needs="bias gradient, distinct hard labels, early training"
)
def fgla(head: Head, knowledge: Knowledge, *, seed: int) -> Leak:
    """Features by f_i = (∇W_y − oW) / (∇b_y − ob), o = (B − 1)/B · mean over unlabelled classes. Uses no randomness."""
    if head.grad_b is None:
        raise UnsumError("The attack 'fgla' needs the head's bias gradient; use 'exact', which does not.")
    granted = knowledge.targets(head.classes)
    labels = bias_sign(head, knowledge.batch_size) if granted is None else granted.argmax(1).to(head.W.device)
    B, present = len(labels), labels.unique()
    absent = torch.ones(head.classes, dtype=torch.bool, device=labels.device)
    absent[present] = False
    if not absent.any():
        raise UnsumError("The attack 'fgla' needs a class that no sample carries; every class is in this batch.")

    others_share = (B - 1) / B
    o_W = head.grad_W[absent].double().mean(0) * others_share
    o_b = head.grad_b[absent].double().mean() * others_share
    ratios = (head.grad_W[present].double() - o_W) / (head.grad_b[present].double() - o_b).unsqueeze(1)
    ratios = torch.nan_to_num(ratios, nan=0.0, posinf=0.0, neginf=0.0)
    features = ratios[torch.searchsorted(present, labels)]

    targets = torch.nn.functional.one_hot(labels, head.classes).double()
    logits = features @ head.W.double().T + (0 if head.b is None else head.b.double())
    return Leak(
        method="fgla",
        targets=targets,
        logits=logits,
        features=features.float(),
        residual=relative_misfit(head, logits, targets, features),
        predicted_error=float("nan"),
        exact=False,
        notes=_notes(B, present),
    )


def _notes(B: int, present: torch.Tensor) -> list[str]:
    notes = ["The ratio method carries no certificate: its features are approximate and their error is not predicted."]
    if len(present) < B:
        notes.append(
            f"{B} samples share {len(present)} labels: samples of one label are returned as one weighted mean."
        )
    return notes
