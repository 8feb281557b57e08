"""axe-core over every page, in light, dark and narrow: nothing serious, nothing critical."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from axe_playwright_python.base import AXE_FILE_PATH
from playwright.sync_api import Browser, Page, expect

import unsum
from support.audits import bounded, captured, shares, synthetic
from support.material import pictures, small_net

pytestmark = pytest.mark.long

AXE = Path(AXE_FILE_PATH).read_text("utf-8")
LOOKS = [("light", 1400), ("dark", 1400), ("light", 400)]


def unproven() -> unsum.Audit:
    audit = synthetic(found=2)
    rows = [replace(row, feature_error=0.9, label_correct=0.0) for row in audit.samples]
    return replace(audit, samples=rows, shares=shares(*[0.1] * 3))


def swept() -> unsum.Sweep:
    return unsum.sweep(
        over=["noise=1e-7,1e-1", "drop-head"],
        batch=2,
        attack="fgla",
        utility=False,
        command="unsum …",
    )


PAGES: dict[str, Callable[[], unsum.Audit | unsum.Sweep]] = {
    "features": synthetic,
    "severe": lambda: replace(synthetic(), shares=shares(1, 1, 1)),
    "partial": lambda: replace(synthetic(), shares=shares(1, 0.5, 0)),
    "unproven": unproven,
    "protected": lambda: replace(unproven(), bound=bounded(0.19, 0.05, 0.12)),
    "no pictures": lambda: synthetic(pictures=False),
    "captured": captured,
    "compared": lambda: unsum.audit(
        small_net(), (pictures(3), torch.tensor([1, 1, 5])), compare=True
    ),
    "undecided": lambda: captured(exact=False),
    "sweep": swept,
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("pages")
    return {name: make().write(folder / name).as_uri() for name, make in PAGES.items()}


def violations(page: Page) -> list[str]:
    """What axe finds, with where it finds it; only the kinds that keep people from using the
    page."""
    page.evaluate(AXE)
    found: dict[str, Any] = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    assert len(found["passes"]) > 10  # it looked
    return [
        f"{rule['impact']} {rule['id']}: {node['target']} {node.get('failureSummary', '')}"
        for rule in found["violations"]
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]


# Colors differ with what was found, so that every page is looked at in the dark; what a narrow
# window moves about are drawings, tables and long headlines.
SEEN = [
    *((name, *look) for name in PAGES for look in LOOKS[:2]),
    *((name, *LOOKS[2]) for name in ("severe", "captured", "compared", "sweep")),
]


@pytest.mark.parametrize(("name", "scheme", "width"), SEEN)
def test_nothing_serious(
    browser: Browser, pages: dict[str, str], name: str, scheme: str, width: int
) -> None:
    context = browser.new_context(
        bypass_csp=True,  # for axe itself; the policy has its own tests
        color_scheme="dark" if scheme == "dark" else "light",
        viewport={"width": width, "height": 900},
    )
    page = context.new_page()
    page.goto(pages[name])
    found = violations(page)
    overlaid = page.get_by_role("radio", name="one over the other")
    if overlaid.count():
        overlaid.check()
        page.locator("thead button").first.click()
        found += violations(page)
    context.close()
    assert found == []


@pytest.mark.parametrize(("scheme", "width"), LOOKS)
def test_nothing_serious_on_the_live_page(
    browser: Browser, address: str, scheme: str, width: int
) -> None:
    context = browser.new_context(
        bypass_csp=True,
        color_scheme="dark" if scheme == "dark" else "light",
        viewport={"width": width, "height": 900},
    )
    page = context.new_page()
    page.goto(address)
    page.get_by_role("button", name="None").click()
    page.get_by_role("checkbox", name="A dahlia").check()
    page.get_by_role("checkbox", name="Chelsea the cat").check()
    page.locator("#files").set_input_files(
        # its refusal is part of the page
        [{"name": "no photo.jpg", "mimeType": "image/jpeg", "buffer": b"none"}]
    )
    expect(page.locator("#upload-problem")).to_be_visible()
    found = []
    for defense in ("", "clip"):
        page.get_by_label("What the update goes through").select_option(defense)
        page.wait_for_timeout(300)  # until the page has asked
        expect(page.locator("main")).to_have_attribute("aria-busy", "false", timeout=120_000)
        expect(page.locator("#pictures figure")).to_have_count(2, timeout=60_000)
        found += violations(page)
    controls = page.evaluate(
        "(form => [form.scrollHeight, form.clientHeight])(document.querySelector('form'))"
    )
    context.close()
    assert found == []
    # the drawing in it is not cut off; the refusal above takes three lines
    assert controls[0] <= controls[1] + 60


def test_axe_would_find_something(browser: Browser) -> None:
    page = browser.new_page()
    page.set_content(
        "<html><body><img src='data:,'><p style='color:#ddd;background:#fff'>pale</p></body></html>"
    )
    assert {line.split()[1] for line in violations_of_any_page(page)} >= {
        "image-alt:",
        "color-contrast:",
    }
    page.close()


def violations_of_any_page(page: Page) -> list[str]:
    page.evaluate(AXE)
    found: dict[str, Any] = page.evaluate("axe.run()")
    return [f"{rule['impact']} {rule['id']}:" for rule in found["violations"]]
