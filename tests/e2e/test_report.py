"""The report of the real default audit in a real browser: it loads, fits, fetches nothing, and runs
only its own script."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page

import unsum
from support.audits import synthetic
from support.browsing import HOSTILE, Heard


@pytest.fixture(scope="session")
def audit() -> unsum.Audit:
    return unsum.audit(command="unsum audit")


def test_default_report_loads_completely(
    audit: unsum.Audit, page: Page, heard: Heard, tmp_path: Path
) -> None:
    page.goto(audit.write(tmp_path / "report").as_uri())
    page.screenshot(path=tmp_path / "report.png", full_page=True)
    assert heard.complaints == []
    assert {urlsplit(address).scheme for address in heard.requests} <= {"file", "data"}
    assert heard.requests[0].endswith("/report.html")
    images = page.evaluate(
        "[...document.images].map(image => [image.complete, image.naturalWidth])"
    )
    assert images == [[True, audit.truth.images.shape[-1]]] * 16
    headline = page.locator("h1")
    assert headline.is_visible()
    assert headline.inner_text() == audit.verdict.headline
    for title in audit.truth.titles:
        assert page.get_by_role("heading", name=title, exact=True).is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_style_is_admitted_by_the_policy(
    audit: unsum.Audit, page: Page, tmp_path: Path, scheme: str
) -> None:
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


def test_hostile_text_is_shown_and_not_run(
    audit: unsum.Audit, page: Page, heard: Heard, tmp_path: Path
) -> None:
    truth = replace(audit.truth, titles=HOSTILE * 4, class_names=HOSTILE * 50)
    setting = replace(audit.setting, command=" ".join(HOSTILE))
    page.goto(replace(audit, truth=truth, setting=setting).write(tmp_path / "report").as_uri())
    for text in HOSTILE:
        assert page.get_by_role("heading", name=text, exact=True).count() == 4
        assert page.get_by_role("heading", name=text, exact=True).first.inner_text() == text
    assert page.locator("pre").inner_text() == " ".join(HOSTILE)
    assert page.evaluate("[document.scripts.length, document.images.length]") == [1, 16]
    assert heard == Heard(requests=heard.requests)
    assert {urlsplit(address).scheme for address in heard.requests} <= {"file", "data"}


def test_the_policy_stops_a_script_that_got_in(
    audit: unsum.Audit, page: Page, heard: Heard, tmp_path: Path
) -> None:
    report = audit.write(tmp_path / "report")
    html = report.read_text("utf-8")
    report.write_text(html.replace("</body>", "<script>alert(1)</script></body>"), "utf-8")
    page.goto(report.as_uri())
    assert heard.dialogs == []
    assert any("Content Security Policy" in complaint for complaint in heard.complaints)


def test_pictures_lie_over_each_other_and_the_keyboard_moves_the_line(
    audit: unsum.Audit, page: Page, heard: Heard, tmp_path: Path
) -> None:
    page.goto(audit.write(tmp_path / "report").as_uri())
    slider = page.get_by_role("slider", name="lies over the original: Chelsea the cat")
    assert not slider.is_visible()  # side by side at first
    page.get_by_role("radio", name="one over the other").check()
    original, recovered = (
        page.get_by_alt_text(f"{kind}: Chelsea the cat")
        for kind in ("Original", "Recovered from the update")
    )
    assert original.bounding_box() == recovered.bounding_box()
    assert clip(page) == "50%"
    slider.focus()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    assert clip(page) == "45%"  # from the right: more of what was recovered
    page.keyboard.press("End")
    assert clip(page) == "0%"
    assert slider.get_attribute("aria-valuetext") == "100 % recovered, the rest original"
    page.get_by_role("radio", name="side by side").check()
    assert clip(page) == "none"
    assert heard.complaints == []


def clip(page: Page) -> str:
    """How much of the first recovered picture is cut away on its right."""
    path: str = page.locator(".over img").first.evaluate(
        "image => getComputedStyle(image).clipPath"
    )
    return "none" if path == "none" else path.removeprefix("inset(").split()[1]


def test_the_table_sorts_by_value_and_says_so(
    audit: unsum.Audit, page: Page, tmp_path: Path
) -> None:
    odd = [
        replace(row, psnr=value)
        for row, value in zip(audit.samples, (9.5, nan, 100.0, inf), strict=False)
    ]
    shown = replace(audit, samples=[*odd, *audit.samples[4:]])
    page.goto(shown.write(tmp_path / "report").as_uri())
    titles = page.locator("table.sortable tbody th")
    before = titles.all_inner_texts()
    assert before == [row.title for row in shown.rows]
    header = page.get_by_role("columnheader", name="PSNR (dB)")
    assert header.get_attribute("aria-sort") is None
    button = page.get_by_role("button", name="PSNR (dB)")
    button.focus()
    page.keyboard.press("Enter")
    known = sorted(
        (row.score.psnr, row.title)
        for row in shown.rows
        if row.score and row.score.psnr == row.score.psnr
    )
    up = [title for _, title in known]
    assert titles.all_inner_texts() == [*up, before[1]]
    assert header.get_attribute("aria-sort") == "ascending"
    button.click()
    # what was not measured stays last
    assert titles.all_inner_texts() == [*reversed(up), before[1]]
    assert header.get_attribute("aria-sort") == "descending"
    page.get_by_role("button", name="Sample", exact=True).click()
    assert titles.all_inner_texts() == sorted(before)
    assert header.get_attribute("aria-sort") is None


def test_without_scripts_the_page_is_complete(
    audit: unsum.Audit, browser: Browser, tmp_path: Path
) -> None:
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto(audit.write(tmp_path / "report").as_uri())
    assert page.get_by_role("columnheader", name="PSNR (dB)").is_visible()
    assert page.get_by_alt_text("Recovered from the update: Chelsea the cat").is_visible()
    # nothing that would not work
    assert page.get_by_role("radio").count() == page.get_by_role("slider").count() == 0
    page.context.close()


def test_the_keyboard_reaches_the_verdict_first(
    audit: unsum.Audit, page: Page, tmp_path: Path
) -> None:
    page.goto(audit.write(tmp_path / "report").as_uri())
    page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to the verdict")
    assert skip.evaluate(
        "link => link === document.activeElement && link.getBoundingClientRect().left >= 0"
    )
    assert skip.evaluate("link => getComputedStyle(link).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    assert page.locator("h1").evaluate("heading => heading === document.activeElement")


def test_print_fits_the_paper_side_by_side(audit: unsum.Audit, page: Page, tmp_path: Path) -> None:
    page.goto(audit.write(tmp_path / "report").as_uri())
    page.get_by_role("radio", name="one over the other").check()
    page.emulate_media(media="print", color_scheme="dark")
    page.set_viewport_size({"width": 700, "height": 990})
    assert page.evaluate("document.documentElement.scrollWidth") <= 700
    assert clip(page) == "none"
    assert not page.get_by_role("slider").first.is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_what_was_not_found_stays_beside_its_original(page: Page, tmp_path: Path) -> None:
    page.goto(synthetic(found=2).write(tmp_path / "report").as_uri())
    page.get_by_role("radio", name="one over the other").check()
    assert page.get_by_role("slider").count() == 2
    original, missing = (
        page.get_by_alt_text("Original: fog & rain").bounding_box(),
        page.locator(".absent").bounding_box(),
    )
    assert original is not None
    assert missing is not None
    assert original["x"] + original["width"] < missing["x"]


def test_a_command_is_copied_with_one_click(
    audit: unsum.Audit, page: Page, heard: Heard, tmp_path: Path
) -> None:
    page.goto(audit.write(tmp_path / "report").as_uri())
    buttons = page.locator("button.copy")
    commands = page.locator("code.command")
    assert buttons.count() == commands.count() >= 3
    page.evaluate(
        "() => { navigator.clipboard.writeText = async (text) => { window.copied = text; }; }"
    )
    last = commands.count() - 1
    buttons.nth(last).click()
    page.get_by_text("Copied", exact=True).wait_for()
    assert page.evaluate("window.copied") == commands.nth(last).inner_text() == "unsum audit"
    assert heard.complaints == []


def test_a_command_is_copied_where_the_clipboard_is_closed_to_pages_from_disk(
    audit: unsum.Audit, page: Page, tmp_path: Path
) -> None:
    page.goto(audit.write(tmp_path / "report").as_uri())
    page.evaluate(
        """() => {
            navigator.clipboard.writeText = async () => { throw new Error("closed"); };
            document.addEventListener("copy", () => { window.copied = document.activeElement.value; });
        }"""
    )
    page.locator("button.copy").first.click()
    page.get_by_text("Copied", exact=True).wait_for()
    assert page.evaluate("window.copied") == page.locator("code.command").first.inner_text()
