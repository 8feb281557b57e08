"""What `unsum list` shows: every method that can be named. It needs neither Typer nor PyTorch, unless there are plug-ins."""

from __future__ import annotations

import json
from importlib.metadata import entry_points
from importlib.resources import files

from rich.table import Table

from unsum.commands.stages import OUT, loading, say
from unsum.registry import PROBLEMS

Listed = dict[str, list[dict[str, str]]]
_HEADINGS = {
    "when": "when it is tried",
    "says": "what it then says",
    "summary": "what it does",
    "needs": "what it needs",
}


def show(as_json: bool) -> None:
    """Print them as tables or JSON."""
    plugins = any(group.startswith("unsum.") for group in entry_points().groups)
    listed = _all() if plugins else _own()
    say_problems()
    if as_json:
        print(json.dumps(listed, indent=2, ensure_ascii=False))
        return
    for title, entries in listed.items():
        table = Table(*(_HEADINGS.get(field, field) for field in entries[0]), title=title, title_justify="left")
        for entry in entries:
            table.add_row(*entry.values())
        OUT.print(table)


def _own() -> Listed:
    """Without plug-ins everything is known beforehand, and PyTorch need not be imported (`scripts/list_methods.py`)."""
    listed: Listed = json.loads((files("unsum.commands") / "methods.json").read_text("utf-8"))
    return listed


def _all() -> Listed:
    with loading():
        from unsum.commands.families import listed_methods
    return listed_methods()


def say_problems() -> None:
    """What is wrong with methods of other packages."""
    for sentence in PROBLEMS:
        say(sentence, "yellow")
