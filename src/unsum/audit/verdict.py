"""What the figures mean, in words an officer can sign.

Two figures and one level decide headline, color, share and gate alike: what was read of every
sample (found, `unsum.audit.leakage`) and what nobody can exceed (its ceiling, `unsum.ceiling`).
Four states:

leaks          found is at the level or above
protected      every ceiling is below the level: nobody can read more, whatever is tried
unproven       found is below the level, the ceiling is not: no attack tried reads it, and nothing
               shows that others cannot
not decidable  the attacks do not apply, and no ceiling says more

What cannot be decided is never 0 %, and passes no gate.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from unsum.audit import ceiling_words
from unsum.audit.distribution import GIVEN_AWAY, is_telling
from unsum.audit.leakage import ALIKE, DEFAULT_LEVEL, WHOLE, Shares, vouched_shares
from unsum.audit.wording import error, percent
from unsum.ceiling.result import Ceiling
from unsum.data import Batch
from unsum.leak import Leak
from unsum.notes import Code, Note, code_of
from unsum.score import SampleScore
from unsum.score.labels import LabelsRead
from unsum.score.occurred import RowsNamed

State = Literal["leaks", "protected", "unproven", "not decidable"]
Level = Literal["severe", "partial", "features", "labels", "unproven", "protected", "open"]

LEAKS: State = "leaks"
PROTECTED: State = "protected"
UNPROVEN: State = "unproven"
NOT_DECIDABLE: State = "not decidable"
STATES: dict[Level, State] = {
    "severe": LEAKS,
    "partial": LEAKS,
    # and the samples themselves do not: what was made of the features is little or nothing
    "features": LEAKS,
    "labels": LEAKS,
    "unproven": UNPROVEN,
    "protected": PROTECTED,
    "open": NOT_DECIDABLE,
}

EXACT_ERROR = 1e-3  # features this close are the client's own, up to rounding
RECOGNIZABLE_PSNR = 18.0  # dB from which people recognize the pictures of our inverses
_SENTENCES = re.compile(r"(.+?[.?]|.*)(?:\s+([A-Z].*))?", re.DOTALL)  # the first, and all others
_NO_ANSWER = "No attack gave an answer: no label and no sample was found."
_LABELS = "This update gives away what the samples are"
OCCURRED = "This update gives away which tokens or categories occur in the samples"
NOTHING_READ = "No attack tried reads a {} out of this update; nothing shows that others cannot."
_UNKNOWN = "the leakage of some samples is not known"
UNVOUCHED = "the truth is missing, and no attack vouches for its answer"


@dataclass(frozen=True)
class Verdict:
    """`share` is how many of the samples leak `DEFAULT_LEVEL` or more, from 0 to 1, and NaN where
    that cannot be decided.

    `headline` says it in one sentence, `details` why; `reason` is why nothing can be decided, empty
    otherwise. `read` names what was read: features, picture, row, sample, text, words or labels;
    empty where nothing leaks.

    >>> verdict = Verdict.undecided("the update lacks the gradient of the last layer")
    >>> verdict.state, verdict.share, verdict.headline
    ('not decidable', nan, 'Not decidable: the update lacks the gradient of the last layer.')
    """

    level: Level
    share: float
    headline: str
    details: list[str]
    reason: str = ""
    read: str = ""
    alarm: str = ""  # found above its ceiling: one of the two is wrong

    @classmethod
    def undecided(cls, reason: str, details: Sequence[str] = ()) -> Verdict:
        """Nobody can tell, and why."""
        said, code = reason[:1].lower() + reason[1:].rstrip("."), code_of(reason)
        if code is Code.CUT_SHORT:  # what was left out is a list, and no headline
            first, _, untried = said.partition("; ")
            details = [*([f"{untried[:1].upper()}{untried[1:]}."] if untried else []), *details]
            return cls(
                "open",
                math.nan,
                f"Not decidable: {first} before the attacks had ended.",
                details,
                Note(said, code),
            )
        first, more = _SENTENCES.fullmatch(f"{said}.").groups()  # type: ignore[union-attr] # which any text matches
        kept = said if code is None else Note(said, code)
        return cls(
            "open", math.nan, f"Not decidable: {first}", [*filter(None, [more]), *details], kept
        )

    @property
    def state(self) -> State:
        return STATES[self.level]

    def to_dict(self) -> dict[str, Any]:
        """In plain types, the state among them."""
        return {"state": self.state, **asdict(self)}


@dataclass(frozen=True)
class Sizes:
    """How many numbers the features of one sample are, and how many the sample itself is, as far as
    that is known; and what a sample is called: a picture, a row or, of any other kind, a sample.

    >>> print(Sizes(128, 12288, "picture").ratio)
    128 features for 12,288 numbers
    """

    features: int = 0
    sample: int | None = None
    noun: str = "sample"

    @classmethod
    def of(cls, leak: Leak, truth: Batch | None) -> Sizes:
        """Of the client's samples or, without the truth, of those that were found."""
        held = leak.inputs if leak.images is None else leak.images
        held = held if truth is None else truth.images
        sample = None if held is None or not len(held) else held[0].numel()
        pictures = held is not None and held.ndim == 4 and held.shape[1] in (1, 3)
        noun = (
            "row"
            if truth is not None and truth.schema is not None
            else "picture"
            if pictures
            else "sample"
        )
        return cls(leak.features.shape[1], sample, noun)

    @property
    def ratio(self) -> str:
        return f"{self.features:,} features " + (
            f"for {self.sample:,} numbers" if self.sample else "each"
        )

    def all_of_them(self, total: int) -> str:
        return f"every {self.noun} of the batch" if total > 1 else f"its {self.noun}"

    def some(self, count: int, total: int) -> str:
        return self.all_of_them(total) if count == total else f"{count} of its {total} {self.noun}s"

    def named(self, read: str) -> str:
        """What `Shares.read` says, by its name: "features", "picture", "row", …"""
        return self.noun if read == "sample" else read


