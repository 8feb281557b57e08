"""`unsum --help` without what draws and parses, and the same words as the commands' own help."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import typer

from unsum.commands import help as entry
from unsum.commands.line import app


def test_the_summaries_are_the_commands_own() -> None:
    group: Any = typer.main.get_command(app)
    own = {
        name: " ".join((made.help or "").split("\n\n")[0].split())
        for name, made in group.commands.items()
    }
    assert own == entry.SUMMARIES
    assert group.help == entry.ABOUT
    options = {option.opts[0]: option.help for option in group.params}
    assert {name: entry.OPTIONS[name] for name in options} == options


def test_help_names_every_command_and_needs_neither_typer_nor_rich_nor_torch() -> None:
    heavy = ("typer", "rich", "torch", "numpy")
    code = (
        "import sys; sys.argv = ['unsum', '--help']\n"
        "from unsum.commands.main import main\n"
        "try:\n    main()\n"
        f"except SystemExit as end:\n    print(end.code, [name for name in {heavy} if name in "
        "sys.modules])\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert shown.endswith("0 []\n")
    assert all(f"\n  {name} " in shown for name in entry.SUMMARIES)
    assert max(map(len, shown.splitlines())) <= 100
