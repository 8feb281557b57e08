"""Visitors that say nothing, or too much: everybody else still gets the page, and nobody reads a
refused upload to its end."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from unsum.app.server import _Server, bind, serve
from unsum.app.shelf import MOST_BYTES

PAGE = {"X-Unsum-Page": "a-page-of-the-tests"}


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The server itself, on this machine, in a thread; it stops with the tests."""
    started = threading.Event()
    servers: list[_Server] = []
    whole = _Server.__init__

    def remembered(self: _Server, *arguments: object, **options: object) -> None:
        whole(self, *arguments, **options)  # type: ignore[arg-type]
        servers.append(self)

    with bind("127.0.0.1", 0) as probe:
        free = int(probe.getsockname()[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Server, "__init__", remembered)
        settings = {"port": free, "browser": False, "say": lambda _line: started.set()}
        thread = threading.Thread(target=serve, kwargs=settings, daemon=True)
        thread.start()
        assert started.wait(60)
        yield free
        servers[0].should_exit = True
        thread.join(10)


def _status(port: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    with contextlib.closing(connection):
        connection.request("GET", "/")
        return connection.getresponse().status


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"])
def test_half_open_connections_keep_nobody_out(port: int, said: bytes) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            silent = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))
            silent.sendall(said)
        time.sleep(0.3)
        assert [_status(port) for _ in range(3)] == [200] * 3


def test_neither_do_connections_that_asked_once_and_then_halve_a_request(port: int) -> None:
    request = b"GET /page.css HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            silent = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))
            silent.sendall(request + b"\r\n")
            assert silent.recv(100).startswith(b"HTTP/1.1 200")
            silent.sendall(request)
        assert _status(port) == 200


def test_a_head_that_does_not_come_is_not_waited_for(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unsum.app.guard.PatientProtocol.header_seconds", 0.2)
    with socket.create_connection(("127.0.0.1", port), timeout=5) as silent:
        silent.sendall(b"GET / HTTP/1.1\r\n")
        with contextlib.suppress(ConnectionResetError):
            # closed; without a limit this waits until its own 5 s are over
            assert silent.recv(1) == b""


@pytest.mark.parametrize("headers", [PAGE, {}])  # too long, and not the page's own
def test_a_refused_upload_is_not_read_to_its_end(port: int, headers: dict[str, str]) -> None:
    """The server closes while the sender has most of it still to send."""
    length, block = 64 * MOST_BYTES, bytes(1 << 16)
    head = f"POST /api/photos HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {length}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    sent = 0
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sender:
        sender.sendall(head.encode() + b"\r\n")
        answer = sender.recv(4096)
        with contextlib.suppress(ConnectionError):
            while sent < length:
                sender.sendall(block)
                sent += len(block)
    assert answer.startswith((b"HTTP/1.1 413", b"HTTP/1.1 403"))
    assert sent < MOST_BYTES
