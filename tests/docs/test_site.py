"""What the site takes from the code is complete, its figures stand alone, and its pages point at
each other."""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
import typer

import unsum
from support import pages
from unsum.active import SERVERS
from unsum.commands import main as cli
from unsum.defend import DEFENSES
from unsum.invert import INVERTERS
from unsum.labels import LABEL_RULES
from unsum.match import MATCHERS
from unsum.peel import PEELERS
from unsum.separate import SEPARATORS

DOCS = pages.ROOT / "docs"


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    specification = importlib.util.spec_from_file_location("hooks", DOCS / "hooks.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_command_reference_has_every_command_and_option(hooks: ModuleType) -> None:
    text = hooks.on_page_markdown((DOCS / "reference/cli.md").read_text("utf-8"), page=None)
    group: Any = typer.main.get_command(cli.app)
    assert {"audit", "list", "train-inverse"} <= group.commands.keys()
    for name, command in group.commands.items():
        _, heading, section = text.partition(f"## `unsum {name}`")
        assert heading, name
        section = section.split("\n## ")[0]
        options = [option for p in command.params for option in p.opts]
        missing = [option for option in options if not re.search(f"[` ]{option}\\b", section)]
        assert missing == [], name


FAMILIES = {
    "attacks": SEPARATORS, "gradient matching": MATCHERS, "label rules": LABEL_RULES,
    "peelers": PEELERS, "inverters": INVERTERS, "servers": SERVERS, "defenses": DEFENSES,
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_the_tables_have_every_method(hooks: ModuleType, family: str) -> None:
    registry: Any = FAMILIES[family]
    rows = hooks.table(family).splitlines()[2:]
    assert [re.findall(r"`([^`]+)`", row)[0] for row in rows] == [entry.name for entry in registry]
    assert all(entry.summary in "\n".join(rows) for entry in registry)


def test_every_family_has_its_table_on_a_page() -> None:
    text = (DOCS / "attacks.md").read_text("utf-8") + (DOCS / "defenses.md").read_text("utf-8")
    assert re.findall(r"^<!-- table: (.+) -->$", text, re.MULTILINE) == list(FAMILIES)


def test_pages_that_the_nav_does_not_name_join_it_but_for_tables(hooks: ModuleType) -> None:
    class Page:
        def __init__(self, src_uri: str) -> None:
            self.src_uri = src_uri

    class Files:
        def documentation_pages(self) -> list[Page]:
            return [Page("index.md"), Page("results/tables/new.md"), Page("ci.md")]

    class Config:
        nav: ClassVar[list[Any]] = [
            {"Home": "index.md"},
            {"Results": ["results/index.md"]},
            {"Reference": []},
        ]

    hooks.on_files(Files(), Config)
    assert Config.nav == [
        {"Home": "index.md"},
        {"Results": ["results/index.md"]},
        {"Guides": ["ci.md"]},
        {"Reference": []},
    ]


def test_every_table_is_linked_from_a_page_of_the_results() -> None:
    read = "".join(path.read_text("utf-8") for path in (DOCS / "results").glob("*.md"))
    unread = [
        path.name
        for path in (DOCS / "results/tables").glob("*.md")
        if f"tables/{path.name}" not in read
    ]
    assert unread == []


def test_the_api_reference_names_the_whole_public_api() -> None:
    """By full path where a module has the name of its function: `unsum.separate` alone would
    describe the package."""
    described = re.findall(
        r"^::: ([\w.]+)$", (DOCS / "reference/api.md").read_text("utf-8"), re.MULTILINE
    )
    for path in described:
        owner, _, name = path.rpartition(".")
        if owner in ("unsum.integrations.flower", "unsum.integrations.nvflare"):
            # their frameworks are not installed here; tests/integrations imports these names where
            # they are
            continue
        assert not isinstance(getattr(importlib.import_module(owner), name), ModuleType), path
    named = {path.rpartition(".")[2] for path in described}
    assert named >= set(unsum.__all__) - {"__version__"}


def test_figures_are_small_follow_the_scheme_and_ask_for_nothing() -> None:
    figures = sorted((DOCS / "figures").glob("*.svg"))
    used = {
        name
        for path in pages.PAGES
        for name in re.findall(r"figures/([\w-]+\.svg)\)", path.read_text("utf-8"))
    }
    assert used == {figure.name for figure in figures}
    for figure in figures:
        text = figure.read_text("utf-8")
        assert len(text) < 80_000, figure.name
        assert "prefers-color-scheme:dark" in text
        assert not re.search(r'(?:href|src)="http|@import|url\(http', text), figure.name
        assert "#cc4400" not in text, "an ink was not replaced by its name"


@pytest.mark.parametrize(
    "path", pages.PAGES[1:], ids=pages.name
)  # the README's are looked at in tests/e2e/test_readme.py
def test_relative_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)#:\s]+)(?:#[\w-]+)?\)", text):
        assert (path.parent / target).exists(), target


def test_the_map_names_every_folder_and_module() -> None:
    rows = re.findall(
        r"^\| (`.+?) \|", (pages.ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.MULTILINE
    )
    named = [name for row in rows for name in re.findall(r"`([\w/.]+)`", row)]
    here = (
        path
        for path in (pages.ROOT / "src" / "unsum").iterdir()
        if not path.name.startswith(("__", "py.typed"))
    )
    assert sorted(named) == sorted(f"{path.name}/" if path.is_dir() else path.name for path in here)
