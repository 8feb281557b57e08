"""Labels by sign: only a class that some sample carries can have a negative bias gradient.

∇b_c = mean_i (p_ic − y_ic), and p > 0, so ∇b_c < 0 proves that class c is in the batch. The
converse fails when other samples predict c strongly enough, and nothing tells how often c occurs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsum.errors import UnsumError
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.labels.method import Clues, RuleNeeds, label_rule


@label_rule(
    "bias-sign",
    summary="classes whose bias gradient is negative",
    needs=RuleNeeds(bias=True, distinct_labels=True),
)
def rule(evidence: Clues) -> Tensor:
    return bias_sign(evidence.head, evidence.knowledge.known_batch_size)


def bias_sign(head: Head, batch_size: int | None) -> Tensor:
    """The classes of negative bias gradient, or the `batch_size` lowest ones where the size is
    known."""
    if head.grad_b is None:  # separators call this straight, without the declared needs
        raise UnsumError("'bias-sign' needs the head's bias gradient; give the labels instead.")
    if batch_size is None:
        found = torch.nonzero(head.grad_b < 0).flatten()
        if len(found) == 0:
            raise UnsumError(
                "No class has a negative bias gradient, so 'bias-sign' finds no label; give the "
                "labels."
            )
        return found
    if batch_size > head.classes:
        raise UnsumError(
            f"'bias-sign' finds distinct labels, which {batch_size} samples of {head.classes} "
            "classes cannot have; give the labels."
        )
    return head.grad_b.argsort()[:batch_size].sort().values


def hard_labels(head: Head, knowledge: Knowledge) -> Tensor:
    """(B,) on the head's device: the granted labels' largest entries, or the classes of negative
    bias gradient."""
    granted = knowledge.targets(head.classes)
    return (
        bias_sign(head, knowledge.batch_size)
        if granted is None
        else granted.argmax(1).to(head.W.device)
    )


def are_soft(head: Head, knowledge: Knowledge) -> bool:
    """Whether the granted labels are anything but rows with a single one."""
    granted = knowledge.targets(head.classes)
    return granted is not None and bool(
        ((granted != 0) & (granted != 1)).any() | (granted.sum(1) != 1).any()
    )
