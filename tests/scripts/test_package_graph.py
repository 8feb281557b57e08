"""The graph of packages in CONTRIBUTING.md is that of the code, and how it is reduced and drawn."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"


@pytest.fixture(scope="module")
def graph() -> Iterator[ModuleType]:
    sys.path.insert(0, str(SCRIPTS))
    import package_graph as found

    yield found
    sys.path.remove(str(SCRIPTS))


def test_the_page_shows_the_code_as_it_is() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "package_graph.py"), "--check"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_a_page_out_of_step_is_noticed(graph: ModuleType) -> None:
    text = graph.PAGE.read_text("utf-8")
    assert graph.page_with(graph.drawn({"a": {"b"}, "b": set()}), text) != text


def test_arrows_with_a_longer_way_are_left_out(graph: ModuleType) -> None:
    arrows = {"a": {"b", "c", "d"}, "b": {"c"}, "c": {"d"}, "d": set()}
    assert graph.reduced(arrows) == {"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": set()}
    assert graph.levels(arrows) == {"a": 3, "b": 2, "c": 1, "d": 0}


def test_parts_that_import_one_another_are_one(graph: ModuleType) -> None:
    arrows = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}
    assert graph.joined(arrows) == {"a": {"b + c"}, "b + c": {"d"}, "d": set()}


def test_what_imports_most_stands_first(graph: ModuleType) -> None:
    assert graph.drawn({"errors": set(), "update": {"errors"}}) == (
        "```text\nupdate → errors\nerrors\n```\n"
    )


def test_modules_belong_to_the_part_at_the_top(graph: ModuleType) -> None:
    names = ("unsum", "unsum.head", "unsum.spans.maps.judge", "unsum_bench.run", "unsum.__main__")
    assert [graph.part_of(name) for name in names] == ["", "head", "spans", "unsum_bench", ""]
