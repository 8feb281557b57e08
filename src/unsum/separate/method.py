"""What a separator is: from the head's gradient to every sample's features, logits and labels."""

from __future__ import annotations

from typing import Protocol

from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.registry import Registry


class Separator(Protocol):
    """Takes the head with its gradient and what was granted; `seed` fixes every random choice.

    Further keyword-only arguments with defaults are the method's options: `separate(..., name=value)` passes them on and
    reads their names from the signature. One called `progress` gets the caller's `progress`; those called `model` and `update`
    get these, for methods that need more than the head.
    """

    def __call__(self, head: Head, knowledge: Knowledge, *, seed: int) -> Leak: ...


SEPARATORS: Registry[Separator] = Registry("attack", "unsum.attacks")
