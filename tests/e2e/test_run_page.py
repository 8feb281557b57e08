"""The page of a federated run, in a real browser."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from playwright.sync_api import Page

from support.browsing import Heard
from unsum.audit.finding import ClientFinding
from unsum.audit.over_time import Audited, RunAudit
from unsum.audit.round_ceiling import RoundCeiling
from unsum.leak import LabelCounts

HOSTILE = "<b>bold</b>"


def run() -> RunAudit:
    counts = torch.tensor([12.0, 0.0, 8.0])
    counted = LabelCounts(
        counts, counts - torch.tensor([2.0, 0, 1]), counts + 2, counts * 0, 0.9, 20, 40
    )
    found = [
        Audited(
            ClientFinding(
                1, HOSTILE, "audited", exact=True, leakage=1.0, batch_size=4, label_counts={2: 4}
            )
        ),
        Audited(
            ClientFinding(
                1, "7", "audited", level="labels", reason="the client took 40 local steps"
            ),
            counted,
        ),
        Audited(
            ClientFinding(3, HOSTILE, "audited", leakage=0.5, batch_size=4, label_counts={2: 4})
        ),
    ]
    return RunAudit(
        "a network",
        "seen",
        found,
        ["Round 2 is missing from the folder."],
        "unsum audit --flower-run seen",
        1.0,
    )


def test_the_page_draws_every_round_and_runs_nothing(
    page: Page, heard: Heard, tmp_path: Path
) -> None:
    page.goto(run().write(tmp_path).as_uri())
    lines = (tmp_path / "updates.csv").read_text("utf-8").splitlines()
    assert len(lines) == 4
    assert lines[1].startswith(f"1,{HOSTILE},audited,leaks,1.0,yes,,4,2:4,")
    assert page.locator("h1").inner_text() == "2 of 3 updates give samples away."
    assert "Round 2 is missing" in page.locator(".verdict").inner_text()
    dots = page.locator(".drawing circle")
    heights = [float(dots.nth(place).get_attribute("cy") or "nan") for place in range(dots.count())]
    assert heights == [34.0, 134.0, 262.0]  # 100 %, 50 %, and below the axis what nobody knows
    assert page.locator(".counts rect.bar").count() == 3
    tall = [
        float(page.locator(".counts rect.bar").nth(place).get_attribute("height") or "nan")
        for place in range(3)
    ]
    assert tall[0] > tall[2] > tall[1] == 0
    assert page.locator("tbody tr").count() == 3
    assert page.locator("tbody").inner_text().count(HOSTILE) == 2  # as text, not as markup
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    assert heard.complaints == []


def test_the_ceiling_of_stand_in_data_is_drawn_after_every_round(
    page: Page, heard: Heard, tmp_path: Path
) -> None:
    ceilings = [
        RoundCeiling(number, number, value, 64, 1.0, samples=4)
        for number, value in ((1, 0.1), (2, 0.15), (3, 0.6))
    ]
    bounded = replace(run(), ceilings=ceilings, declared="Noise(2)")
    page.goto(bounded.write(tmp_path).as_uri())
    caps = page.locator(".drawing svg line.cap")
    heights = [float(caps.nth(place).get_attribute("y1") or "nan") for place in range(caps.count())]
    assert heights == [214.0, 204.0, 114.0]  # from 234 at 0 % to 34 at 100 %
    told = page.locator(".verdict").inner_text()
    assert (
        "After 3 rounds the ceiling is 60 %, for a client with 4 samples like those given"
        in told.replace("\u00a0", " ")
    )
    # round 1 gave away all, round 3 half
    assert "In 1 update more was found than this ceiling" in told
    assert [
        row.split("\t")[5].replace("\u00a0", " ")
        for row in page.locator("tbody tr").all_inner_texts()[:3]
    ] == [*("10 %", "10 %", "60 %")]
    color = "getComputedStyle(document.querySelector('.drawing line.cap')).stroke"
    # in black and white, too
    assert page.evaluate(color) == page.evaluate("getComputedStyle(document.body).color")
    assert page.locator("table .interval").count() == 3
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    assert heard.complaints == []


def test_clients_go_by_their_names_and_no_labels_are_made_up(page: Page, tmp_path: Path) -> None:
    """Updates of `--updates` come with the folder of their round; an answer that nothing vouches
    for is none."""
    sure: dict[str, Any] = {
        "exact": True,
        "leakage": 1.0,
        "batch_size": 4,
        "label_counts": {2: 4},
    }
    found = [
        ClientFinding(0, "round-0/anna", "audited", **sure),
        ClientFinding(1, "round-1/anna", "audited", **sure),
        ClientFinding(1, "round-1/bert", "audited", label_counts={7: 3}, reason="a crowd"),
    ]
    audit = replace(run(), audited=[Audited(one) for one in found], stored_run=False)
    page.goto(audit.write(tmp_path).as_uri())
    rows = page.locator("tbody tr")
    assert [rows.nth(i).locator("th").inner_text() for i in range(3)] == ["anna", "anna", "bert"]
    assert (
        page.locator(".drawing path.client").first.get_attribute("d") == "M104.0 34.0 L716.0 34.0"
    )
    assert "7: 3" not in rows.nth(2).inner_text()
    assert "round-1/bert" in (tmp_path / "updates.csv").read_text("utf-8")
    features = [replace(one, read="features") for one in found[:2]]
    page.goto(replace(audit, audited=[Audited(one) for one in features]).write(tmp_path).as_uri())
    assert page.locator(".share").inner_text().endswith("updates give features of samples away.")
