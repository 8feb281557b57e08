"""From found to ceiling, on every page: a bar with two ends that is seen in a narrow window, too,
and needs no color."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Page

from support.audits import bounded, shares, synthetic
from support.browsing import Heard
from unsum.audit.compare import Comparison
from unsum.audit.report import Audit
from unsum.audit.sweep.bench import Point, SampleLeak
from unsum.audit.sweep.report import Sweep
from unsum.audit.sweep.result import Curve
from unsum.defend.defense import SCALE

WIDTH = 400  # [px] of a narrow window


def row(
    found: float, ceiling: float, mean: float = math.nan, strength: float | None = None
) -> Point:
    samples = [SampleLeak(title, found, False, 1.0, 0.0, math.nan) for title in ("a", "b", "c")]
    called = "none" if strength is None else f"Noise({strength:g})"
    return Point(called, strength, samples, method="exact", ceiling=ceiling, ceiling_mean=mean)


def report(
    found: tuple[float, ...] = (0.6, 0.1, 0.0), limits: tuple[float, ...] = (0.9, 0.5, 0.19)
) -> Audit:
    rows = [row(0.6, 1.0), row(0.1, math.nan, 0.8, 0.3), row(0.0, 0.06, strength=20)]
    return replace(
        synthetic(), bound=bounded(*limits), shares=shares(*found), comparison=Comparison(rows, "")
    )


def sweep() -> Sweep:
    points = [row(0.6, 1.0, strength=0.1), row(0.0, 0.06, strength=20)]
    setting = synthetic().setting
    curve = Curve("noise", SCALE, points)
    return Sweep(
        setting, 0.2, [row(1.0, 1.0)], [curve], None, ["The weights."], ["a", "b", "c"], 1.0
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("kind", "bars"), [("report", 6), ("sweep", 3)])
def test_every_row_has_its_interval_in_a_narrow_window(
    page: Page, heard: Heard, tmp_path: Path, kind: str, bars: int, scheme: str
) -> None:
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    page.set_viewport_size({"width": WIDTH, "height": 900})
    page.goto((report() if kind == "report" else sweep()).write(tmp_path / kind).as_uri())
    drawn = page.locator("table .interval")
    assert drawn.count() == bars
    for place in range(bars):
        box = drawn.nth(place).bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= WIDTH  # without scrolling sideways
        assert box["width"] > 80
    styles = page.evaluate(
        """() => {
            const of = (kind) => getComputedStyle(document.querySelector(`table .interval .${kind}`));
            return [of("cap").stroke, getComputedStyle(document.body).color, of("gap").strokeDasharray];
        }"""
    )
    assert styles[0] == styles[1]  # the ends are of the color of text
    assert styles[2] != "none"  # and what nobody has shown is dashed
    assert heard.complaints == []


def test_both_ends_stand_where_the_figures_are(page: Page, tmp_path: Path) -> None:
    page.goto(report().write(tmp_path / "report").as_uri())
    last = page.locator("table.sortable .interval").first
    assert last.get_attribute("aria-label") == "found 60\u00a0%, ceiling 90\u00a0%"
    assert float(last.locator(".found").get_attribute("width") or "nan") == 60
    assert [last.locator(".cap").get_attribute(end) for end in ("x1", "x2")] == ["92.0", "92.0"]
    assert [last.locator(".gap").get_attribute(end) for end in ("x1", "x2")] == ["62.0", "92.0"]
    others = page.locator("table", has=page.get_by_role("columnheader", name="Verdict")).locator(
        "tbody tr"
    )
    assert [others.nth(i).locator("td").nth(1).inner_text() for i in range(3)] == [
        "leaks",
        "unproven",
        "protected",
    ]


def test_found_above_its_ceiling_is_red(page: Page, tmp_path: Path) -> None:
    page.goto(report((0.9, 0.1, 0.0), (0.3, 0.35, 0.2)).write(tmp_path / "report").as_uri())
    alarm = page.get_by_role("alert")
    assert (
        alarm.inner_text()
        .replace("\u00a0", " ")
        .startswith("Found above its ceiling: 90 % of a picture was found")
    )
    red, green, blue = page.evaluate(
        "getComputedStyle(document.querySelector('.alarm')).color.match(/[0-9]+/g).map(Number)"
    )
    assert red > 3 * max(green, blue)


def test_nothing_lies_over_the_marks_of_defenses_side_by_side(page: Page, tmp_path: Path) -> None:
    """The level has its name in the key; a row that no attack measured, and that is proven, is not
    called undecidable."""
    audit = report()
    refused = Point(
        "Clip(1) | Noise(2)", None, [], refused="a crowd", ceiling=0.1, ceiling_mean=0.1
    )
    audit = replace(audit, comparison=Comparison([*audit.comparison.points, refused], ""))
    page.goto(audit.write(tmp_path / "report").as_uri())
    assert page.locator(".drawing .limit-name").count() == 0
    key = page.locator(".chart .key").inner_text().replace("\u00a0", " ")
    assert "the level that a gate usually asks for: 20 %" in key
    drawn = page.locator(".drawing").inner_text()
    assert "not measured" in drawn
    assert "not decidable" not in drawn
    others = page.locator("table", has=page.get_by_role("columnheader", name="Verdict"))
    assert "“(mean)” is the mean over the samples" in others.locator("caption").inner_text()
    last = others.locator("tbody tr").last
    assert last.locator("td").nth(1).inner_text() == "protected"
    reason = last.locator("td").last.bounding_box()
    assert reason is not None
    assert reason["width"] > 200  # a reason is read in lines, not word by word


def test_bars_are_printed_and_sorted_by_what_was_found(page: Page, tmp_path: Path) -> None:
    page.goto(report((0.1, 0.6, 0.0), (0.9, 0.9, 0.9)).write(tmp_path / "report").as_uri())
    table = page.locator("table.sortable")
    table.get_by_role("button", name="from found to ceiling").click()
    widths = [
        float(table.locator(".interval .found").nth(place).get_attribute("width") or "nan")
        for place in range(3)
    ]
    assert widths == [0, 10, 60]
    page.emulate_media(media="print")
    assert table.locator(".interval").first.is_visible()