def state_of(leakages: Sequence[float]) -> State:
    """By the leakages alone, of an update's samples or the largest of them; NaN is one that nobody
    knows."""
    return STATES[level_by([Shares(sample=value) for value in leakages])]


def level_by(
    shares: Sequence[Shares], *, labels: bool = False, undecided: bool = False, proven: bool = False
) -> Level:
    """The one place that decides; `labels`: most of them were found; `proven`: every ceiling is
    below the level."""
    known = [share.most for share in shares]
    if count(known):
        if not count([share.sample for share in shares]):
            return "features"
        return "severe" if count(known, WHOLE) == len(shares) else "partial"
    if proven:
        return "labels" if labels else "protected"
    if undecided or not shares or any(map(math.isnan, known)):
        return "open"
    return "labels" if labels else "unproven"


def count(leakages: Sequence[float], level: float = DEFAULT_LEVEL) -> int:
    return sum(value >= level for value in leakages)


def judge(
    leak: Leak,
    samples: list[SampleScore],
    shares: Sequence[Shares],
    undecided: str = "",
    sizes: Sizes | None = None,
    labels: LabelsRead | None = None,
    occurred: Sequence[RowsNamed] = (),
    bound: Ceiling | None = None,
) -> Verdict:
    """The verdict over one audited round, by what came back of every sample; NaN is what nobody
    knows.

    `undecided`: why attacks that found nothing say nothing about this update. A sample that leaks
    all the same decides. `sizes` say what was read. `labels`: those of the strongest attack, where
    they were counted; else the samples' own are. `occurred`: rows of embeddings. `bound`: the
    ceilings, of the samples themselves.
    """
    sizes, total = sizes or Sizes(leak.features.shape[1]), len(samples)
    known = [share.most for share in shares if not math.isnan(share.most)]
    right = sum(row.label_correct == 1.0 for row in samples)
    named = right > total / 2 if labels is None else labels.given_away
    luck = named and bound is not None and ceiling_words.hides_labels(bound)
    counted = is_telling(leak.label_counts)
    details = _details(leak, samples, right if labels is None else labels, shares, sizes)
    details += [one.sentence for one in occurred]
    besides = (
        (_LABELS, named and not luck and not counted),
        (GIVEN_AWAY, counted),
        (OCCURRED, any(one.given_away for one in occurred)),
    )
    given = [what for what, told in besides if told]
    alarm = (
        "" if bound is None else ceiling_words.exceeded([share.sample for share in shares], bound)
    )
    # a ceiling that was exceeded proves nothing
    proven = bound is not None and bound.decided(DEFAULT_LEVEL) == "below" and not alarm
    level = level_by(shares, labels=bool(given), undecided=bool(undecided), proven=proven)
    details += [] if bound is None else [ceiling_words.beside(bound)]
    details += [ceiling_words.LUCK] if luck else []
    if level == "open":
        if given and (labels is not None or counted):
            headline = f"{given[0]}; whether more cannot be decided."
            return Verdict("labels", math.nan, headline, details, alarm=alarm)
        return replace(Verdict.undecided(undecided or _UNKNOWN, details), alarm=alarm)
    if len(known) < total and level != "protected":
        details.append(f"The other samples may leak, too: {undecided or _UNKNOWN}.")
    read = "labels" if level == "labels" else sizes.named(_read(level, shares))
    headline = _headline(level, shares, sizes) if level != "labels" else ""
    headline = headline or f"{given[0]}{_unseen(counted, proven)}"
    if level == "protected" and bound is not None:
        headline, details = _beside_labels(headline, details, bound)
    in_part = level in ("partial", "features") and count(known, WHOLE) < total
    if _LABELS in given and labels is not None and in_part:
        headline = f"{headline[:-1]}, and {labels.right} of {labels.total} labels."
    return Verdict(level, count(known) / total, headline, details, read=read, alarm=alarm)


