"""What a label rule is: from the head's gradient to the batch's labels."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from unsum.head import Head
from unsum.registry import Registry


class LabelRule(Protocol):
    """Returns (B,) class numbers, sorted; a class that several samples share may stand there several times."""

    def __call__(self, head: Head, batch_size: int | None) -> Tensor: ...


LABEL_RULES: Registry[LabelRule] = Registry("label rule")
