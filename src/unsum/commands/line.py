"""The command line: a thin Typer layer over the API, one file for each command.

Commands import what they run when they are called: their help and a typo need no PyTorch.
"""

from __future__ import annotations

import errno
import sys
import traceback
from collections.abc import Callable
from typing import Annotated

import typer

from unsum.commands import app as live_page
from unsum.commands import attack, audit, capture, ceiling, doctor, faults, installed, train_inverse
from unsum.commands.help import ABOUT
from unsum.commands.listing import FAMILIES, show
from unsum.commands.shape import Command
from unsum.commands.stages import say
from unsum.version import __version__

app = typer.Typer(
    name="unsum",
    help=ABOUT,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _list(
    family: Annotated[
        str | None,
        typer.Argument(
            help=f"What each does and needs: of a method, or of a family ({', '.join(FAMILIES)})."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Every attack, label rule, peeler, inverter, server and defense by name; of one family, what
    each does and needs."""
    show(as_json, family)


COMMANDS: dict[str, Callable[..., None]] = {
    "audit": audit.command,
    "ceiling": ceiling.command,
    "capture": capture.command,
    "attack": attack.command,
    "doctor": doctor.command,
    "train-inverse": train_inverse.command,
    "app": live_page.command,
    "list": _list,
}
_VERBOSE = "--verbose"


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"unsum {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = (False),
    verbose: Annotated[
        bool, typer.Option(_VERBOSE, help="Show the traceback of an error, wherever this stands.")
    ] = (False),
) -> None:
    """Both are dealt with before: by its callback, and by `main`."""
    del version, verbose


for name, command in COMMANDS.items():
    app.command(name, cls=Command)(command)
_GROUPS = installed.groups()
for name, group in _GROUPS.items():
    app.add_typer(group, name=name)
for info in (
    *app.registered_commands,
    *(one for group in _GROUPS.values() for one in group.registered_commands),
):
    info.epilog = f"{_VERBOSE} shows the traceback of an error."


def run() -> None:
    """Run what the command line asks for, and leave with its exit code (see
    `unsum.commands.main`)."""
    interrupt = faults.Interrupt()
    try:
        with interrupt:
            code = app(
                [word for word in sys.argv[1:] if word != _VERBOSE],
                prog_name="unsum",
                standalone_mode=False,
            )
    except BaseException as error:
        code = faults.INTERRUPTED if interrupt.came else _told(error)
    if interrupt.came and code:  # Ctrl-C is how the live page ends well
        say(f"Stopped. {faults.go_on()}", "red")
        code = faults.INTERRUPTED
    raise SystemExit(code or 0)


def _told(error: BaseException) -> int:
    """The exit code of an error, after a sentence about it."""
    if _VERBOSE in sys.argv:
        traceback.print_exception(error)
    if isinstance(error, SystemExit) and getattr(error.__context__, "errno", None) == errno.EPIPE:
        return faults.FAILED  # whoever read the output has left, as `head` does
    # the library hides an EOFError so
    cause = error.__cause__ if isinstance(error, typer.Abort) else None
    sentence = faults.sentence_of(cause or error)
    if sentence:  # none where a command without arguments has shown its help
        say(sentence, "red")
    return faults.FAILED
