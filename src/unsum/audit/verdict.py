"""What the figures mean, in words an officer can sign.

Two figures and one level decide headline, color, share and gate alike: what was read of every sample (found,
`unsum.audit.leakage`) and what nobody can exceed (its ceiling, `unsum.ceiling`). Four states:

leaks          found is at the level or above
protected      every ceiling is below the level: nobody can read more, whatever is tried
unproven       found is below the level, the ceiling is not: no attack tried reads it, and nothing shows that others cannot
not decidable  the attacks do not apply, and no ceiling says more

What cannot be decided is never 0 %, and passes no gate.

Texts beside what came back of them, and the verdict over a language model's update.

The leakage of a text is the share of its tokens that were found in their place: 1 is the text itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from unsum.audit import ceiling_words
from unsum.audit.leakage import ALIKE, DEFAULT_LEVEL, WHOLE, vouched_shares
from unsum.audit.wording import error, percent
from unsum.ceiling.result import Ceiling
from unsum.leak import Leak
from unsum.score import SampleScore
from unsum.score.labels import LabelsRead
from unsum.score.occurred import RowsNamed

State = Literal["leaks", "protected", "unproven", "not decidable"]
Level = Literal["severe", "partial", "labels", "unproven", "protected", "open"]

LEAKS: State = "leaks"
PROTECTED: State = "protected"
UNPROVEN: State = "unproven"
NOT_DECIDABLE: State = "not decidable"
_STATES: dict[Level, State] = {
    "severe": LEAKS,
    "partial": LEAKS,
    "labels": LEAKS,
    "unproven": UNPROVEN,
    "protected": PROTECTED,
    "open": NOT_DECIDABLE,
}

EXACT_ERROR = 1e-3  # features this close are the client's own, up to rounding
RECOGNIZABLE_PSNR = 18.0  # dB from which people recognize the pictures of our inverses
_NO_ANSWER = "No attack gave an answer: no label and no sample was found."
_LABELS = "This update gives away what the samples are"
_OCCURRED = "This update gives away which tokens or categories occur in the samples"
_UNKNOWN = "the leakage of some samples is not known"
UNVOUCHED = "the truth is missing, and no attack vouches for its answer"


@dataclass(frozen=True)
class Verdict:
    """`share` is how many of the samples leak `DEFAULT_LEVEL` or more, from 0 to 1, and NaN where that cannot be decided.

    `headline` says it in one sentence, `details` why; `reason` is why nothing can be decided, empty otherwise.

    >>> verdict = Verdict.undecided("the update lacks the gradient of the last layer")
    >>> verdict.state, verdict.share, verdict.headline
    ('not decidable', nan, 'Not decidable: the update lacks the gradient of the last layer.')
    """

    level: Level
    share: float
    headline: str
    details: list[str]
    reason: str = ""
    alarm: str = ""  # found above its ceiling: one of the two is wrong

    @classmethod
    def undecided(cls, reason: str, details: Sequence[str] = ()) -> Verdict:
        """Nobody can tell, and why."""
        said = reason[:1].lower() + reason[1:].rstrip(".")
        return cls("open", math.nan, f"Not decidable: {said}.", list(details), said)

    @property
    def state(self) -> State:
        return _STATES[self.level]

    def to_dict(self) -> dict[str, Any]:
        """In plain types, the state among them."""
        return {"state": self.state, **asdict(self)}


def state_of(leakages: Sequence[float]) -> State:
    """By the leakages alone, of an update's samples or the largest of them; NaN is one that nobody knows."""
    return _STATES[_level(leakages)]


def _level(leakages: Sequence[float], *, labels: bool = False, undecided: bool = False, proven: bool = False) -> Level:
    """The one place that decides; `labels`: most of them were found; `proven`: every ceiling is below the level."""
    whole, part = (sum(value >= level for value in leakages) for level in (WHOLE, DEFAULT_LEVEL))
    if part:
        return "severe" if whole == len(leakages) else "partial"
    if proven:
        return "labels" if labels else "protected"
    if undecided or not leakages or any(map(math.isnan, leakages)):
        return "open"
    return "labels" if labels else "unproven"


