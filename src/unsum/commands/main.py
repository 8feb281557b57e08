"""Where `unsum` begins; `unsum --help` is answered before anything else is loaded, `unsum list`
before Typer is."""

from __future__ import annotations

import os
import sys
from typing import Any

from unsum.commands.help import shown


def main() -> None:
    """Entry point. Exit codes: 0 it ran, 1 a leak above the gate's level, 2 everything that failed,
    130 Ctrl-C."""
    if sys.argv[1:] == ["--help"]:
        print(shown())
        raise SystemExit(0)
    if sys.argv[1:] in (["list"], ["list", "--json"]):  # `unsum list FAMILY` goes the usual way
        _list("--json" in sys.argv)
    from unsum.commands.line import run

    run()


def _list(as_json: bool) -> None:
    from unsum.commands.listing import show

    try:
        show(as_json)
        sys.stdout.flush()
    except OSError:  # whoever read the output has left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise SystemExit(2) from None
    raise SystemExit(0)


def __getattr__(name: str) -> Any:
    """`app`, the commands themselves, for whoever asks for them."""
    if name == "app":
        from unsum.commands.line import app

        return app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if __name__ == "__main__":
    main()
