"""What a check says: one sentence with a mark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mark = Literal["ok", "warning", "will not work", "tampered"]
Said = tuple[Mark, str]  # what a check returns; its name stands where it is called


@dataclass(frozen=True)
class Finding:
    """`check` names what was looked at; `sentence` says what was found and, where it is bad, what
    to do.

    Examples:
        >>> Finding("ok", "head", "The logits come from 'fc'.").mark
        'ok'
    """

    mark: Mark
    check: str
    sentence: str
