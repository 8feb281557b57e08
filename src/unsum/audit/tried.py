"""What each attack that was tried got, held against the truth once it is over; the strongest counts, sample by sample."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from unsum.audit.leakage import DEFAULT_LEVEL
from unsum.audit.wording import error, percent, sample_count
from unsum.leak import Attempt


@dataclass(frozen=True)
class Tried:
    """`leakages` are of every true sample, and empty where the attack refused or the truth is not known.

    `remark` says why samples that it did not find may leak all the same, or why it refused.
    """

    attack: str
    found: int = 0
    leakages: list[float] = field(default_factory=list)
    exact: bool = False
    predicted_error: float = math.nan
    refused: bool = False
    remark: str = ""

    @classmethod
    def of(cls, attempt: Attempt, leakages: list[float]) -> Tried:
        leak = attempt.leak
        if leak is None:
            return cls(attempt.method, refused=True, remark=attempt.refused)
        found = leak.batch_size
        return cls(attempt.method, found, leakages, leak.exact, leak.predicted_error, remark=attempt.blind)

    @property
    def worst(self) -> float:
        return max(self.leakages, default=math.nan)

    @property
    def shown_worst(self) -> float:
        """The largest leakage, NaN where that is little and the attack does not apply: never 0 %."""
        return math.nan if self.remark and self.worst < DEFAULT_LEVEL else self.worst

    @property
    def empty(self) -> bool:
        """Whether it got nothing, for a reason that `remark` gives."""
        nothing = math.isnan(self.shown_worst) if self.leakages else not self.found
        return bool(self.remark) and (self.refused or nothing)

    @property
    def got(self) -> str:
        """In a few words; nothing that it got is no percentage where the attack does not apply."""
        if self.refused:
            return "refused"
        if not self.leakages and not self.found:
            return "no whole sample"
        if not self.leakages:
            sure = "certified" if self.exact else "not certified"
            expects = "" if math.isnan(self.predicted_error) else f", predicted error {error(self.predicted_error)}"
            return f"{sample_count(self.found)}, {sure}{expects}"
        over = sum(value >= DEFAULT_LEVEL for value in self.leakages)
        if over:
            return f"{over} of {len(self.leakages)} samples, up to {percent(self.worst)}"
        return "nothing, and does not apply" if self.remark else f"nothing (at most {percent(self.worst)})"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def strongest(tried: list[Tried], samples: int) -> list[tuple[float, str]]:
    """For every sample the largest leakage and the attack that got it; of equals, the first."""
    answered = [one for one in tried if one.leakages]
    return [
        max(((one.leakages[i], one.attack) for one in answered), key=lambda pair: pair[0], default=(0.0, ""))
        for i in range(samples)
    ]
