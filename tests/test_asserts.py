"""No `assert` guards what a user brings: those that are left tell the type checker what the code
above has made sure of."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import unsum
from support.sources import parsed

SOURCE = Path(unsum.__file__).parent
# Searches and certificates, which are handed what the doors above them have checked. Nowhere else
# is there any.
INSIDE = (
    "ceiling",
    "engine",
    "equation",
    "invert/pixels",
    "network",
    "peel",
    "separate/adaptive",
    "separate/exact",
    "separate/local_steps",
    "separate/text",
    "spans",
)


@cache
def _asserts(path: Path) -> list[ast.Assert]:
    return [node for node in ast.walk(parsed(path)) if isinstance(node, ast.Assert)]


def _narrows(node: ast.Assert) -> bool:
    """`x is not None` or `isinstance(x, …)`, without a message for a person."""
    test = node.test
    is_not_none = (
        isinstance(test, ast.Compare)
        and isinstance(test.ops[0], ast.IsNot)
        and ast.unparse(test).endswith("None")
    )
    is_kind = isinstance(test, ast.Call) and ast.unparse(test.func) == "isinstance"
    return node.msg is None and (is_not_none or is_kind)


def test_asserts_only_narrow_types() -> None:
    wrong = [
        f"{path}:{node.lineno}"
        for path in SOURCE.rglob("*.py")
        for node in _asserts(path)
        if not _narrows(node)
    ]
    assert wrong == []


def test_there_is_none_where_users_are_met() -> None:
    """Who reads files, options, data or a user's model says a sentence (`errors.needed`)
    instead."""
    inside = [path for folder in INSIDE for path in (SOURCE / folder).rglob("*.py")]
    doors = set(SOURCE.rglob("*.py")) - set(inside)
    assert len(inside) < 200 < 280 < len(doors)
    assert [str(path) for path in doors if _asserts(path)] == []
    assert all(any(_asserts(path) for path in (SOURCE / folder).rglob("*.py")) for folder in INSIDE)
