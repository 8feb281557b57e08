"""The table of a hundred bugs keeps up with the code, and planting one leaves the tree as it is;
see `scripts/mutants.py`."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
# a fork server that other tests have started has imported this tree's unsum already
START = "spawn"
MODULE = "def larger(a, b):\n    return a if a > b else b\n\n\ndef unused(a):\n    return a + 1\n"
TESTS = (
    "from unsum.small import larger\n\n\ndef test_larger():\n    assert larger(1, 2) == larger(2, "
    "1) == 2\n"
)


@pytest.fixture(scope="module")
def mutants() -> Iterator[ModuleType]:
    sys.path.insert(0, str(SCRIPTS))
    import mutants as found

    yield found
    sys.path.remove(str(SCRIPTS))


def test_every_bug_has_one_place_and_one_line(mutants: ModuleType) -> None:
    bugs = mutants.read_table()
    assert len(bugs) == 100
    assert (
        len({(bug.file, bug.old, bug.new) for bug in bugs})
        == len({bug.name for bug in bugs})
        == 100
    )
    for bug in bugs:
        text = (ROOT / "src/unsum" / bug.file).read_text("utf-8")
        assert "\n" not in bug.old + bug.new, bug.name
        assert ast.dump(ast.parse(bug.planted(text))) != ast.dump(ast.parse(text)), bug.name


def test_the_tests_of_a_bug_lie_beside_its_module(mutants: ModuleType) -> None:
    for bug in mutants.read_table():
        folder, _, rest = bug.file.partition("/")
        beside = f"tests/{folder}/" if rest else f"tests/test_{folder}"
        assert bug.tests, bug.name
        for test in bug.tests:
            path, _, name = test.partition("::")
            assert test.startswith(beside), bug.name
            assert name.partition("::")[0] in (ROOT / path).read_text("utf-8"), bug.name


def test_bugs_are_spread_over_the_package(mutants: ModuleType) -> None:
    places = Counter(bug.file.partition("/")[0].removesuffix(".py") for bug in mutants.read_table())
    assert {
        *(
            "certify",
            "spans",
            "peel",
            "invert",
            "separate",
            "labels",
            "score",
            "audit",
            "defend",
            "client",
        ),
        *("files", "update", "app", "commands", "knowledge", "running"),
    } <= places.keys()
    assert max(places.values()) <= 25


def test_a_text_that_stands_there_twice_or_not_at_all_is_refused(mutants: ModuleType) -> None:
    for old, count in (("return a", 2), ("nowhere", 0)):
        bug = mutants.Bug("small.py", old, "b", ("tests/test_small.py",), "?")
        assert MODULE.count(old) == count
        with pytest.raises(ValueError, match=f"stands there {count} times, not once"):
            bug.planted(MODULE)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository of one module and one test."""
    root = tmp_path / "tree"
    files = {
        "src/unsum/__init__.py": "",
        "src/unsum/small.py": MODULE,
        "tests/test_small.py": TESTS,
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)
    return root


def test_a_bug_is_caught_or_survives_in_a_copy_and_the_tree_stays(
    mutants: ModuleType, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the processes' pytest imports no other plug-in
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "xdist.plugin")
    copy = mutants.Copy(tree, tmp_path / "copy", start=START)
    tests = ("tests/test_small.py",)
    caught = mutants.Bug("small.py", "if a > b", "if a < b", tests, "the smaller is larger")
    survives = mutants.Bug("small.py", "a + 1", "a - 1", tests, "nobody looks")
    assert [copy.outcome(bug, 60) for bug in (caught, survives)] == [
        mutants.CAUGHT,
        mutants.SURVIVED,
    ]
    assert (
        (copy.place / "src/unsum/small.py").read_text()
        == (tree / "src/unsum/small.py").read_text()
        == MODULE
    )


@pytest.mark.long
def test_tests_that_do_not_end_catch_a_bug_and_those_that_fail_without_it_show_nothing(
    mutants: ModuleType, tree: Path, tmp_path: Path
) -> None:
    (tree / "tests/test_failing.py").write_text("def test_it():\n    assert False\n")
    copy = mutants.Copy(tree, tmp_path / "copy", start=START)
    endless = mutants.Bug(
        "small.py", "return a if a > b else b", "while True: pass", ("tests/test_small.py",), "?"
    )
    assert copy.outcome(endless, 20) == mutants.CAUGHT
    broken = mutants.Bug("small.py", "a + 1", "a - 1", ("tests/test_failing.py",), "?")
    assert copy.outcome(broken, 60) == mutants.BROKEN


def test_outcomes_are_kept_until_the_row_the_module_or_the_tests_change(
    mutants: ModuleType, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutants, "ROOT", tree)
    tried: list[str] = []
    outcomes = iter([mutants.CAUGHT, mutants.BROKEN, mutants.SURVIVED])
    monkeypatch.setattr(
        mutants.Copy, "outcome", lambda _, bug, __: (tried.append(bug.what), next(outcomes))[1]
    )
    bugs = [
        mutants.Bug("small.py", "a + 1", f"a - {n}", ("tests/test_small.py",), f"bug {n}")
        for n in (1, 2)
    ]

    def again() -> dict[str, str]:
        record = mutants.Record(tmp_path / "build" / "mutants.json")
        found = mutants.try_all(bugs, record, processes=1, seconds=1.0, fresh=False)
        return {bug.what: outcome for bug, outcome in found.items()}

    assert again() == {"bug 1": mutants.CAUGHT, "bug 2": mutants.BROKEN}
    # what was broken may be mended
    assert again() == {"bug 1": mutants.CAUGHT, "bug 2": mutants.SURVIVED}
    assert again() == {"bug 1": mutants.CAUGHT, "bug 2": mutants.SURVIVED}
    assert tried == ["bug 1", "bug 2", "bug 2"]
    keys = [bug.key(tree) for bug in bugs]
    (tree / "tests/test_small.py").write_text(TESTS + "\n")
    assert not set(keys) & {bug.key(tree) for bug in bugs}


def test_what_was_not_caught_is_named(mutants: ModuleType) -> None:
    one, other = (
        mutants.Bug("small.py", "a + 1", f"a - {n}", ("tests/test_small.py",), f"bug {n}")
        for n in (1, 2)
    )
    said = mutants.summary({one: mutants.CAUGHT, other: mutants.SURVIVED})
    assert "SURVIVED: small.py: bug 2\n    a + 1\n  → a - 2" in said
    assert "bug 1" not in said
    assert said.endswith("1 of 2 bugs were caught by the tests beside them.")
