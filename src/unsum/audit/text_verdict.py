"""Texts beside what came back of them, and the verdict over a language model's update.

The leakage of a text is the share of its tokens that were found in their place: 1 is the text
itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from unsum.audit import ceiling_words
from unsum.audit.leakage import DEFAULT_LEVEL, WHOLE, Shares
from unsum.audit.verdict import (
    NOTHING_READ,
    Verdict,
    certificate,
    count,
    level_by,
)
from unsum.audit.wording import percent
from unsum.ceiling.result import Ceiling
from unsum.leak import Leak
from unsum.score.occurred import RowsNamed


@dataclass(frozen=True)
class Texts:
    """What the client trained on (empty where nobody knows) and what was found, in the attacker's
    order."""

    true: list[str]
    found: list[str]
    tokens_alone: float = 0.0  # the share of all tokens that were found without their order

    def judge(
        self,
        leak: Leak,
        shares: Sequence[Shares],
        occurred: Sequence[RowsNamed] = (),
        bound: Ceiling | None = None,
    ) -> Verdict:
        """The verdict where the truth is known, by the same levels as over any other sample."""
        rows = [named.sentence for named in occurred]
        total, leakages = len(self.true), [share.most for share in shares]
        whole, part = count(leakages, WHOLE), count(leakages)
        known = [value for value in leakages if not math.isnan(value)]
        mean, most = (math.fsum(known) / len(known), max(known)) if known else (math.nan, math.nan)
        figure = (
            percent(mean)
            if percent(mean) == percent(most)
            else f"{percent(mean)} on average, up to {percent(most)},"
        )
        amount = f"{figure} of a text's tokens were found in their place."
        above = [*rows, *([] if bound is None else [ceiling_words.beside(bound)])]
        details = [*([amount] if known else []), certificate(leak), *above]
        alarm = "" if bound is None else ceiling_words.exceeded(leakages, bound)
        if part:
            given = _texts(whole, total) if whole else f"a part of {_texts(part, total)}"
            headline = f"This update gives away {given}."
            return Verdict(
                level_by(shares), part / total, headline, details, read="text", alarm=alarm
            )
        headline = "This update gives away the words of the texts, in no order."
        if self.tokens_alone >= DEFAULT_LEVEL:
            words = f"{percent(self.tokens_alone)} of all tokens were found, in no order."
            return Verdict("labels", math.nan, headline, [words, *above], read="words")
        if any(named.given_away for named in occurred):
            return Verdict("labels", math.nan, headline, above, read="words")
        if bound is not None and bound.decided(DEFAULT_LEVEL) == "below" and not alarm:
            headline = f"Nobody can read {percent(DEFAULT_LEVEL)} of any text out of this update."
            return Verdict("protected", 0.0, headline, details)
        reason = leak.notes[0] if leak.notes else "it gives no reason"
        why = f"the attack on text did not get through: {reason[:1].lower()}{reason[1:]}"
        if bound is not None and not leak.undecided:  # it applied, and the worlds were played
            said = [f"{why[:1].upper()}{why[1:]}", certificate(leak), *above]
            # how much of each leaks was not measured: what ended the attack hides no text
            headline = NOTHING_READ.format("text")
            return Verdict("unproven", math.nan, headline, said, why, alarm=alarm)
        return Verdict.undecided(why, [certificate(leak), *above])


def _texts(number: int, total: int) -> str:
    if number == total:
        return "every text of the client" if total > 1 else "the client's text"
    return f"{number} of the client's {total} texts"