def _beside_labels(headline: str, details: list[str], bound: Ceiling) -> tuple[str, list[str]]:
    """Headline and details, where the labels of protected samples are not shown to be hidden."""
    told = ceiling_words.labels_open(bound)
    return (
        (f"{headline[:-1]}; its labels are not proven to be hidden.", [*details, told])
        if told
        else (headline, details)
    )


def _unseen(counted: bool, proven: bool) -> str:
    """That labels are not the samples; only a ceiling shows that these stay hidden."""
    who = "the samples" if counted else "they"
    return f", but not how {who} look." if proven else f"; no attack tried reads how {who} look."


def judge_captured(
    leak: Leak, undecided: str = "", sizes: Sizes | None = None, bound: Ceiling | None = None
) -> Verdict:
    """The verdict over an update that came without the truth: the attack's own certificate is all
    there is."""
    if leak.tokens is not None:
        return _judge_captured_text(leak, leak.tokens, undecided)
    sizes, total = sizes or Sizes(leak.features.shape[1]), leak.batch_size
    shares = vouched_shares(leak)
    known, level = count([share.most for share in shares]), level_by(shares)
    classes = len(set(leak.labels.tolist()))
    found = (
        f"Found in the update: {leak.number_of()}; {classes} "
        f"{'class' if classes == 1 else 'classes'}."
    )
    details = [found, certificate(leak)] if total else [_NO_ANSWER]
    details = [certificate(leak)] if leak.made_up else details
    if bound is None:  # else the client's samples were there to be played in other worlds
        details.append(
            "The truth is not known here, so nothing was compared with it: the confidence is the "
            "attack's own."
        )
    if leak.inputs_exact is not None:
        details.insert(
            1,
            (
                f"{int(leak.inputs_exact.sum())} of {total} inputs are certified to be the "
                "client's own."
            ),
        )
    details += [*named_alone(leak), *([] if bound is None else [ceiling_words.beside(bound)])]
    if level == "open" and bound is not None and bound.decided(DEFAULT_LEVEL) == "below":
        headline = _headline("protected", [], replace(sizes, noun=bound.unit))
        return Verdict("protected", 0.0, *_beside_labels(headline, details, bound))
    if level == "open" and is_telling(leak.label_counts):
        open_still = (
            f"Whether single samples can be told, too, cannot be decided: {undecided or UNVOUCHED}."
        )
        return Verdict("labels", math.nan, f"{GIVEN_AWAY}.", [open_still])
    if level == "open":
        if leak.tells_rows:
            return Verdict(
                "labels", math.nan, f"{OCCURRED}; whether more cannot be decided.", details
            )
        return Verdict.undecided(undecided or UNVOUCHED, details)
    read = _read(level, shares)
    what, ratio = ("the features of ", f" ({sizes.ratio})") if read == "features" else ("", "")
    who = f"every {sizes.noun}" if known == total else f"{known} of the {total} {sizes.noun}s"
    headline = (
        f"This update gives away {what}{who} that {'was' if known == total else 'were'} found in "
        f"it{ratio}."
    )
    return Verdict(level, known / total, headline, details, read=sizes.named(read))


