"""Sweep: the answer as users get it, written as one HTML page that opens from disk: no network, no
script, all inside."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

from unsum.audit.advice import Advice, again
from unsum.audit.ceiling_words import ceiling_of, stands_at
from unsum.audit.pictures import data_uri
from unsum.audit.report import credits_of, environment, together
from unsum.audit.sweep.bench import Point
from unsum.audit.sweep.plot import plot
from unsum.audit.sweep.result import Curve, SweepResult, closer, headline, level, sentences, short
from unsum.audit.wording import percent
from unsum.defend import DEFENSES
from unsum.files.report_folder import UNFINISHED, check_folder
from unsum.files.writing import write_text
from unsum.showing.cards import Card
from unsum.showing.cards import page as cards_of


class Sweep(SweepResult):
    """The answer to: how strong must a defense be here, and what does that cost?

    Examples:
        >>> import torch, unsum
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Linear(64, 20)
        >>> data = torch.randn(3, 64), torch.tensor([4, 4, 1])
        >>> result = unsum.sweep(model, data, over="sign", utility=False)
        >>> round(result.undefended.worst, 1), len(result.curves)
        (1.0, 1)
    """

    def write(self, folder: str | Path, *, force: bool = False) -> Path:
        """Write `sweep.html` and `sweep.json`; an existing folder is written to only with
        `force`."""
        folder = Path(folder)
        check_folder(folder, force=force)
        page = render(self)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "sweep.html", page)
        write_text(
            folder / "sweep.json", json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"
        )
        shutil.rmtree(folder / UNFINISHED, ignore_errors=True)  # what an interrupted sweep had kept
        return folder / "sweep.html"

    def _repr_html_(self) -> str:
        """For notebooks: the answer, and a card for each defense with the strength that is enough,
        if one is."""
        answer = level(self)
        cards = [_card(self, curve) for curve in self.curves]
        return cards_of(
            answer, f"Under {percent(self.keep_under)}", headline(self), sentences(self), cards
        )

    def __repr__(self) -> str:
        """What a person wants to know first; every figure is in `to_dict()` and in the page that
        `write` makes."""
        return "\n".join([headline(self), *sentences(self)])


def render(sweep: SweepResult) -> str:
    """The complete page. Titles and the command are escaped: they may come from anywhere."""
    template = environment().get_template("sweep.html.j2")
    return template.render(
        sweep=sweep,
        setting=sweep.setting,
        task=sweep.task,
        headline=together(headline(sweep)),
        level=level(sweep),
        sentences=[together(sentence) for sentence in sentences(sweep)],
        sections=[_section(sweep, curve) for curve in sweep.curves],
        credits=credits_of(sweep.titles),
        steps=advice(sweep),
        percent=lambda value: together(percent(value)),
    )


_OF_SWEEPS = ("--sweep", "--keep-under", "--utility-data", "--no-utility", "--out")


def advice(sweep: SweepResult) -> list[Advice]:
    """What to do with the strengths that are enough, and where none is."""
    if sweep.undefended.under(sweep.keep_under):
        text = (
            "No defense was needed against the attacks tried, which is no proof of safety: try "
            "others before relying on it."
        )
        return [Advice(text, "unsum list attacks")]
    found = [
        (curve, point)
        for curve in sweep.curves
        if (point := curve.chosen(sweep.keep_under)) is not None
    ]
    steps = [
        _step(sweep, curve, point)
        for curve, point in sorted(found, key=lambda pair: sweep.ruins(pair[1]))
    ]
    if any(not sweep.ruins(point) for _, point in found):
        return steps
    reason = (
        "Every defense that is enough ruins the model"
        if found
        else "No strength that was tried is enough"
    )
    other = (
        f"{reason}: let the server see only sums over many clients (secure aggregation), or try "
        "other defenses."
    )
    return [*steps, Advice(other, "unsum list defenses")]


def _step(sweep: SweepResult, curve: Curve, point: Point) -> Advice:
    called = curve.name if point.strength is None else f"{curve.name} of {short(point.strength)}"
    if sweep.ruins(point):
        return Advice(
            f"Do not deploy {called}: this defense ruins the model. {closer(sweep, curve)}".strip()
        )
    price = " What it costs in accuracy was not measured." if math.isnan(sweep.cost(point)) else ""
    proven = point.proven(sweep.keep_under)
    if proven:
        text = f"Deploy {called}, which is proven, and fail the build when it no longer is.{price}"
    else:
        text = (
            f"Do not rely on {called} alone: the attacks tried read less than "
            f"{percent(sweep.keep_under)} there, and {stands_at(point)}. Sweep stronger ones for a "
            f"proof, or fail the build at least where it leaks.{price}"
        )
    named = curve.name if point.strength is None else f"{curve.name}:{short(point.strength)}"
    if sweep.keep_under >= 1 or not sweep.setting.command:
        return Advice(text, f"unsum audit --defense {named}" if sweep.setting.command else "")
    more = f"--defense {named} --{'prove-below' if proven else 'fail-above'} {sweep.keep_under:g}"
    return Advice(text, again(sweep.setting.command, more, without=_OF_SWEEPS, out="unsum-report"))


def _mark(sweep: SweepResult, point: Point) -> str:
    return " ← proven" if point.proven(sweep.keep_under) else " ← unproven"


def _card(sweep: SweepResult, curve: Curve) -> Card:
    """One defense in a notebook: the interval from the largest leakage found to the ceiling, at
    every strength."""
    enough = curve.chosen(sweep.keep_under)
    facts = [
        (
            f"{short(point.strength)}{_mark(sweep, point) if point is enough else ''}",
            f"{percent(point.worst)} to {ceiling_of(point)}",
        )
        for point in curve.points
    ]
    found = next((point for point in curve.points if point is enough), curve.points[-1])
    pictures = zip(("original", "recovered"), found.pictures or (), strict=False)
    return Card(f"{curve.name}: largest found to ceiling, by strength", facts, list(pictures))


def _section(sweep: SweepResult, curve: Curve) -> dict[str, Any]:
    """One defense on the page."""
    enough = curve.chosen(sweep.keep_under)
    names = ["no defense", f"{sweep.setting.defenses} alone"]
    labeled = [
        *zip(names, sweep.references, strict=False),
        *((short(p.strength), p) for p in curve.points),
    ]
    untrained = (
        {point.untrained for _, point in labeled if point.untrained} if sweep.task else set()
    )
    notes = [
        closer(sweep, curve),
        *(f"Not decidable at {label}: {p.refused}" for label, p in labeled if p.refused),
    ]
    notes += [f"Accuracy was not measured: {reason}" for reason in sorted(untrained)]
    return {
        "curve": curve,
        "summary": next((entry.summary for entry in DEFENSES if entry.name == curve.name), ""),
        "plot": plot(sweep, curve),
        "rows": [_row(sweep, point, label, point is enough) for label, point in labeled],
        "notes": [note for note in notes if note],
    }


def _row(sweep: SweepResult, point: Point, label: str, enough: bool) -> dict[str, Any]:
    """One strength as the page shows it, with the title of the sample that leaked most."""
    known = [sample for sample in point.samples if not math.isnan(sample.leakage)]
    most = max(known, key=lambda sample: sample.leakage, default=None)
    row = {
        "point": point,
        "label": label,
        "cost": sweep.cost(point),
        "enough": enough,
        "title": most.title if most else "",
    }
    pictures = zip(("original", "recovered"), point.pictures or (None, None), strict=True)
    # JPEG, since many must stay small enough to send.
    return row | {name: data_uri(picture, "jpeg", quality=85) for name, picture in pictures}
