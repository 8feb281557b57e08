"""Fixtures: a real browser, a page in it whose complaints are heard, and the live page's server."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator

import pytest
import uvicorn
from playwright.sync_api import Browser, Page, sync_playwright

from support.browsing import ARGUMENTS, Heard
from unsum.app.server import bind, create_app, url_of


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    names = ("chromium", "chromium-browser", "google-chrome")
    executable = next(filter(None, map(shutil.which, names)), None)
    if executable is None:
        advice = (
            "No Chromium on the PATH; install it (Debian, Ubuntu: apt install chromium) to test "
            "the report in a browser."
        )
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


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    with bind("127.0.0.1", 0) as bound:
        server = uvicorn.Server(
            uvicorn.Config(create_app(), log_level="warning", timeout_graceful_shutdown=1)
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        yield url_of(bound)
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()
