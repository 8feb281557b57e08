"""What a whole federated run gave away, client by client and round by round, on one page that opens
from disk."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from unsum.audit.ceiling_words import SCATTER
from unsum.audit.finding import ClientFinding
from unsum.audit.leakage import DEFAULT_LEVEL
from unsum.audit.many.table import write_csv
from unsum.audit.provenance import Provenance
from unsum.audit.report import environment, together
from unsum.audit.result import finite
from unsum.audit.round_ceiling import NEEDS_DATA, RoundCeiling
from unsum.audit.verdict import NOT_DECIDABLE, UNPROVEN, Level
from unsum.audit.wording import percent
from unsum.errors import needed
from unsum.files.writing import write_text
from unsum.leak import LabelCounts

_LEFT, _RIGHT, _TOP, _BOTTOM, _UNKNOWN = 84, 736, 34, 234, 262  # of the drawing, in its units
_BAR, _HEIGHT = 16, 120  # of a class in the drawing of counts
_CLASSES, _CLIENTS = 24, 24  # shown of either; run.json has all
_LISTED = 5  # classes of a line of the table
_ROUND_FOLDER = re.compile(r"round[-_ ]?\d+/", re.IGNORECASE)  # of `--updates`' clients
CSV = "updates.csv"
FEATURES = "features"  # what a finding reads where its leakage is not of the samples themselves


@dataclass(frozen=True)
class Audited:
    """One client in one round: the finding, and the labels counted where local steps hide the
    samples."""

    finding: ClientFinding
    counts: LabelCounts | None = None

    @property
    def who(self) -> str:
        """The client without the folder of its round, which stands beside it; the same one in every
        round."""
        return _ROUND_FOLDER.sub("", self.finding.client) or self.finding.client

    @property
    def told(self) -> str:
        """The labels, the most frequent first; without numbers where the certificate does not cover
        them, and none that an attack made up for an update of which nothing is known."""
        if self.counts is not None:
            counts = self.counts
            order = counts.counts.argsort(descending=True, stable=True).tolist()
            return ", ".join(
                f"{c}: {_amount(counts, counts.counts[c])} "
                f"({_amount(counts, counts.low[c])}–{_amount(counts, counts.high[c])})"
                for c in order[:_LISTED]
                if float(counts.high[c]) > 0
            )
        if self.finding.state == NOT_DECIDABLE:
            return ""
        found = sorted(self.finding.label_counts.items(), key=lambda item: (-item[1], item[0]))
        numbers = not self.finding.exact or self.finding.counts_certain
        return ", ".join(f"{c}: {n}" if numbers else str(c) for c, n in found[:_LISTED])

    @property
    def why(self) -> str:
        """Why samples were not found: how few local steps would be read, where there are too
        many."""
        return (self.counts is not None and self.finding.too_many_steps) or self.finding.reason


@dataclass(frozen=True)
class RunAudit:
    """The audit of a stored run; `write` makes the page."""

    model: str
    folder: str
    audited: Sequence[Audited]
    gaps: Sequence[str] = ()
    command: str = ""
    seconds: float = 0.0
    granted: Sequence[str] = field(default_factory=tuple)
    stored_run: bool = True  # with its rounds; else updates that were found in a folder
    provenance: Provenance = field(default_factory=Provenance)
    versions: dict[str, str] = field(default_factory=dict)
    ceilings: Sequence[RoundCeiling] = ()  # of a client that stand-in data play, round after round
    declared: str = ""  # what that client does to its update

    @cached_property
    def leaking(self) -> int:
        """Updates that give samples or their features away."""
        return sum(one.finding.gives_samples for one in self.audited)

    @cached_property
    def counted(self) -> int:
        """Updates whose samples were not found, and whose labels were counted."""
        return sum(one.finding.level == "labels" and one.counts is not None for one in self.audited)

    @cached_property
    def naming(self) -> int:
        """Updates that give away which tokens or categories occur, and nothing else."""
        return sum(one.finding.level == "labels" and one.counts is None for one in self.audited)

    @property
    def level(self) -> Level:
        if self.leaking:
            return "severe" if any(one.finding.exact for one in self.audited) else "partial"
        quiet = all(one.finding.state == UNPROVEN for one in self.audited)
        told = self.counted or self.naming
        return "labels" if told else "unproven" if quiet else "open"

    @property
    def given(self) -> str:
        """What those that leak give away."""
        read = {one.finding.read for one in self.audited if one.finding.gives_samples}
        return "features of samples" if read == {FEATURES} else "samples"

    @property
    def headline(self) -> str:
        total = len(self.audited)
        if self.leaking:
            return f"{self.leaking} of {total} updates give {self.given} away."
        if self.counted:
            return (
                f"The updates tell how many samples of each class a client has, in {self.counted} "
                f"of {total} cases."
            )
        if self.naming:
            return (
                f"{self.naming} of {total} updates give away which tokens or categories occur in "
                "the samples."
            )
        if self.level == "unproven":
            return (
                f"No attack tried reads a sample out of any of {total} updates; nothing shows that "
                "others cannot."
            )
        return f"Not decidable: of none of {total} updates it is known whether it leaks."

    @property
    def sentences(self) -> list[str]:
        findings = [one.finding for one in self.audited]
        exact = [finding for finding in findings if finding.exact]
        said = []
        if exact:
            samples = sum(finding.distinct or 0 for finding in exact)
            distinct = "1 distinct sample" if samples == 1 else f"{samples} distinct samples"
            said.append(f"The attack vouches for {len(exact)} of them: {distinct} in all.")
        if self.counted:
            said.append(
                f"Labels were counted in {_updates(self.counted)} whose samples could not be told "
                "apart."
            )
        statistics = sum(finding.statistics_layers > 0 for finding in findings)
        if statistics:
            said.append(
                f"BatchNorm statistics of the client's own samples are in {_updates(statistics)}."
            )
        unknown = sum(math.isnan(finding.leakage) for finding in findings)
        if unknown:
            said.append(
                f"Of {_updates(unknown)} it is not decidable whether samples leak, which is not "
                "safe."
            )
        said += self.bounded
        failed = sum(finding.outcome == "failed" for finding in findings)
        return [
            *said,
            *([f"{_updates(failed)} could not be audited; the table says why."] if failed else []),
            *self.gaps,
        ]

    @property
    def bounded(self) -> list[str]:
        """What the ceilings say. They never make a run green: they are of a client with other
        data."""
        if not self.ceilings:
            return [f"{NEEDS_DATA} (--data, --defense)."]
        found = (one.finding for one in self.audited if one.finding.read != FEATURES)
        above = sum(one.leakage > self.ceiling_at(one.round) + SCATTER for one in found)
        declared = (
            f"Declared is {self.declared}; the ceiling holds if clients do that."
            if self.declared
            else ""
        )
        more = (
            f"In {_updates(above)} more was found than this ceiling, so that clients do not add "
            "the noise declared, or their data differ from the data given."
        )
        features = sum(
            one.finding.gives_samples and one.finding.read == FEATURES for one in self.audited
        )
        other = (
            f"In {_updates(features)} features were found: the ceiling is of the samples "
            "themselves, and is not held against them."
        )
        said = [self.ceilings[-1].sentence, declared, more if above else ""]
        said.append(other if features else "")
        return [sentence for sentence in said if sentence]

    def ceiling_at(self, number: int) -> float:
        """After this round; NaN where none is known."""
        known = [one.ceiling for one in self.ceilings if one.round <= number]
        return known[-1] if known else math.nan

    def interval_of(self, finding: ClientFinding) -> tuple[float, float]:
        """From what was found of the samples themselves to the ceiling."""
        return (math.nan if finding.read == FEATURES else finding.leakage), self.ceiling_at(
            finding.round
        )

    def to_dict(self) -> dict[str, Any]:
        rows = [
            one.finding.to_dict()
            | {"counted": None if one.counts is None else one.counts.to_dict()}
            | finite({"ceiling": self.ceiling_at(one.finding.round)})
            for one in self.audited
        ]
        kept = (
            "model",
            "folder",
            "command",
            "seconds",
            "headline",
            "level",
            "sentences",
            "versions",
        )
        told = {name: getattr(self, name) for name in kept} | {
            "provenance": asdict(self.provenance)
        }
        told |= {"ceilings": [one.to_dict() for one in self.ceilings], "declared": self.declared}
        return {"schema": 1, "kind": "run", **told, "updates": rows}

    def write(self, folder: Path) -> Path:
        """`run.html`, `run.json` and `updates.csv`."""
        folder.mkdir(parents=True, exist_ok=True)
        write_text(
            folder / "run.json", json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"
        )
        write_csv(folder / CSV, (one.finding for one in self.audited), self.ceiling_at)
        return self.write_page(folder)

    def write_page(self, folder: Path) -> Path:
        """`run.html` alone."""
        folder.mkdir(parents=True, exist_ok=True)
        page = environment().get_template("run.html.j2")
        # Of every client the last round whose labels were counted.
        latest = {one.finding.client: one for one in self.audited if one.counts is not None}
        drawn = [_bars(one) for one in list(latest.values())[:_CLIENTS]]
        write_text(
            folder / "run.html",
            page.render(
                run=self,
                plot=_curves(self.audited, self.ceilings),
                drawn=drawn,
                keep_under=DEFAULT_LEVEL,
                together=together,
                csv=CSV,
            ),
        )
        return folder / "run.html"


def _updates(count: int) -> str:
    return "1 update" if count == 1 else f"{count} updates"


def _curves(audited: Sequence[Audited], ceilings: Sequence[RoundCeiling] = ()) -> dict[str, Any]:
    """Where everything goes in the drawing: rounds to the right, leakage up; what is not decidable
    stands below the axis."""
    numbers = sorted({one.finding.round for one in audited} | {one.round for one in ceilings}) or [
        1
    ]
    first, last = numbers[0], numbers[-1]

    def x(number: int) -> float:
        return round(
            _LEFT
            + 20
            + (_RIGHT - _LEFT - 40) * ((number - first) / (last - first) if last > first else 0.5),
            1,
        )

    def y(value: float) -> float:
        return (
            _UNKNOWN
            if math.isnan(value)
            else round(_BOTTOM - (_BOTTOM - _TOP) * min(max(value, 0.0), 1.0), 1)
        )

    lines: dict[str, list[ClientFinding]] = {}
    for one in audited:
        lines.setdefault(one.who, []).append(one.finding)
    dots = [
        {
            "x": x(finding.round),
            "y": y(finding.leakage),
            "kind": "unknown-dot"
            if math.isnan(finding.leakage)
            else "worst-dot"
            if finding.exact
            else "sample",
            "hint": f"client {finding.client}, round {finding.round}: "
            + ("not decidable" if math.isnan(finding.leakage) else finding.leaked),
        }
        for findings in lines.values()
        for finding in findings
    ]
    caps = [
        (x(one.round), y(one.ceiling), f"round {one.round}: {one.sentence}") for one in ceilings
    ]
    paths = [
        _path([(f.round, x(f.round), y(f.leakage)) for f in findings])
        for findings in lines.values()
    ]
    every = range(first, last + 1)
    ticks = [
        (x(number), number, number in numbers) for number in every[:: max(1, len(every) // 12)]
    ]
    return {
        "paths": paths,
        "joined": any("L" in path for path in paths),
        "dots": dots,
        "caps": caps,
        "cap_path": " ".join(f"{'L' if i else 'M'}{px} {py}" for i, (px, py, _) in enumerate(caps)),
        "ticks": ticks,
        "heights": [(y(i / 4), f"{25 * i} %") for i in range(5)],
        "level": y(DEFAULT_LEVEL),
        "unknown": _UNKNOWN,
        "frame": (_LEFT, _RIGHT, _TOP, _BOTTOM),
        "summary": "; ".join(
            [str(dot["hint"]) for dot in dots[:_CLIENTS]] + [hint for *_, hint in caps[-1:]]
        ),
    }


def _path(points: list[tuple[int, float, float]]) -> str:
    """Through the rounds that follow each other; broken where one is missing or nobody knows."""
    commands, before = [], math.nan
    for number, px, py in points:
        if py != _UNKNOWN:
            commands.append(f"{'L' if number == before + 1 else 'M'}{px} {py}")
        before = math.nan if py == _UNKNOWN else number
    return " ".join(commands)


def _bars(one: Audited) -> dict[str, Any]:
    """The counts of one client as bars, each with its interval."""
    counts = needed(one.counts, "The count of labels")
    order = counts.counts.argsort(descending=True, stable=True).tolist()[:_CLASSES]
    chosen = sorted(order) if len(counts.counts) <= _CLASSES else order
    top = max(float(counts.high[chosen].max()), 1e-9)
    bars = []
    for place, c in enumerate(chosen):
        found = {"height": counts.counts[c], "low": counts.low[c], "high": counts.high[c]}
        count, low, high = (_amount(counts, value) for value in found.values())
        heights = {name: round(_HEIGHT * float(value) / top, 1) for name, value in found.items()}
        hint = f"class {c}: {count}, {low} to {high}"
        bars.append({"x": 30 + _BAR * place, "label": c, **heights, "hint": hint})
    return {
        "client": one.finding.client,
        "round": one.finding.round,
        "bars": bars,
        "top": _amount(counts, top),
        "width": 44 + _BAR * len(bars),
        "left_out": len(counts.counts) - len(bars),
        "told": one.told,
        "samples": counts.samples,
        "level": percent(counts.level),
    }


def _amount(counts: LabelCounts, value: Any) -> str:
    return percent(float(value)) if counts.samples is None else f"{float(value):.0f}"
