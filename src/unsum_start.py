"""The `unsum` command's first second: say something before PyTorch, whose import takes several, is loaded.

It stands beside the package because importing anything inside the package imports PyTorch.
"""

from __future__ import annotations

import sys


def main() -> None:
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        print("unsum: loading PyTorch", file=sys.stderr, flush=True)
    with console.status("Loading PyTorch"):
        from unsum.commands.main import main as run
    run()
