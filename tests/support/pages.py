"""What the tests of the documentation share: its pages, and the code and commands that stand on
them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


class Shown(NamedTuple):
    """Something that a page shows, and the page."""

    page: str
    text: str


def commands() -> list[Shown]:
    """Every `$ …` of a console block, continued lines joined."""
    found = []
    for path in PAGES:
        for block in _blocks(path, "console"):
            joined = re.sub(r"\\\n\s*", "", block)
            found += [
                Shown(name(path), line)
                for line in re.findall(r"^\$ (.+?)\s*$", joined, re.MULTILINE)
            ]
    return found


def programs() -> dict[str, list[str]]:
    """The Python blocks of every page that has some, in order."""
    return {name(path): blocks for path in PAGES if (blocks := _blocks(path, "python"))}


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _blocks(path: Path, language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\b[^\n]*\n(.*?)^```", path.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
