"""Fixtures: a real browser, and a page in it whose complaints are heard."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from browsing import ARGUMENTS, Heard


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
