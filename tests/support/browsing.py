"""What the tests of pages share: hostile names, and an ear for all that a page complains about or
asks for."""

from __future__ import annotations

from dataclasses import dataclass, field

from playwright.sync_api import Dialog, Page

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
        page.on(
            "requestfailed", lambda request: self.complaints.append(f"failed: {request.url[:80]}")
        )
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("dialog", self._dialog)

    def _console(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(f"{kind}: {text}")

    def _dialog(self, dialog: Dialog) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()  # an open dialog would halt the page
