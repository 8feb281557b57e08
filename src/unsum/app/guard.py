"""Who may talk to the server: this machine's own pages, under this machine's own names, and nobody's frame or script."""

from __future__ import annotations

import ipaddress
import re
import socket
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PAGE_HEADER = "x-unsum-page"  # a page's own random name; other sites cannot send it without asking first, and hear no
CLOSED = {"Connection": "close"}  # with a refusal: what is still to come of the request is not read
_PAGE_NAME = re.compile(r"[A-Za-z0-9-]{16,64}")
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Doorkeeper:
    """Refuses foreign Host and Origin headers, and adds to every answer what a browser must not do with it.

    A site that points its own name at 127.0.0.1 (DNS rebinding) still sends that name: a name that is not this machine's is
    refused, an address is not, since no site can take possession of an address.
    """

    def __init__(self, app: ASGIApp, *, remote: bool = False) -> None:
        self._app, self._remote = app, remote

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        refusal = self._refusal(scope["method"], Headers(scope=scope))
        if refusal is None:
            await self._app(scope, receive, guarded)
        else:
            await JSONResponse({"error": refusal}, status_code=403, headers=CLOSED)(scope, receive, guarded)

    def _refusal(self, method: str, headers: Headers) -> str | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._is_ours(host):
            return "This server answers under its own address alone; open the address that unsum printed."
        if origin is not None and urlsplit(origin).netloc != host:
            return "This server answers its own pages alone."
        if method not in ("GET", "HEAD") and not _PAGE_NAME.fullmatch(headers.get(PAGE_HEADER, "")):
            return f"The request lacks the header {PAGE_HEADER}, which the page sends."
        return None

    def _is_ours(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if is_loopback(name):
            return True
        return self._remote and (_is_address(name) or name == socket.gethostname().lower())


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
