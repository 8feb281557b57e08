"""One client's update, attacked: figures that a log can hold. There is no truth here; the
certificate takes its place."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

from unsum.audit.distribution import is_telling
from unsum.audit.leakage import DEFAULT_LEVEL, vouched_shares
from unsum.audit.result import finite
from unsum.audit.verdict import LEAKS, STATES, Level, State, judge_captured, state_of
from unsum.audit.wording import percent
from unsum.errors import UnsumError
from unsum.leak import LabelCounts, Leak
from unsum.notes import Code, code_of, has
from unsum.update import Update

Outcome = Literal["audited", "out of time", "failed", "client error"]


@dataclass(frozen=True)
class ClientFinding:
    """What an audit made of one client in one round; without an answer where `outcome` is not
    "audited".

    `leakage` is the most that the attack vouches for, from 0 to 1, as a report on the same update
    has it; NaN where it is not decidable, as `reason` says. `expected` is what the attack expects
    to have got, vouched for or not: 1 − e² for a predicted relative error e of the features. `read`
    names what the leakage is of: features, or the samples themselves. `level` and `headline` are
    those of a report on the same update, which may leak its labels alone. Of `batch_size` samples
    found `distinct` are no copies of one another; `counts_certain` says that the numbers of copies,
    and so `label_counts`, are certified as well. Where local steps hide the samples, `counted` has
    the labels of all that the client has, with intervals, and what was made up of their sum is left
    out. `granted` is what the attacker was given: a server sees `num_examples`, so the batch size
    is, where the client took one step. `cut_short` says that a search ended before it was done,
    `too_many_steps` how few local steps would have been followed. `sha256` is of the file that the
    update came in, if it came in one.
    """

    round: int
    client: str
    outcome: Outcome
    exact: bool = False
    predicted_error: float = math.nan
    leakage: float = math.nan
    level: Level | None = None  # None: by the leakage alone
    headline: str = ""
    expected: float = math.nan
    read: str = ""
    batch_size: int | None = None
    distinct: int | None = None
    counts_certain: bool = False
    label_counts: dict[int, int] = field(default_factory=dict)
    counted: LabelCounts | None = None
    exact_inputs: int = 0
    method: str = ""
    seconds: float = 0.0
    num_examples: int | None = None
    statistics_layers: int = 0
    local_steps: int | None = None
    notes: tuple[str, ...] = ()
    cut_short: bool = False
    too_many_steps: str = ""
    reason: str = ""
    granted: tuple[str, ...] = ()
    sha256: str = ""  # of the file that held the update

    @property
    def state(self) -> State:
        """As a report on the same update has it."""
        return state_of([self.leakage]) if self.level is None else STATES[self.level]

    @property
    def gives_samples(self) -> bool:
        """Whether samples or their features leak, and not labels, tokens or categories alone."""
        return self.state == LEAKS and self.level != "labels"

    @property
    def leaked(self) -> str:
        """The leakage in words, which name features that are not the samples themselves."""
        return percent(self.leakage) + (" of the features" if self.read == "features" else "")

    @property
    def ran_out_of_time(self) -> bool:
        """Whether more time may tell more: nothing was found in it, or a search was cut short."""
        return self.outcome == "out of time" or self.cut_short

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> ClientFinding:
        """What `to_dict` made."""
        given = {name: value for name, value in content.items() if name != "state"}
        lists = {name: tuple(given[name]) for name in ("notes", "granted")}
        figures = ("predicted_error", "leakage", "expected")
        numbers = {name: math.nan if given.get(name) is None else given[name] for name in figures}
        counts = {int(label): count for label, count in given["label_counts"].items()}
        told = given.get("counted")
        counted = None if told is None else LabelCounts.from_dict(told)
        return cls(**given | lists | numbers | {"label_counts": counts, "counted": counted})

    def to_dict(self) -> dict[str, Any]:
        """In plain types that JSON holds: no NaN or infinity, and class numbers as text."""
        counts = {str(label): count for label, count in self.label_counts.items()}
        lists = {
            name: list(value) for name, value in vars(self).items() if isinstance(value, tuple)
        }
        counted = None if self.counted is None else self.counted.to_dict()
        changed = {"state": self.state, "label_counts": counts, "counted": counted}
        return finite(vars(self) | lists | changed)


def finding_of(number: int, client: str, update: Update, leak: Leak) -> ClientFinding:
    verdict = judge_captured(leak, leak.undecided)
    vouches = [share.most for share in vouched_shares(leak) if not math.isnan(share.most)]
    listed = not _made_up(update, leak)
    return ClientFinding(
        *(number, client, "audited"),
        exact=leak.exact,
        predicted_error=leak.predicted_error,
        leakage=max(vouches, default=math.nan),
        level=verdict.level,
        headline=verdict.headline,
        expected=expected_leakage(leak),
        read=verdict.read,
        batch_size=leak.batch_size if listed else None,
        distinct=leak.distinct if listed else None,
        counts_certain=leak.counts_certain,
        label_counts=_label_counts(leak, listed=listed),
        counted=leak.label_counts,
        exact_inputs=0 if leak.inputs_exact is None else int(leak.inputs_exact.sum()),
        method=leak.method,
        seconds=leak.seconds,
        num_examples=update.num_examples,
        statistics_layers=len(update.statistics.layers),
        local_steps=update.statistics.steps,
        cut_short=has(leak.notes, Code.CUT_SHORT),
        too_many_steps=next(
            (note for note in leak.notes if code_of(note) is Code.TOO_MANY_STEPS), ""
        ),
        notes=(*update.notes, *leak.notes, *filter(None, [update.statistics.note])),
        reason=verdict.reason,
        granted=tuple(leak.knowledge.granted()),
    )


def _made_up(update: Update, leak: Leak) -> bool:
    """Whether what the attack lists may be no samples: nothing vouches for an answer that takes
    several local steps apart, or takes them for one."""
    several = update.training is not None and update.training.several_steps
    return leak.made_up or (several and not leak.exact)


def _label_counts(leak: Leak, *, listed: bool) -> dict[int, int]:
    """Of the samples that were found or, after many local steps, of all that the client has."""
    counted = leak.label_counts
    if counted is None or counted.samples is None or not is_telling(counted):
        return dict(sorted(Counter(leak.labels.tolist()).items())) if listed else {}
    return {label: int(count) for label, count in enumerate(counted.counts.tolist()) if count}


def expected_leakage(leak: Leak) -> float:
    """1 − e² for the error e that the attack estimates, whether it vouches for it or not; NaN where
    it estimates none, or where little means nothing because no attack applies. No verdict: a client
    that holds back updates heeds it."""
    if leak.inputs_exact is not None and bool(leak.inputs_exact.any()):
        return 1.0
    if math.isnan(leak.estimate):
        return math.nan
    expected = max(1 - leak.estimate**2, 0.0)
    return math.nan if leak.undecided and expected < DEFAULT_LEVEL else expected


def reason_of(error: BaseException) -> str:
    """An audit's failure in one sentence: unsum's own as it is, any other with its kind."""
    if isinstance(error, UnsumError):
        return str(error)
    return f"The audit failed with {type(error).__name__}: {error}"
