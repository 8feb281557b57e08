"""What `unsum list` shows: every method that can be named. It needs neither Typer nor PyTorch,
unless there are plug-ins."""

from __future__ import annotations

import json
from importlib.metadata import entry_points
from importlib.resources import files
from typing import Any

from rich.table import Table

from unsum.commands.stages import OUT, loading, say
from unsum.errors import check_name
from unsum.registry import COMMANDS, PROBLEMS, Registry

Listed = dict[str, list[dict[str, str]]]
_HEADINGS = {
    "when": "when it is tried",
    "says": "what it then says",
    "summary": "what it does",
    "needs": "what it needs",
}


# How a family is asked for, and its title in the list.
FAMILIES = {
    "auto": "what --attack auto tries, in this order",
    "attacks": "attacks (--attack)",
    "matching": "gradient matching (--attack)",
    "labels": "label rules (--labels)",
    "peelers": "peelers",
    "inverters": "inverters",
    "servers": "servers that change the model (--server)",
    "defenses": "defenses (--defense)",
}


def show(as_json: bool, family: str | None = None) -> None:
    """Every family with the names in it; of one family, or one name, what each does and needs. As
    JSON, all of it."""
    plugins = any(group.startswith("unsum.") for group in entry_points().groups - {COMMANDS})
    if plugins:
        with loading():
            listed = listed_methods()
    else:
        listed = _own()
    say_problems()
    if family is not None:
        listed = _asked(listed, family)
    if as_json:
        print(json.dumps(listed, indent=2, ensure_ascii=False))
    elif family is None:
        _show_names(listed)
    else:
        for title, entries in listed.items():
            _show_details(title, entries)


def _asked(listed: Listed, name: str) -> Listed:
    """One family, or the entries of one name in all families."""
    if name in FAMILIES:
        return {FAMILIES[name]: listed[FAMILIES[name]]}
    known = {entry["name"] for entries in listed.values() for entry in entries}
    check_name("family or method", name, [*FAMILIES, *known])
    found = {
        title: [entry for entry in entries if entry["name"] == name]
        for title, entries in listed.items()
    }
    return {title: entries for title, entries in found.items() if entries}


def _show_names(listed: Listed) -> None:
    table = Table("family", "names", box=None, padding=(0, 2, 0, 0))
    for family, title in FAMILIES.items():
        names = list(dict.fromkeys(entry["name"] for entry in listed[title]))
        table.add_row(family, (" → " if family == "auto" else ", ").join(names))
    OUT.print(table)
    OUT.print("What each does and needs: unsum list FAMILY or NAME, as in: unsum list defenses")


def _show_details(title: str, entries: list[dict[str, str]]) -> None:
    table = Table(
        *(_HEADINGS.get(field, field) for field in entries[0]), title=title, title_justify="left"
    )
    for entry in entries:
        table.add_row(*entry.values())
    OUT.print(table)


def _own() -> Listed:
    """Without plug-ins everything is known beforehand, and PyTorch need not be imported
    (`scripts/list_methods.py`)."""
    listed: Listed = json.loads((files("unsum.commands") / "methods.json").read_text("utf-8"))
    return listed


def listed_methods() -> Listed:
    """Every family's methods, with those of plug-ins; what `auto` tries comes first."""
    from unsum.active import SERVERS
    from unsum.attack.auto import rows
    from unsum.defend import DEFENSES
    from unsum.invert import INVERTERS
    from unsum.labels import LABEL_RULES
    from unsum.match import MATCHERS
    from unsum.peel import PEELERS
    from unsum.separate import SEPARATORS

    families: dict[str, Registry[Any]] = {
        "attacks": SEPARATORS,
        "matching": MATCHERS,
        "labels": LABEL_RULES,
        "peelers": PEELERS,
        "inverters": INVERTERS,
        "servers": SERVERS,
        "defenses": DEFENSES,
    }
    tried = [{"name": row.method, "when": row.when, "says": row.says} for row in rows()]
    return {FAMILIES["auto"]: tried} | {
        FAMILIES[name]: [{"name": e.name, "summary": e.summary, "needs": e.needs} for e in family]
        for name, family in families.items()
    }


def say_problems() -> None:
    """What is wrong with methods of other packages."""
    for sentence in PROBLEMS:
        say(sentence, "yellow")
