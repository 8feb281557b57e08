"""Who may talk to the server: this machine's own pages, under this machine's own names, and
nobody's frame or script.

And how long it waits for a visitor to finish asking: whoever opens connections and says nothing
keeps nobody out. uvicorn closes connections that idle after an answer, and waits for the first
request, or for the rest of one, for ever.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections import OrderedDict
from typing import Any, ClassVar
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

# a page's own random name; other sites cannot send it without asking first, and hear no
PAGE_HEADER = "x-unsum-page"
CLOSED = {"Connection": "close"}  # with a refusal: what is still to come of the request is not read
_PAGE_NAME = re.compile(r"[A-Za-z0-9-]{16,64}")
HEADER_SECONDS = 10.0  # for the head of a request; a browser sends it at once
BODY_SECONDS = 60.0  # for a photo of the largest size, over a slow line
MOST_SILENT = 64  # connections without a whole head; the oldest goes when one more comes
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src "
        "'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
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
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


class Doorkeeper:
    """Refuses foreign Host and Origin headers, and adds to every answer what a browser must not do
    with it.

    A site that points its own name at 127.0.0.1 (DNS rebinding) still sends that name: a name that
    is not this machine's is refused, an address is not, since no site can take possession of an
    address.
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
            await JSONResponse({"error": refusal}, status_code=403, headers=CLOSED)(
                scope, receive, guarded
            )

    def _refusal(self, method: str, headers: Headers) -> str | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._is_ours(host):
            return (
                "This server answers under its own address alone; open the address that unsum "
                "printed."
            )
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
        other = _address(name) is not None or name == socket.gethostname().lower()
        return is_loopback(name) or (self._remote and other)


class PatientProtocol(H11Protocol):
    """A connection that is closed when its request's head does not come, in time or among too many
    of its kind."""

    header_seconds: ClassVar[float] = HEADER_SECONDS
    _silent: ClassVar[OrderedDict[PatientProtocol, asyncio.TimerHandle]] = OrderedDict()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()
        while len(self._silent) > MOST_SILENT:
            next(iter(self._silent))._give_up()

    def connection_lost(self, exc: Exception | None) -> None:
        self._heard()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:  # a whole head has come, and its request is under way
            self._heard()

    def on_response_complete(self) -> None:
        self._wait()  # for the head of the next one
        super().on_response_complete()

    def _wait(self) -> None:
        self._heard()
        self._silent[self] = self.loop.call_later(self.header_seconds, self._give_up)

    def _heard(self) -> None:
        timer: Any = self._silent.pop(self, None)
        if timer is not None:
            timer.cancel()

    def _give_up(self) -> None:
        self._heard()
        self.transport.abort()
