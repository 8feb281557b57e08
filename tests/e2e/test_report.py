"""The report of the real default audit in a real browser: it loads, fits, fetches nothing and runs nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Dialog, Page, sync_playwright

import unsum

HOSTILE = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>']
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@dataclass
class Heard:
    """All that a page complained about, asked for or popped up."""

    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)

    def listen(self, page: Page) -> None:
        page.on("console", lambda message: self._console(message.type, message.text))
        page.on("pageerror", lambda error: self.complaints.append(f"pageerror: {error}"))
        page.on("requestfailed", lambda request: self.complaints.append(f"failed: {request.url[:80]}"))
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("dialog", self._dialog)

    def _console(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(f"{kind}: {text}")

    def _dialog(self, dialog: Dialog) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()  # an open dialog would halt the page


@pytest.fixture(scope="session")
def audit() -> unsum.Audit:
    return unsum.audit(command="unsum audit")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    names = ("chromium", "chromium-browser", "google-chrome")
    executable = next(filter(None, map(shutil.which, names)), None)
    if executable is None:
        advice = "No Chromium on the PATH; install it (Debian, Ubuntu: apt install chromium) to test the report in a browser."
        if os.environ.get("UNSUM_REQUIRE_BROWSER") == "1":
            pytest.fail(advice)
        pytest.skip(advice)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    opened = browser.new_page(viewport={"width": 1400, "height": 900})
    yield opened
    opened.close()


@pytest.fixture
def heard(page: Page) -> Heard:
    collected = Heard()
    collected.listen(page)
    return collected


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
