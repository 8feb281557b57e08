"""Open a socket, say where it is, and serve until Ctrl-C."""

from __future__ import annotations

import contextlib
import socket
import threading
import webbrowser
from collections.abc import Callable

import uvicorn

from unsum.app.guard import MOST_SILENT, PatientProtocol, is_loopback
from unsum.app.server import create_app
from unsum.errors import UnsumError

_LAST_WORDS = 2  # seconds that answers under way are given when the server stops
_MOST_CONNECTIONS = 64 + MOST_SILENT  # those with a request, and those that have not asked yet


def serve(
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    allow_remote: bool = False,
    browser: bool = True,
    device: str = "cpu",
    say: Callable[[str], None] = print,
) -> None:
    """Serve the live page; `port` 0 takes a free one. Returns after Ctrl-C."""
    bound = bind(host, port, allow_remote=allow_remote)
    with bound:
        app = create_app(device=device, remote=allow_remote)
        config = uvicorn.Config(
            app,
            log_level="warning",
            http=PatientProtocol,
            timeout_graceful_shutdown=_LAST_WORDS,
            limit_concurrency=_MOST_CONNECTIONS,
            server_header=False,
        )
        server = _Server(config, started=lambda: _announce(url_of(bound), browser, say))
        with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again once it has closed everything
            server.run(sockets=[bound])
    say("Stopped.")


class _Server(uvicorn.Server):
    """Says that it is there once Ctrl-C stops it in order: before that, an interrupt breaks its set-up in half."""

    def __init__(self, config: uvicorn.Config, *, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._when_started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._when_started()


def _announce(address: str, browser: bool, say: Callable[[str], None]) -> None:
    say(f"unsum is at {address} (Ctrl-C stops it).")
    if browser:
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()


def bind(host: str, port: int, *, allow_remote: bool = False) -> socket.socket:
    """A listening socket, or a sentence; anything but this machine itself only when that was asked for."""
    if not is_loopback(host) and not allow_remote:
        raise UnsumError(
            f"--host {host} would let other machines in, and the page asks for no password; add --allow-remote if you want that."
        )
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise UnsumError(f"There is no address {host!r} to serve at: {error.strerror}.") from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(place)
        bound.listen()
    except OSError as error:
        bound.close()
        raise UnsumError(f"{host}:{port} cannot be used ({error.strerror}); choose another --port, or 0.") from error
    return bound


def url_of(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # every address of this machine: print one that works here
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