def _judge_captured_text(leak: Leak, texts: Sequence[list[int]], undecided: str) -> Verdict:
    """The same over a language model's update."""
    found = f"Found in the update: {len(texts)} {'text' if len(texts) == 1 else 'texts'}."
    details = [found, certificate(leak)]
    if leak.exact and texts:
        headline = "This update gives away every text that was found in it."
        return Verdict("severe", 1.0, headline, details, read="text")
    if leak.tells_rows:
        headline = f"{OCCURRED}; whether more cannot be decided."
        named = [*details, *named_alone(leak)]
        return Verdict("labels", math.nan, headline, named, read="words")
    return Verdict.undecided(undecided or UNVOUCHED, details)


def _read(level: Level, shares: Sequence[Shares]) -> str:
    """What the level is by: the samples themselves, or their features."""
    if level not in ("severe", "partial", "features"):
        return ""
    whole = count([share.sample for share in shares], WHOLE) >= count(
        [share.features for share in shares], WHOLE
    )
    return "sample" if level != "features" and whole else "features"


def _headline(level: Level, shares: Sequence[Shares], sizes: Sizes) -> str:
    if level == "protected":
        return f"Nobody can read {percent(DEFAULT_LEVEL)} of any {sizes.noun} out of this update."
    if level == "unproven":
        return NOTHING_READ.format(sizes.noun)
    features, own = [share.features for share in shares], [share.sample for share in shares]
    said = []
    if _read(level, shares) == "features":
        said.append(f"{_given(features, sizes, 'the features of ')} ({sizes.ratio})")
    if count(own):
        said.append(_given(own, sizes))
    return f"This update gives away {', and '.join(said)}."


def _given(leakages: Sequence[float], sizes: Sizes, what: str = "") -> str:
    """How many of the samples, or of their features, came back whole or in part."""
    whole, part, total = count(leakages, WHOLE), count(leakages), len(leakages)
    if not whole:
        return f"a part of {what}{sizes.some(part, total)}"
    more = f" and a part of {part - whole} more" if part > whole else ""
    return f"{what}{sizes.some(whole, total)}{more}"


