"""`unsum app`: the live page, served to this machine."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from unsum.commands import options
from unsum.commands.stages import stages
from unsum.errors import UnsumError


def command(
    host: Annotated[
        str, Option(help="Where to listen; other machines are let in only with --allow-remote.")
    ] = ("127.0.0.1"),
    port: Annotated[int, Option(min=0, max=65535, help="0 takes a free port.")] = 8765,
    allow_remote: Annotated[
        bool,
        Option(
            "--allow-remote",
            help="Let --host be an address that other machines reach; there is no password.",
        ),
    ] = False,
    no_browser: Annotated[
        bool, Option("--no-browser", help="Print the address and open nothing.")
    ] = False,
    device: options.DeviceOption = "cpu",
) -> None:
    """Choose photos and a defense on a live page, and watch what one update gives away."""
    try:
        with stages() as shown:
            shown.say("Loading the page")
            from unsum.app import serve  # its libraries come with an extra
    except ImportError as error:
        raise UnsumError(
            f"The live page needs {error.name}, which is not installed; install it with: pip "
            "install 'unsum[app]'."
        ) from error
    serve(
        host=host,
        port=port,
        allow_remote=allow_remote,
        browser=not no_browser,
        device=device,
        say=lambda sentence: print(sentence, flush=True),
    )
