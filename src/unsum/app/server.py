"""The routes: one page and its parts, the menu, photos in, rounds out; and a socket that serves
them until Ctrl-C.

No path of a request reaches the file system.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import webbrowser
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from importlib.resources import files
from typing import Any

import torch
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from unsum.app.bounds import Ceilings
from unsum.app.guard import (
    BODY_SECONDS,
    CLOSED,
    MOST_SILENT,
    PAGE_HEADER,
    Doorkeeper,
    PatientProtocol,
    is_loopback,
)
from unsum.app.order import MOST_PHOTOS, menu, read_order
from unsum.app.round import play
from unsum.app.shelf import MOST_BYTES, MOST_OWN, Shelf, shown
from unsum.app.worker import Worker
from unsum.audit.report import BADGES, credits_of
from unsum.ceiling.result import ASSUMED
from unsum.data import tags
from unsum.errors import UnsumError
from unsum.models import DEFAULT_MODEL, load_model

_MOST_ORDER_BYTES = 64 * 1024  # numbers and names; photos come by themselves
_PAGE, _LOOK = files("unsum.app") / "page", files("unsum.audit") / "templates"
_SCRIPTS = ("page", "photos", "result", "interval", "history")
_PARTS = {
    "/": (_PAGE / "page.html", "text/html"),
    "/look.css": (_LOOK / "look.css", "text/css"),
    "/chart.css": (_LOOK / "chart.css", "text/css"),
    "/page.css": (_PAGE / "page.css", "text/css"),
    **{f"/{name}.js": (_PAGE / f"{name}.js", "text/javascript") for name in _SCRIPTS},
}


class _TooLargeError(UnsumError):
    """More bytes than are taken."""


class _Site:
    """What every request shares: the model, the photos and the one computing thread."""

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._loaded = load_model(DEFAULT_MODEL, classes=len(tags()))
        self._loaded.model.to(self._device)
        self._shelf = Shelf(self._loaded.image_size)
        self.worker = Worker()
        self._ceilings = Ceilings()  # used by the one computing thread alone
        self._decoding = asyncio.Lock()  # one large picture in memory at a time
        names = tags()
        photos = [
            {"id": key, "title": p.title, "label": names[p.label or 0], "picture": shown(p.pixels)}
            for key, p in self._shelf.embedded.items()
        ]
        self._setting = {
            "model": self._loaded.name,
            "size": self._loaded.image_size,
            "labels": names,
            "photos": photos,
            "credits": credits_of([photo.title for photo in self._shelf.embedded.values()]),
            "defenses": [asdict(offer) for offer in menu().values()],
            "badges": BADGES,
            "assumed": ASSUMED,
            "limits": {"photos": MOST_PHOTOS, "own": MOST_OWN, "bytes": MOST_BYTES},
        }

    async def setting(self, _request: Request) -> Response:
        return JSONResponse(self._setting)

    async def add_photo(self, request: Request) -> Response:
        content = await _body(
            request,
            MOST_BYTES,
            f"A photo may have at most {MOST_BYTES >> 20} MB; choose a smaller one.",
        )
        name, page = request.query_params.get("name", ""), request.headers[PAGE_HEADER]
        async with self._decoding:
            key, photo = await run_in_threadpool(self._shelf.add, content, name, page)
        return JSONResponse(
            {"id": key, "title": photo.title, "picture": shown(photo.pixels)}, status_code=201
        )

    async def remove_photo(self, request: Request) -> Response:
        self._shelf.remove(request.path_params["key"], request.headers[PAGE_HEADER])
        return Response(status_code=204)

    async def play(self, request: Request) -> Response:
        content = await _body(request, _MOST_ORDER_BYTES, "The request is too long.")
        try:
            wanted = json.loads(content)
        except (ValueError, RecursionError):
            raise UnsumError("A round is asked for with a JSON object.") from None
        page = request.headers[PAGE_HEADER]
        order = read_order(wanted, self._shelf, page)
        job = self.worker.start(
            page, lambda: play(self._loaded, order, self._device, self._ceilings)
        )
        lines = (json.dumps(answer) + "\n" async for answer in job.answers())
        return StreamingResponse(lines, media_type="application/x-ndjson")


def create_app(*, device: str = "cpu", remote: bool = False) -> Starlette:
    """The application, with the embedded model loaded; `remote` lets other machines' addresses in
    the Host header pass."""
    site = _Site(device)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        site.worker.close()

    routes = [Route(path, _part(*part)) for path, part in _PARTS.items()]
    routes += [
        Route("/api/setting", site.setting),
        Route("/api/photos", site.add_photo, methods=["POST"]),
        Route("/api/photos/{key}", site.remove_photo, methods=["DELETE"]),
        Route("/api/round", site.play, methods=["POST"]),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(Doorkeeper, remote=remote)],
        exception_handlers={UnsumError: _sentence},
        lifespan=lifespan,
    )


def _part(file: Any, media_type: str) -> Any:
    content = file.read_bytes()

    async def part(_request: Request) -> Response:
        return Response(content, media_type=media_type)

    return part


async def _sentence(_request: Request, error: Exception) -> Response:
    status = 413 if isinstance(error, _TooLargeError) else 422
    return JSONResponse({"error": str(error)}, status_code=status, headers=CLOSED)


async def _body(request: Request, most: int, sentence: str) -> bytes:
    """The whole body, or a refusal as soon as it is too long, or says that it will be; or when it
    takes too long to come."""
    promised = request.headers.get("content-length", "")
    if promised.isascii() and promised.isdigit() and int(promised[:19]) > most:
        raise _TooLargeError(sentence)
    content = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                content += chunk
                if len(content) > most:
                    raise _TooLargeError(sentence)
    except TimeoutError:
        raise UnsumError("The request took too long to arrive; try again.") from None
    return bytes(content)


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

    def announce() -> None:
        say(f"unsum is at {url_of(bound)} (Ctrl-C stops it).")
        if browser:
            threading.Thread(target=webbrowser.open, args=(url_of(bound),), daemon=True).start()

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
        server = _Server(config, started=announce)
        # uvicorn raises it again once it has closed everything
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[bound])
    say("Stopped.")


class _Server(uvicorn.Server):
    """Says that it is there once Ctrl-C stops it in order: before that, an interrupt breaks its
    set-up in half."""

    def __init__(self, config: uvicorn.Config, *, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._when_started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._when_started()


def bind(host: str, port: int, *, allow_remote: bool = False) -> socket.socket:
    """A listening socket, or a sentence; anything but this machine itself only when that was asked
    for."""
    if not is_loopback(host) and not allow_remote:
        raise UnsumError(
            f"--host {host} would let other machines in, and the page asks for no password; add "
            "--allow-remote if you want that."
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
        raise UnsumError(
            f"{host}:{port} cannot be used ({error.strerror}); choose another --port, or 0."
        ) from error
    return bound


def url_of(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # every address of this machine: print one that works here
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