def _details(
    leak: Leak,
    samples: list[SampleScore],
    labels: LabelsRead | int,
    shares: Sequence[Shares],
    sizes: Sizes,
) -> list[str]:
    total, known = len(samples), [share.most for share in shares if not math.isnan(share.most)]
    recovered = (
        f"{labels} of {total} labels were recovered."
        if isinstance(labels, int)
        else labels.sentence
    )
    if not leak.batch_size and not known:
        return [_NO_ANSWER] if isinstance(labels, int) or not labels.named else [recovered]
    details = [*_of_head(recovered, samples), certificate(leak)]
    if known:
        details.insert(0, _leaked(known, total, shares, sizes))
    pictures = [row for row in samples if not math.isnan(row.psnr)]
    if pictures:
        # A sample that was not found is scored as mid-gray: it counts in the mean, but it did not
        # come back.
        good = sum(row.found is not None and row.psnr >= RECOGNIZABLE_PSNR for row in pictures)
        details.append(
            f"{good} of {total} pictures came back at {RECOGNIZABLE_PSNR:g} dB or better, where "
            "people usually recognize them (mean "
            f"{math.fsum(row.psnr for row in pictures) / len(pictures):.1f} dB)."
        )
        if toned := sum(map(_alike_up_to_tone, pictures)):
            details.append(
                f"{toned} more {'shows' if toned == 1 else 'show'} at least half of what is in the "
                "sample once brightness, tint and contrast are put right."
            )
    if leak.uncounted and leak.batch_size != total:
        details.append(
            f"The attack lists {leak.batch_size} samples, {total} were there: {leak.uncounted}."
        )
        return details
    if leak.batch_size < total:
        details.append(
            f"The attack took the batch for {leak.batch_size} instead of {total} samples."
        )
    if leak.batch_size > total:
        details.append(
            f"The attack took the batch for {leak.batch_size} instead of {total} samples; each "
            "true sample is compared with the nearest of them, which flatters the attack."
        )
    return details


def _of_head(recovered: str, samples: list[SampleScore]) -> list[str]:
    """Labels and features; nothing of a network that has no head to read them at."""
    worst = max(row.feature_error for row in samples)
    if math.isnan(worst):
        return []
    exact = sum(row.feature_error < EXACT_ERROR for row in samples)
    return [
        recovered,
        f"The features that reach the last layer were recovered to within 0.1 % for {exact} of "
        f"{len(samples)} samples (largest error {error(worst)}).",
    ]


def _leaked(known: Sequence[float], total: int, shares: Sequence[Shares], sizes: Sizes) -> str:
    """How much leaks; of features and of samples each for itself, where features are what was
    read."""
    features, own = (
        [value for value in values if not math.isnan(value)]
        for values in ([share.features for share in shares], [share.sample for share in shares])
    )
    what, made = f"Leakage is {_amount(known)}", ""
    if any(share.read == "features" for share in shares) and (
        not own or _amount(features) != _amount(own)
    ):
        of_own = f" and of the {sizes.noun}s themselves {_amount(own)}" if own else ""
        what = f"Leakage of the features is {_amount(features)}{of_own}"
        made = "" if own else f" No {sizes.noun} was made of them."
    of_known = (
        ""
        if len(known) == total
        else f", for the {len(known)} of {total} {sizes.noun}s of which it is known"
    )
    return f"{what}{of_known}: 100 % is all of it, 0 % is no better than a guess.{made}"


def _amount(values: Sequence[float]) -> str:
    """The largest and the mean, in as few words as they need."""
    most, mean = percent(max(values)), percent(math.fsum(values) / len(values))
    if most == mean:
        return most if len(values) == 1 else f"{most} for every sample"
    return f"up to {most} ({mean} on average)"


def _alike_up_to_tone(row: SampleScore) -> bool:
    """Too far from the sample in pixels, and like it once brightness, tint and contrast do not
    count."""
    return (
        row.found is not None
        and row.psnr < RECOGNIZABLE_PSNR
        and row.picture_cosine > math.sqrt(ALIKE)
    )


def named_alone(leak: Leak) -> list[str]:
    """What rows of embeddings and label rules name, where the truth is not known."""
    said = [
        (
            f"The gradient of the embedding {name!r} names {len(rows)} rows (tokens or categories) "
            f"that occurred{_all_of(len(rows), leak.embedding_rows.get(name))}."
        )
        for name, rows in leak.occurred.items()
    ]
    if leak.named is not None:
        said.append(f"A label rule names {len(leak.named)} labels; nothing vouches for them.")
    return said


def _all_of(named: int, rows: int | None) -> str:
    if rows is None:
        return ""
    return ": all there are, which gives nothing away" if named == rows else f", of {rows:,}"


def certificate(leak: Leak) -> str:
    if leak.exact:
        return (
            "The attacker knows it, too: its own certificate calls the answer exact, without "
            "seeing the truth."
        )
    return "The attacker cannot be sure: its own certificate does not call the answer exact."
