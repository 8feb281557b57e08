"""The source as a whole: no module needs itself, nothing is imported late, and no two classes share
a name."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import unsum
import unsum_bench
from support.sources import parsed

ROOTS = [Path(package.__file__).parent for package in (unsum, unsum_bench)]
LATE = (
    "unsum.commands.",
    "unsum_bench.command",
)  # a command imports what it runs when it is called: --help needs no PyTorch
# Of solvers whose files name one thing each; every other name stands for one class.
SHARED = {"Noise", "Walk", "_Remainder", "_State"}


def _sources() -> Iterator[Path]:
    """Every file of both packages but the bench's scripts, which stand alone."""
    for root in ROOTS:
        yield from (
            path
            for path in sorted(root.rglob("*.py"))
            if path.relative_to(root).parts[0] != "scripts"
        )


def _name(path: Path) -> str:
    root = next(root for root in ROOTS if path.is_relative_to(root))
    parts = [root.name, *path.relative_to(root).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def trees() -> dict[str, ast.Module]:
    """Every module of ours; parsed by the process that runs these tests, and not by all that
    collect them."""
    return {_name(path): parsed(path) for path in _sources()}


def _imported(tree: ast.AST) -> Iterator[str]:
    """The modules of ours that are imported anywhere in it, in functions and for type checks,
    too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in trees())
        elif isinstance(node, ast.ImportFrom) and node.module in trees():
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in trees() else node.module for name in whole)


def _needed(name: str) -> set[str]:
    """What must be there before module `name`: what it imports, with the packages that importing it
    opens."""
    needed = set()
    for module in _imported(trees()[name]):
        parts = module.split(".")
        opened = {".".join(parts[:count]) for count in range(2, len(parts) + 1)}
        needed |= {
            package for package in opened if package != name and not name.startswith(f"{package}.")
        }
        needed.add(module)
    return needed - {name}


def test_no_import_leads_back_to_its_module() -> None:
    try:
        list(TopologicalSorter({name: _needed(name) for name in trees()}).static_order())
    except CycleError as error:
        pytest.fail(" → ".join(reversed(error.args[1])))


def test_our_own_modules_are_imported_at_the_top() -> None:
    late = []
    for name, tree in trees().items():
        inside = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        if any(any(_imported(function)) for function in inside):
            late.append(name)
    assert late  # the walk found them
    assert [name for name in late if not name.startswith(LATE)] == []


def test_what_is_imported_on_first_use_is_what_type_checkers_see() -> None:
    block = next(node for node in trees()["unsum"].body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in block.body for alias in node.names}
    assert seen == unsum._HOMES
    assert sorted([*seen, "__version__"]) == sorted(unsum.__all__)


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import unsum; dir(unsum)", "torch"),
        ("import unsum; unsum.audit, unsum.doctor, unsum.sweep", "torchvision"),
        *(((
            f"import sys; sys.argv = ['unsum', *{words.split()}]; from unsum.__main__ import main; "
            "main()"
        ), "torch")
          for words in ("--help", "--version", "list", "audit --bach 3", "audti",
          "bench show --help")),
    ],
)  # fmt: skip
def test_nothing_heavy_is_imported_before_it_is_needed(code: str, absent: str) -> None:
    watch = (
        f"import atexit, sys; atexit.register(lambda: print('HEAVY', {absent!r} in sys.modules)); "
        f"{code}"
    )
    done = subprocess.run(
        [sys.executable, "-c", watch], capture_output=True, text=True, check=False
    )
    assert done.stdout.endswith("HEAVY False\n"), done.stderr


def test_a_function_keeps_its_name_when_the_package_of_that_name_is_imported() -> None:
    code = (
        "import unsum.audit.run, unsum.peel.walk, unsum; assert callable(unsum.audit) and "
        "callable(unsum.peel)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'adit'"):
        unsum.adit  # noqa: B018


def test_a_class_has_its_name_for_itself() -> None:
    found = defaultdict(list)
    for name, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(name)
    assert len(found) > 100  # the walk found them
    assert {
        name: places for name, places in found.items() if len(places) > 1 and name not in SHARED
    } == {}


def test_no_module_takes_what_another_keeps_to_itself() -> None:
    taken = [
        f"{name} ← {node.module}.{alias.name}"
        for name, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in trees()
        for alias in node.names
        if alias.name.startswith("_") and not alias.name.startswith("__")
    ]
    assert not taken


def _is_number(node: ast.expr | None) -> bool:
    try:
        value = ast.literal_eval(node or "")
    except ValueError:
        return isinstance(node, ast.BinOp) and _is_number(node.left) and _is_number(node.right)
    return type(value) in (int, float) or (
        isinstance(value, tuple) and all(type(v) in (int, float) for v in value)
    )


def test_every_number_at_the_top_says_what_it_is() -> None:
    """A constant without a word beside or above it cannot be judged: a limit, a budget, or a floor
    of arithmetic?"""
    silent = []
    for path in _sources():
        lines = path.read_text("utf-8").splitlines()
        for node in trees()[_name(path)].body:
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.targets[0], ast.Name)
                and _is_number(node.value)
            ):
                around = [
                    lines[node.lineno - 2].lstrip(),
                    *lines[node.lineno - 1 : node.end_lineno],
                ]
                if not around[0].startswith("#") and not any(" # " in line for line in around[1:]):
                    silent.append(f"{_name(path)}:{node.lineno} {node.targets[0].id}")
    assert not silent
