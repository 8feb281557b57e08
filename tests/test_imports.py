"""The source as a whole: no module needs itself, nothing is imported late, and no two classes share a name."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import unsum

ROOT = Path(unsum.__file__).parent
LATE = {"unsum.commands.app"}  # a front end that loads an optional extra
# Of solvers whose files name one thing each; every other name stands for one class.
SHARED = {"Noise", "Walk", "_Remainder", "_State"}


def _name(path: Path) -> str:
    parts = ["unsum", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


TREES = {_name(path): ast.parse(path.read_text("utf-8")) for path in sorted(ROOT.rglob("*.py"))}


def _imported(tree: ast.AST) -> Iterator[str]:
    """The modules of ours that are imported anywhere in it, in functions and for type checks, too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in TREES)
        elif isinstance(node, ast.ImportFrom) and node.module in TREES:
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in TREES else node.module for name in whole)


def _needed(name: str) -> set[str]:
    """What must be there before module `name`: what it imports, with the packages that importing it opens."""
    needed = set()
    for module in _imported(TREES[name]):
        parts = module.split(".")
        opened = {".".join(parts[:count]) for count in range(2, len(parts) + 1)}
        needed |= {package for package in opened if package != name and not name.startswith(f"{package}.")}
        needed.add(module)
    return needed - {name}


def test_no_import_leads_back_to_its_module() -> None:
    try:
        list(TopologicalSorter({name: _needed(name) for name in TREES}).static_order())
    except CycleError as error:
        pytest.fail(" → ".join(reversed(error.args[1])))


def test_our_own_modules_are_imported_at_the_top() -> None:
    late = []
    for name, tree in TREES.items():
        inside = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        if any(any(_imported(function)) for function in inside):
            late.append(name)
    assert set(late) == LATE


def test_a_class_has_its_name_for_itself() -> None:
    found = defaultdict(list)
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(name)
    assert len(found) > 100  # the walk found them
    assert {name: places for name, places in found.items() if len(places) > 1 and name not in SHARED} == {}
