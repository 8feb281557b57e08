"""Where the server listens."""

from __future__ import annotations

import subprocess
import sys

import pytest

from unsum.app.guard import is_loopback
from unsum.app.server import bind, url_of
from unsum.errors import UnsumError


def test_a_free_port_of_this_machine() -> None:
    with bind("127.0.0.1", 0) as bound:
        host, port = bound.getsockname()
        assert host == "127.0.0.1"
        assert url_of(bound) == f"http://127.0.0.1:{port}/"
        with pytest.raises(UnsumError, match="choose another --port"):
            bind("127.0.0.1", port)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_other_machines_only_when_asked_for(host: str) -> None:
    with pytest.raises(UnsumError, match="add --allow-remote"):
        bind(host, 0)


def test_every_address_when_asked_for() -> None:
    with bind("0.0.0.0", 0, allow_remote=True) as bound:
        assert url_of(bound).startswith("http://127.0.0.1:")


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("localhost", True),
        ("127.0.0.1.nip.example", False),
        ("", False),
    ],
)
def test_what_counts_as_this_machine(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


_INTERRUPTED = """
import signal
from unsum.app.server import serve

def say(line):
    print(line, flush=True)
    if line.startswith("unsum is at"):
        signal.raise_signal(signal.SIGINT)

serve(browser=False, say=say)
"""


@pytest.mark.long
def test_ctrl_c_at_the_very_moment_of_the_address_stops_it_in_order() -> None:
    # In a process of its own: signals and event loops of this one belong to the other tests as
    # well.
    ended = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    address, *rest = ended.stdout.splitlines()
    assert address.startswith("unsum is at http://127.0.0.1:")
    assert rest == ["Stopped."]
    assert (ended.returncode, ended.stderr) == (0, "")
