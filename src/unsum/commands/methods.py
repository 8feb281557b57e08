"""`unsum list`: every method that can be named."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from unsum.commands.listing import show


def command(as_json: Annotated[bool, Option("--json", help="Print as JSON instead of tables.")] = False) -> None:
    """What auto tries in which order; every attack, label rule, peeler, inverter, server and defense, with what it needs."""
    show(as_json)
