"""No `assert` guards what a user brings: those that are left tell the type checker what the code above has made sure of."""

from __future__ import annotations

import ast
from pathlib import Path

import unsum

SOURCE = Path(unsum.__file__).parent
# What users hand in is opened, chosen and trained on here.
DOORS = (
    "attack/case.py",
    "attack/auto.py",
    "attack/options.py",
    "models/language.py",
    "client",
    "data",
    "defend",
    "files",
)


def _asserts(path: Path) -> list[ast.Assert]:
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Assert)]


def _narrows(node: ast.Assert) -> bool:
    """`x is not None` or `isinstance(x, …)`, without a message for a person."""
    test = node.test
    is_not_none = (
        isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.IsNot) and ast.unparse(test).endswith("None")
    )
    is_kind = isinstance(test, ast.Call) and ast.unparse(test.func) == "isinstance"
    return node.msg is None and (is_not_none or is_kind)


def test_asserts_only_narrow_types() -> None:
    wrong = [f"{path}:{node.lineno}" for path in SOURCE.rglob("*.py") for node in _asserts(path) if not _narrows(node)]
    assert wrong == []


def test_there_is_none_at_the_doors() -> None:
    files = [
        path for door in DOORS for path in ([SOURCE / door] if door.endswith(".py") else (SOURCE / door).rglob("*.py"))
    ]
    assert len(files) > 30
    assert [str(path) for path in files if _asserts(path)] == []
