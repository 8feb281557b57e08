"""A line for each script of the bench, and pages that name no script that is gone without the
commit that has it."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

import unsum_bench
from support import pages

SCRIPTS = Path(unsum_bench.__file__).parent / "scripts"
MOST = 25  # scripts that can be called; a new one takes the place of one whose question is answered
BEFORE = "d5b3ef72"  # the commit that has the scripts which are gone, below `benchmarks`
ALL = [*pages.PAGES, pages.ROOT / "SECURITY.md", pages.ROOT / "bench" / "README.md"]


def test_every_script_has_its_line_and_there_are_few() -> None:
    called = {
        path
        for path in SCRIPTS.rglob("*.py")
        if '__name__ == "__main__"' in path.read_text("utf-8")
    }
    names = {
        path.relative_to(SCRIPTS).with_suffix("").as_posix().replace("/", ".") for path in called
    }
    text = (pages.ROOT / "bench" / "README.md").read_text("utf-8")
    assert sorted(re.findall(r"^\| `([\w.]+)`", text, re.MULTILINE)) == sorted(names)
    assert 20 <= len(names) <= MOST


@pytest.mark.parametrize("path", ALL, ids=pages.name)
def test_a_page_names_scripts_that_are_there_or_their_commit(path: Path) -> None:
    text = path.read_text("utf-8")
    named = {match.rstrip(".") for match in re.findall(r"unsum_bench\.scripts\.([\w.]+)", text)}
    assert [name for name in named if find_spec(f"unsum_bench.scripts.{name}") is None] == []
    for paragraph in re.split(r"\n\n", text):
        assert "benchmarks/" not in paragraph or BEFORE in paragraph, paragraph
