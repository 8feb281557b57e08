"""The report of the real default audit in a real browser: it loads, fits, fetches nothing and runs nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page

import unsum
from browsing import HOSTILE, Heard


@pytest.fixture(scope="session")
def audit() -> unsum.Audit:
    return unsum.audit(command="unsum audit")


def test_default_report_loads_completely(audit: unsum.Audit, page: Page, heard: Heard, tmp_path: Path) -> None:
    page.goto(audit.write(tmp_path / "report").as_uri())
    page.screenshot(path=tmp_path / "report.png", full_page=True)
    assert heard.complaints == []
    assert {urlsplit(address).scheme for address in heard.requests} <= {"file", "data"}
    assert heard.requests[0].endswith("/report.html")
    images = page.evaluate("[...document.images].map(image => [image.complete, image.naturalWidth])")
    assert images == [[True, audit.truth.images.shape[-1]]] * 16
    headline = page.locator("h1")
    assert headline.is_visible()
    assert headline.inner_text() == audit.verdict.headline
    for title in audit.truth.titles:
        assert page.get_by_role("heading", name=title, exact=True).is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_style_is_admitted_by_the_policy(audit: unsum.Audit, page: Page, tmp_path: Path, scheme: str) -> None:
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    page.goto(audit.write(tmp_path / "report").as_uri())
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(246, 246, 243)", "dark": "rgb(19, 21, 25)"}[scheme]


@pytest.mark.parametrize("width", [400, 1400])
def test_no_horizontal_overflow(audit: unsum.Audit, page: Page, tmp_path: Path, width: int) -> None:
    long = replace(audit, truth=replace(audit.truth, titles=["unbreakable" * 20] * 8))
    for name, shown in {"plain": audit, "long": long}.items():
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(shown.write(tmp_path / name).as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_hostile_text_is_shown_and_not_run(audit: unsum.Audit, page: Page, heard: Heard, tmp_path: Path) -> None:
    truth = replace(audit.truth, titles=HOSTILE * 4, class_names=HOSTILE * 50)
    setting = replace(audit.setting, command=" ".join(HOSTILE))
    page.goto(replace(audit, truth=truth, setting=setting).write(tmp_path / "report").as_uri())
    for text in HOSTILE:
        assert page.get_by_role("heading", name=text, exact=True).count() == 4
        assert page.get_by_role("heading", name=text, exact=True).first.inner_text() == text
    assert page.locator("pre").inner_text() == " ".join(HOSTILE)
    assert page.evaluate("[document.scripts.length, document.images.length]") == [0, 16]
    assert heard == Heard(requests=heard.requests)
    assert {urlsplit(address).scheme for address in heard.requests} <= {"file", "data"}


def test_the_policy_stops_a_script_that_got_in(audit: unsum.Audit, page: Page, heard: Heard, tmp_path: Path) -> None:
    report = audit.write(tmp_path / "report")
    html = report.read_text("utf-8")
    report.write_text(html.replace("</body>", "<script>alert(1)</script></body>"), "utf-8")
    page.goto(report.as_uri())
    assert heard.dialogs == []
    assert any("Content Security Policy" in complaint for complaint in heard.complaints)
