"""The page of a real sweep in a real browser: it loads, fits, fetches nothing and runs nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page

import unsum
from support.browsing import HOSTILE, Heard
from unsum.audit.sweep.result import headline

pytestmark = pytest.mark.long


@pytest.fixture(scope="session")
def sweep() -> unsum.Sweep:
    """By the ratio method, which is quick however strong the noise."""
    return unsum.sweep(
        over=["noise=1e-7..1e-1/3", "sign"], batch=2, attack="fgla", command="unsum audit --sweep …"
    )


def test_the_page_loads_completely(
    sweep: unsum.Sweep, page: Page, heard: Heard, tmp_path: Path
) -> None:
    page.goto(sweep.write(tmp_path / "sweep").as_uri())
    assert heard.complaints == []
    assert {urlsplit(address).scheme for address in heard.requests} <= {"file", "data"}
    images = page.evaluate(
        "[...document.images].map(image => [image.complete, image.naturalWidth])"
    )
    # original and recovered; without defense, then each strength, and the first that is proven
    assert images == [[True, 128]] * 2 * (1 + 4 + 2)
    assert page.locator("h1").inner_text().replace("\N{NO-BREAK SPACE}", " ") == headline(sweep)
    assert page.get_by_role(
        "img", name="Leakage and accuracy against the strength of noise"
    ).is_visible()
    assert page.get_by_role("row", name="10 proven, ruins the model").is_visible()


def test_the_drawing_shows_the_figures_where_they_belong(
    sweep: unsum.Sweep, page: Page, tmp_path: Path
) -> None:
    """Heights of the largest leakage, read back from the drawing, are the figures of the sweep."""
    page.goto(sweep.write(tmp_path / "sweep").as_uri())
    dots = page.locator("svg[role=img]").first.locator("circle.worst-dot")
    heights = [float(dots.nth(i).get_attribute("cy") or "nan") for i in range(dots.count())]
    points = [sweep.undefended, *sweep.curves[0].points]
    assert [(234 - height) / 200 for height in heights] == pytest.approx(
        [p.worst for p in points], abs=1e-3
    )
    places = [float(dots.nth(i).get_attribute("cx") or "nan") for i in range(dots.count())]
    # 1e-7, 1e-4, 1e-1, and 10, the first that is proven: by their logarithm
    assert points[-1].strength == 10
    assert points[-1].proven(sweep.keep_under)
    assert places[1:] == pytest.approx([168, 373.5, 579, 716], abs=0.2)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_style_is_admitted_by_the_policy(
    sweep: unsum.Sweep, page: Page, tmp_path: Path, scheme: str
) -> None:
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    page.goto(sweep.write(tmp_path / "sweep").as_uri())
    assert (
        page.evaluate("getComputedStyle(document.body).backgroundColor")
        == {
            "light": "rgb(246, 246, 243)",
            "dark": "rgb(19, 21, 25)",
        }[scheme]
    )
    line = page.locator("path.worst").first
    assert (
        line.evaluate("line => getComputedStyle(line).stroke")
        == {
            "light": "rgb(157, 21, 25)",
            "dark": "rgb(255, 161, 153)",
        }[scheme]
    )


@pytest.mark.parametrize("width", [400, 1400])
def test_no_horizontal_overflow(sweep: unsum.Sweep, page: Page, tmp_path: Path, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(sweep.write(tmp_path / "sweep").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_hostile_text_is_shown_and_not_run(
    sweep: unsum.Sweep, page: Page, heard: Heard, tmp_path: Path
) -> None:
    setting = replace(sweep.setting, command=" ".join(HOSTILE), model=HOSTILE[0])
    page.goto(replace(sweep, titles=HOSTILE, setting=setting).write(tmp_path / "sweep").as_uri())
    for text in HOSTILE:
        assert page.get_by_role("rowheader", name=text, exact=True).count() == 2
    assert page.locator("pre").inner_text() == " ".join(HOSTILE)
    assert page.evaluate("document.scripts.length") == 0
    assert heard == Heard(requests=heard.requests)


def test_print_fits_the_paper(sweep: unsum.Sweep, page: Page, tmp_path: Path) -> None:
    page.goto(sweep.write(tmp_path / "sweep").as_uri())
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 794, "height": 1123})
    assert page.evaluate("document.documentElement.scrollWidth") <= 794
