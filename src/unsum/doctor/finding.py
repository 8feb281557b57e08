"""What a check says: one sentence with a mark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mark = Literal["ok", "warning", "will not work", "tampered"]


@dataclass(frozen=True)
class Finding:
    """`check` names what was looked at; `sentence` says what was found and, where it is bad, what to do.

    Examples:
        >>> Finding("ok", "head", "The logits come from 'fc'.").mark
        'ok'
    """

    mark: Mark
    check: str
    sentence: str


def ok(check: str, sentence: str) -> Finding:
    return Finding("ok", check, sentence)


def warning(check: str, sentence: str) -> Finding:
    return Finding("warning", check, sentence)


def tampered(check: str, sentence: str) -> Finding:
    return Finding("tampered", check, sentence)


def will_not_work(check: str, sentence: str) -> Finding:
    return Finding("will not work", check, sentence)
