"""Where `unsum` begins; `unsum --help` is answered before anything else is loaded."""

from __future__ import annotations

import sys
from typing import Any

from unsum.commands.help import shown


def main() -> None:
    """Entry point. Exit codes: 0 it ran, 1 a leak above the gate's level, 2 everything that failed, 130 Ctrl-C."""
    if sys.argv[1:] == ["--help"]:
        print(shown())
        raise SystemExit(0)
    from unsum.commands.line import run

    run()


def __getattr__(name: str) -> Any:
    """`app`, the commands themselves, for whoever asks for them."""
    if name == "app":
        from unsum.commands.line import app

        return app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if __name__ == "__main__":
    main()