def judge(
    leak: Leak,
    samples: list[SampleScore],
    leakages: Sequence[float],
    undecided: str = "",
    labels: LabelsRead | None = None,
    occurred: Sequence[RowsNamed] = (),
    bound: Ceiling | None = None,
    own: Sequence[float] = (),
) -> Verdict:
    """The verdict over one audited round, by the leakage of every sample; NaN is a leakage that nobody knows.

    `undecided`: why attacks that found nothing say nothing about this update. A sample that leaks all the same decides.
    `labels`: those of the strongest attack, where they were counted; else the samples' own are. `occurred`: rows of embeddings.
    `bound`: the ceilings, in the unit of `own`, what was found of the samples themselves.
    """
    total = len(samples)
    known = [value for value in leakages if not math.isnan(value)]
    whole, part = (sum(value >= level for value in known) for level in (WHOLE, DEFAULT_LEVEL))
    right = sum(row.label_correct == 1.0 for row in samples)
    read = right > total / 2 if labels is None else labels.given_away
    luck = read and bound is not None and ceiling_words.hides_labels(bound)
    read = read and not luck
    details = _details(leak, samples, right if labels is None else labels, known)
    details += [named.sentence for named in occurred]
    given = [what for what, told in ((_LABELS, read), (_OCCURRED, any(one.given_away for one in occurred))) if told]
    proven = bound is not None and bound.decided(DEFAULT_LEVEL) == "below"
    level = _level(leakages, labels=bool(given), undecided=bool(undecided), proven=proven)
    alarm = "" if bound is None else ceiling_words.exceeded(own, bound)
    details += [] if bound is None else [ceiling_words.beside(bound)]
    details += [ceiling_words.LUCK] if luck else []
    if level == "open":
        if given and labels is not None:
            return Verdict("labels", math.nan, f"{given[0]}; whether more cannot be decided.", details)
        return replace(Verdict.undecided(undecided or _UNKNOWN, details), alarm=alarm)
    if len(known) < total and level != "protected":
        details.append(f"The other samples may leak, too: {undecided or _UNKNOWN}.")
    headline = f"{given[0]}, but not how they look." if level == "labels" else _headline(level, whole, part, total)
    return Verdict(level, part / total, headline, details, alarm=alarm)


def judge_captured(leak: Leak, undecided: str = "") -> Verdict:
    """The verdict over an update that came without the truth: the attack's own certificate is all there is."""
    total = leak.batch_size
    leakages = [share.most for share in vouched_shares(leak)]
    known = [value for value in leakages if value >= DEFAULT_LEVEL]
    level = _level(leakages)
    classes = len(set(leak.labels.tolist()))
    found = f"Found in the update: {leak.number_of()}; {classes} {'class' if classes == 1 else 'classes'}."
    details = [
        *([found, certificate(leak)] if total else [_NO_ANSWER]),
        "The truth is not known here, so nothing was compared with it: the confidence is the attack's own.",
    ]
    if leak.inputs_exact is not None:
        details.insert(1, f"{int(leak.inputs_exact.sum())} of {total} inputs are certified to be the client's own.")
    details += _named_alone(leak)
    if level == "open":
        if leak.occurred:
            return Verdict("labels", math.nan, f"{_OCCURRED}; whether more cannot be decided.", details)
        return Verdict.undecided(undecided or UNVOUCHED, details)
    if level == "severe":
        return Verdict(level, 1.0, "This update gives away every sample that was found in it.", details)
    headline = f"This update gives away {len(known)} of the {total} samples that were found in it."
    return Verdict(level, len(known) / total, headline, details)


def _headline(level: Level, whole: int, part: int, total: int) -> str:
    if level == "severe":
        return (
            "This update gives away every sample of the batch." if total > 1 else "This update gives its sample away."
        )
    if level == "partial" and whole:
        more = f", and a part of {part - whole} more" if part > whole else ""
        return f"This update gives away {whole} of its {total} samples{more}."
    if level == "partial":
        return f"This update gives away a part of {part} of its {total} samples."
    if level == "protected":
        return f"Nobody can read {percent(DEFAULT_LEVEL)} of any sample out of this update."
    return "No attack tried reads a sample out of this update; nothing shows that others cannot."


def _details(leak: Leak, samples: list[SampleScore], labels: LabelsRead | int, known: list[float]) -> list[str]:
    total = len(samples)
    recovered = f"{labels} of {total} labels were recovered." if isinstance(labels, int) else labels.sentence
    if not leak.batch_size and not known:
        return [_NO_ANSWER] if isinstance(labels, int) or not labels.named else [recovered]
    exact = sum(row.feature_error < EXACT_ERROR for row in samples)
    worst = max(row.feature_error for row in samples)
    details = [
        recovered,
        f"The features that reach the last layer were recovered to within 0.1 % for {exact} of {total} samples "
        f"(largest error {error(worst)}).",
        certificate(leak),
    ]
    if known:
        of_known = "" if len(known) == total else f" of the {len(known)} that are known"
        mean = percent(math.fsum(known) / len(known))
        details.insert(
            0,
            f"Leakage is up to {percent(max(known))} and {mean} on average{of_known}: 100 % is all of it, 0 % is no "
            "better than a guess without the update.",
        )
    pictures = [row for row in samples if not math.isnan(row.psnr)]
    if pictures:
        # A sample that was not found is scored as mid-gray: it counts in the mean, but it did not come back.
        good = sum(row.found is not None and row.psnr >= RECOGNIZABLE_PSNR for row in pictures)
        details.append(
            f"{good} of {total} pictures came back at {RECOGNIZABLE_PSNR:g} dB or better, where people usually recognize "
            f"them (mean {math.fsum(row.psnr for row in pictures) / len(pictures):.1f} dB)."
        )
        if toned := sum(map(_alike_up_to_tone, pictures)):
            details.append(
                f"{toned} more {'shows' if toned == 1 else 'show'} at least half of what is in the sample once brightness, "
                "tint and contrast are put right."
            )
    if leak.uncounted and leak.batch_size != total:
        details.append(f"The attack lists {leak.batch_size} samples, {total} were there: {leak.uncounted}.")
        return details
    if leak.batch_size < total:
        details.append(f"The attack took the batch for {leak.batch_size} instead of {total} samples.")
    if leak.batch_size > total:
        details.append(
            f"The attack took the batch for {leak.batch_size} instead of {total} samples; each true sample is compared with "
            "the nearest of them, which flatters the attack."
        )
    return details


