"""Texts beside what came back of them, and the verdict over a language model's update.

The leakage of a text is the share of its tokens that were found in their place: 1 is the text itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from unsum.audit.leakage import DEFAULT_LEVEL, WHOLE
from unsum.audit.verdict import UNVOUCHED, Verdict, certificate
from unsum.audit.wording import percent
from unsum.leak import Leak


@dataclass(frozen=True)
class Texts:
    """What the client trained on (empty where nobody knows) and what was found, in the attacker's order."""

    true: list[str]
    found: list[str]
    tokens_alone: float = 0.0  # the share of all tokens that were found without their order

    def judge(self, leak: Leak, leakages: Sequence[float]) -> Verdict:
        """The verdict, by the same levels as over any other sample."""
        if not self.true:
            return _judge_captured(leak, len(self.found))
        total = len(self.true)
        whole, part = (sum(value >= level for value in leakages) for level in (WHOLE, DEFAULT_LEVEL))
        details = [_amount(leakages), certificate(leak)]
        if part:
            headline = (
                f"This update gives away {_count(whole, total) if whole else f'a part of {_count(part, total)}'}."
            )
            return Verdict("severe" if whole == total else "partial", part / total, headline, details)
        if self.tokens_alone >= DEFAULT_LEVEL:
            found = f"{percent(self.tokens_alone)} of all tokens were found, in no order."
            return Verdict("labels", math.nan, "This update gives away the words of the texts, in no order.", [found])
        reason = leak.notes[0] if leak.notes else "it gives no reason"
        return Verdict.undecided(
            f"the attack on text did not get through: {reason[:1].lower()}{reason[1:]}", details[1:]
        )


def _judge_captured(leak: Leak, found: int) -> Verdict:
    details = [f"Found in the update: {found} {'text' if found == 1 else 'texts'}.", certificate(leak)]
    if leak.exact and found:
        return Verdict("severe", 1.0, "This update gives away every text that was found in it.", details)
    return Verdict.undecided(UNVOUCHED, details)


def _amount(leakages: Sequence[float]) -> str:
    known = [value for value in leakages if not math.isnan(value)]
    mean, most = (math.fsum(known) / len(known), max(known)) if known else (math.nan, math.nan)
    return f"{percent(mean)} of a text's tokens were found in their place on average, {percent(most)} at most."


def _count(number: int, total: int) -> str:
    if number == total:
        return "every text of the client's" if total > 1 else "the client's text"
    return f"{number} of the client's {total} texts"
