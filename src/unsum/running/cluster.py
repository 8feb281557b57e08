"""A connection to a Ray cluster: the one that this machine belongs to, one of its own, or any
other."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from unsum.errors import UnsumError, optional

AUTO, LOCAL = "auto", "local"
_PATIENCE = 10.0  # seconds for a cluster to answer at all


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """`auto`: the cluster that this machine belongs to, or one of its own; `local`: its own; else
    an address, HOST:PORT."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
    # Started by `uv run`, Ray would have every worker build an environment of its own, out of a
    # copy of the whole folder.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    ray = optional("ray", "ray", "--ray needs Ray")
    _connect(ray, address)
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise UnsumError(f"--ray takes auto, local or an address, HOST:PORT, not {address!r}.")
    try:
        socket.create_connection((host, int(port)), _PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise UnsumError(
            f"Nothing answers at {address!r}; `ray status` shows where the cluster is."
        ) from error


def _connect(ray: Any, address: str) -> None:
    own: dict[str, Any] = {"address": LOCAL, "include_dashboard": False}
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if address not in (AUTO, LOCAL):
        _check_reachable(address)
    try:
        ray.init(**(own if address == LOCAL else {"address": address}), **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        # none runs here: one that ends with the run
        if address == AUTO and isinstance(error, ConnectionError):
            ray.init(**own, **quiet)
            return
        ray.shutdown()
        reason = " ".join(str(error).split())
        raise UnsumError(
            f"The Ray cluster at {address!r} cannot be used ({reason}); --ray local makes one of "
            "its own."
        ) from error