def _alike_up_to_tone(row: SampleScore) -> bool:
    """Too far from the sample in pixels, and like it once brightness, tint and contrast do not count."""
    return row.found is not None and row.psnr < RECOGNIZABLE_PSNR and row.picture_cosine > math.sqrt(ALIKE)


def _named_alone(leak: Leak) -> list[str]:
    """What rows of embeddings and label rules name, where the truth is not known."""
    said = [
        f"The gradient of the embedding {name!r} names {len(rows)} rows (tokens or categories) that occurred."
        for name, rows in leak.occurred.items()
    ]
    if leak.named is not None:
        said.append(f"A label rule names {len(leak.named)} labels; nothing vouches for them.")
    return said


def certificate(leak: Leak) -> str:
    if leak.exact:
        return "The attacker knows it, too: its own certificate calls the answer exact, without seeing the truth."
    return "The attacker cannot be sure: its own certificate does not call the answer exact."


@dataclass(frozen=True)
class Texts:
    """What the client trained on (empty where nobody knows) and what was found, in the attacker's order."""

    true: list[str]
    found: list[str]
    tokens_alone: float = 0.0  # the share of all tokens that were found without their order

    def judge(
        self,
        leak: Leak,
        leakages: Sequence[float],
        occurred: Sequence[RowsNamed] = (),
        bound: Ceiling | None = None,
    ) -> Verdict:
        """The verdict, by the same levels as over any other sample."""
        rows = [named.sentence for named in occurred]
        if not self.true:
            found = len(self.found)
            details = [f"Found in the update: {found} {'text' if found == 1 else 'texts'}.", certificate(leak)]
            if leak.exact and found:
                return Verdict("severe", 1.0, "This update gives away every text that was found in it.", details)
            if leak.occurred:
                named = [*details, *_named_alone(leak)]
                return Verdict("labels", math.nan, f"{_OCCURRED}; whether more cannot be decided.", named)
            return Verdict.undecided(UNVOUCHED, details)
        total = len(self.true)
        whole, part = (sum(value >= level for value in leakages) for level in (WHOLE, DEFAULT_LEVEL))
        known = [value for value in leakages if not math.isnan(value)]
        mean, most = (math.fsum(known) / len(known), max(known)) if known else (math.nan, math.nan)
        amount = f"{percent(mean)} of a text's tokens were found in their place on average, {percent(most)} at most."
        details = [amount, certificate(leak), *rows, *([] if bound is None else [ceiling_words.beside(bound)])]
        alarm = "" if bound is None else ceiling_words.exceeded(leakages, bound)
        if part:
            headline = (
                f"This update gives away {_count(whole, total) if whole else f'a part of {_count(part, total)}'}."
            )
            level: Level = "severe" if whole == total else "partial"
            return Verdict(level, part / total, headline, details, alarm=alarm)
        if self.tokens_alone >= DEFAULT_LEVEL:
            words = f"{percent(self.tokens_alone)} of all tokens were found, in no order."
            return Verdict(
                "labels", math.nan, "This update gives away the words of the texts, in no order.", [words, *rows]
            )
        if any(named.given_away for named in occurred):
            return Verdict("labels", math.nan, "This update gives away the words of the texts, in no order.", rows)
        if bound is not None and bound.decided(DEFAULT_LEVEL) == "below":
            headline = f"Nobody can read {percent(DEFAULT_LEVEL)} of any text out of this update."
            return Verdict("protected", 0.0, headline, details)
        reason = leak.notes[0] if leak.notes else "it gives no reason"
        return Verdict.undecided(
            f"the attack on text did not get through: {reason[:1].lower()}{reason[1:]}", details[1:]
        )


def _count(number: int, total: int) -> str:
    if number == total:
        return "every text of the client's" if total > 1 else "the client's text"
    return f"{number} of the client's {total} texts"
