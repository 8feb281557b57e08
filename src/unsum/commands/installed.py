"""Commands that packages of their own bring, by an entry point of the group `unsum.commands` that
names a Typer application."""

from __future__ import annotations

from typing import Annotated

import typer

from unsum.commands.help import SUMMARIES
from unsum.errors import UnsumError
from unsum.registry import COMMANDS, named_by

PACKAGES = {"bench": "unsum-bench"}  # command → the package that has it
_ANYTHING = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def groups() -> dict[str, typer.Typer]:
    """By name; a command whose package is absent says how to get it."""
    found = named_by(COMMANDS)
    return {name: found.get(name) or _absent(name) for name in PACKAGES}


def _absent(name: str) -> typer.Typer:
    """Takes whatever a user gives the command, and refuses it with one sentence."""
    app = typer.Typer(help=SUMMARIES[name], pretty_exceptions_enable=False)

    @app.callback(invoke_without_command=True, context_settings=_ANYTHING)
    def refuse(words: Annotated[list[str] | None, typer.Argument()] = None) -> None:
        del words
        raise UnsumError(
            f"`unsum {name}` is in a package of its own, {PACKAGES[name]}, which is not installed "
            f"here or cannot be imported; get it with `pip install ./{name}` in a copy of unsum's "
            "repository."
        )

    return app
