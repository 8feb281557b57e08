"""What `unsum list` shows: every method that can be named. It needs neither Typer nor PyTorch, unless there are plug-ins."""

from __future__ import annotations

import json
from importlib.metadata import entry_points
from importlib.resources import files
from typing import Any

from rich.table import Table

from unsum.commands.stages import OUT, loading, say
from unsum.registry import PROBLEMS, Registry

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
    if plugins:
        with loading():
            listed = listed_methods()
    else:
        listed = _own()
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


def listed_methods() -> Listed:
    """Every family's methods, with those of plug-ins; what `auto` tries comes first."""
    from unsum.active import SERVERS
    from unsum.attack.auto import CHOICES
    from unsum.defend import DEFENSES
    from unsum.invert import INVERTERS
    from unsum.labels import LABEL_RULES
    from unsum.match import MATCHERS
    from unsum.peel import PEELERS
    from unsum.separate import SEPARATORS

    families: dict[str, Registry[Any]] = {
        "attacks (--attack)": SEPARATORS,
        "gradient matching (--attack)": MATCHERS,
        "label rules (--labels)": LABEL_RULES,
        "peelers": PEELERS,
        "inverters": INVERTERS,
        "servers that change the model (--server)": SERVERS,
        "defenses (--defense)": DEFENSES,
    }
    tried = [{"name": choice.method, "when": choice.when, "says": choice.says} for choice in CHOICES]
    return {"what --attack auto tries, in this order": tried} | {
        title: [{"name": e.name, "summary": e.summary, "needs": e.needs} for e in family]
        for title, family in families.items()
    }


def say_problems() -> None:
    """What is wrong with methods of other packages."""
    for sentence in PROBLEMS:
        say(sentence, "yellow")
