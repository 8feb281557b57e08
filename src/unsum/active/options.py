"""Servers as they are written on a command line, `imprint:bins=128,strength=0.01`, and the options each takes."""

from __future__ import annotations

import inspect
from typing import Any

from unsum.active.method import SERVERS
from unsum.errors import UnsumError, unknown_name
from unsum.separate.options import read_value


def parse_server(text: str) -> tuple[str, dict[str, Any]]:
    """The name and the options.

    >>> parse_server("imprint:bins=128,strength=0.01")
    ('imprint', {'bins': 128, 'strength': 0.01})
    """
    name, _, written = text.partition(":")
    options: dict[str, Any] = {}
    for part in filter(None, written.split(",")):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value:
            raise UnsumError(
                f"Options of a server are written NAME:OPTION=VALUE, as in imprint:bins=128, not {text!r}."
            )
        options[key] = read_value(value)
    return name.strip(), options


def check_server(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options, checked against those the server takes by name and kind."""
    parameters = inspect.signature(SERVERS[name]).parameters
    own = {key: p.default for key, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}
    for key, value in options.items():
        if key not in own:
            raise unknown_name(f"option of the server {name!r}", key, own)
        if isinstance(own[key], int) and not isinstance(value, int):
            raise UnsumError(f"The option {key!r} of the server {name!r} is a whole number, not {value!r}.")
        if isinstance(own[key], float) and not isinstance(value, int | float):
            raise UnsumError(f"The option {key!r} of the server {name!r} is a number, not {value!r}.")
    return options
