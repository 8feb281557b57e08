"""The live page in a real browser, served on this machine's loopback as `unsum app` serves it."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from urllib.request import urlopen
from xml.etree import ElementTree

import pytest
from playwright.sync_api import Page, Route, expect

from support.browsing import HOSTILE, Heard
from unsum.audit.report import environment
from unsum.commands import main as cli

PATIENCE = 120_000  # ms; timings belong in benchmarks, a busy machine must not fail a test


def answered(page: Page) -> None:
    expect(page.locator("main")).to_have_attribute("aria-busy", "false", timeout=PATIENCE)


@pytest.mark.long
def test_a_visit(page: Page, heard: Heard, address: str) -> None:
    page.goto(address)
    answered(page)
    expect(page.locator("h1")).to_contain_text(
        "This update gives away the features of every picture"
    )
    expect(page.locator("#badge")).to_have_text("Severe leakage")
    assert page.locator("#pictures figure").count() == 8
    assert page.get_by_text("✓ correct").count() == 8
    expect(page.locator("#state")).to_have_text("leaks")
    expect(page.locator("#pictures .interval")).to_have_count(8)
    expect(page.locator("#ceiling")).to_have_text("100 %", timeout=PATIENCE)
    expect(page.locator("#progress-text")).to_contain_text("Ceiling 100 %.")
    images = page.evaluate(
        "[...document.images].map(image => [image.complete, image.naturalWidth])"
    )
    assert images == [[True, 128]] * (16 + 2 * 8)
    before = page.locator("img.recovered").first.get_attribute("src")

    page.get_by_role("button", name="None").click()
    expect(page.locator("#progress-text")).to_have_text("Choose at least one photo.")
    for title in ("Chelsea the cat", "A dahlia"):
        page.get_by_role("checkbox", name=title).press("Space")  # by keyboard
    page.get_by_label("What the update goes through").select_option("noise")
    page.locator("#strength").press("End")
    expect(page.locator("#strength-text")).to_have_text("100")
    answered(page)
    expect(page.locator("h1")).not_to_contain_text("every picture")
    assert page.locator("#pictures figure").count() == 2
    assert page.locator("img.recovered").first.get_attribute("src") != before
    assert "at 100 worst" in (page.locator("#history svg").get_attribute("aria-label") or "")

    bad = {"name": HOSTILE[1], "mimeType": "image/jpeg", "buffer": b"no photo"}
    good = {"name": "../me.jpg", "mimeType": "image/jpeg", "buffer": _photo()}
    page.get_by_label("What the update goes through").select_option("")
    page.locator("#files").set_input_files([bad, good])  # type: ignore[list-item]
    expect(page.locator("#upload-problem")).to_contain_text(
        "cannot be read as a JPEG, PNG or WebP photo"
    )
    expect(page.get_by_role("checkbox", name="me.jpg")).to_be_checked()
    expect(page.locator("#pictures figure")).to_have_count(3, timeout=PATIENCE)
    answered(page)
    expect(page.get_by_role("heading", name="me.jpg", exact=True)).to_be_visible()
    page.get_by_role("button", name="Remove me.jpg").click()
    expect(page.locator("#pictures figure")).to_have_count(2, timeout=PATIENCE)

    assert heard.dialogs == []
    assert all(url.startswith((address, "data:")) for url in heard.requests)
    # A browser reports the refused upload, and rounds that a newer one replaced; nothing else may
    # complain.
    replaced = f"failed: {address}api/round"
    refused = (
        "error: Failed to load resource: the server responded with a status of 422 (Unprocessable "
        "Entity)"
    )
    assert [complaint for complaint in heard.complaints if complaint != replaced] == [refused]


def test_no_click_is_lost_while_the_page_loads(page: Page, address: str) -> None:
    held: list[Route] = []
    page.route("**/api/setting", lambda route: held.append(route))
    page.goto(address)
    none = page.get_by_role("button", name="None")
    expect(none).to_be_disabled()
    expect(page.get_by_label("What the update goes through")).to_be_disabled()
    held[0].continue_()
    none.click()
    expect(page.locator("#progress-text")).to_have_text("Choose at least one photo.")


def test_without_the_last_layer_nothing_is_decided_and_what_is_old_is_grey(
    page: Page, address: str
) -> None:
    page.goto(address)
    page.get_by_role("button", name="None").click()
    page.get_by_role("checkbox", name="A dahlia").check()
    page.get_by_label("What the update goes through").select_option("drop-head")
    expect(page.locator("#badge")).to_have_text("Not decidable", timeout=PATIENCE)
    answered(page)
    verdict = page.locator("#verdict")
    expect(verdict).to_have_class("verdict open")
    expect(page.locator("h1")).to_contain_text("Not decidable: the update lacks 'head.weight'")
    expect(page.locator("#share")).to_have_text("?")
    expect(page.locator("#share-text")).to_have_text(
        "of the 1 private photo may leak: nobody can tell."
    )
    expect(page.locator("#caution")).to_contain_text("That is no proof of safety")
    expect(page.locator("#state")).to_have_text("not decidable")
    expect(page.locator("#found")).to_have_text("–")  # never 0 %
    expect(page.locator("#ceiling")).to_have_text("100 %")  # no noise
    page.route("**/api/round", lambda _route: None)  # never answered
    page.get_by_label("What the update goes through").select_option("sign")
    for part in (verdict, page.locator("#outcome")):
        assert "stale" in (part.get_attribute("class") or "")
        assert part.evaluate("part => getComputedStyle(part).filter") == "grayscale(1)"


def test_the_interval_is_the_reports(page: Page, address: str) -> None:
    """The page draws by itself what a macro of the reports draws: no report may say another
    thing."""
    page.goto(address)
    template = environment().from_string(
        '{% from "chart.html.j2" import interval %}{{ interval(found, ceiling) }}'
    )
    told = (
        "[...drawn.children].map(one => [one.tagName, ...[...one.attributes].map("
        "a => [a.name, isNaN(a.value) ? a.value : Number(a.value)])])"
    )
    for found, ceiling in [
        (0.25, 0.75),
        (0.0, 1.0),
        (0.004, 0.01),
        (math.nan, 0.5),
        (0.5, math.nan),
    ]:
        values = [None if math.isnan(value) else value for value in (found, ceiling)]
        own = page.evaluate(
            "async values => { const { interval } = await import('/interval.js'); const drawn = "
            f"interval(...values); return [drawn.getAttribute('aria-label'), {told}]; }}",
            values,
        )
        markup = template.render(found=found, ceiling=ceiling)
        drawn = ElementTree.fromstring(markup.strip())
        assert own[0] == drawn.get("aria-label")
        report = [
            [one.tag, *([name, _plain(value)] for name, value in one.attrib.items())]
            for one in drawn
        ]
        assert [[one[0], *one[1:]] for one in own[1]] == report


def _plain(value: str) -> str | float:
    try:
        return float(value)
    except ValueError:
        return value


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1400, "light")])
def test_it_fits_and_wears_the_reports_look(
    page: Page, heard: Heard, address: str, width: int, scheme: str
) -> None:
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(address)
    page.get_by_role("button", name="None").click()
    page.get_by_role("checkbox", name="A dahlia").check()
    page.get_by_label("What the update goes through").select_option("clip")
    expect(page.locator("#pictures figure")).to_have_count(1, timeout=PATIENCE)
    answered(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(246, 246, 243)", "dark": "rgb(19, 21, 25)"}[scheme]
    assert [complaint for complaint in heard.complaints if "api/round" not in complaint] == []


@pytest.mark.long
def test_the_command_serves_and_stops(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("unsum")), "app", "--no-browser", "--port", "0"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("unsum is at http://127.0.0.1:"), line
        address = line.split()[3]
        with urlopen(address, timeout=60) as response:
            assert b"<title>unsum" in response.read()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert out == "Stopped.\n"
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_the_command_refuses_other_machines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["unsum", "app", "--host", "0.0.0.0", "--no-browser"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert "add --allow-remote" in " ".join(capsys.readouterr().err.split())


def test_the_command_says_which_extra_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("unsum.app")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.setattr(sys, "argv", ["unsum", "app", "--no-browser"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert "pip install 'unsum[app]'" in " ".join(capsys.readouterr().err.split())


def _photo() -> bytes:
    return (files("unsum.data") / "photos" / "coffee.jpg").read_bytes()
