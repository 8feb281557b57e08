"""Class numbers for the methods that are made for hard labels: as granted, or by the bias-sign rule."""

from __future__ import annotations

from torch import Tensor

from unsum.errors import UnsumError
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.labels.bias_sign import bias_sign


def hard_labels(head: Head, knowledge: Knowledge) -> Tensor:
    """(B,) on the head's device: the granted labels' largest entries, or the classes of negative bias gradient."""
    granted = knowledge.targets(head.classes)
    return bias_sign(head, knowledge.batch_size) if granted is None else granted.argmax(1).to(head.W.device)


def are_soft(head: Head, knowledge: Knowledge) -> bool:
    """Whether the granted labels are anything but rows with a single one."""
    granted = knowledge.targets(head.classes)
    return granted is not None and bool(((granted != 0) & (granted != 1)).any() | (granted.sum(1) != 1).any())


def refuse_soft(method: str, head: Head, knowledge: Knowledge) -> None:
    if are_soft(head, knowledge):
        raise UnsumError(
            f"The attack {method!r} needs hard labels and was given soft ones; use 'exact', which takes both."
        )
