"""What the site takes from the code itself when it is built: tables of methods and the command
line.

A page asks for a table with a comment on a line of its own, `<!-- table: defenses -->`, and for the
commands with `<!-- commands -->`. Pages that the nav does not name join it under Guides, all but
the tables behind the results.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_FAMILIES = (
    "attacks",
    "gradient matching",
    "label rules",
    "peelers",
    "inverters",
    "servers",
    "defenses",
)
_ELSEWHERE = re.compile(
    r"""<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=["']?(?:https?:)?//[^>]*>"""
)
_TABLES = "results/tables/"
_MARK = re.compile(r"^<!-- (?:(commands)|table: ([\w ]+)) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, page: Any, **_others: Any) -> str:
    """Put what a page asks for in the place of its comments."""
    try:
        return _MARK.sub(lambda found: commands() if found[1] else table(found[2]), markdown)
    except KeyError as error:
        raise _refused(
            f"{page.file.src_uri} asks for a table of {error}; there are {', '.join(_FAMILIES)}."
        ) from None


def on_files(files: Any, config: Any) -> Any:
    """Pages that the nav does not name join it under Guides; tables behind the results are found
    through their pages."""
    named = set(_paths(config.nav))
    for file in files.documentation_pages():
        if file.src_uri not in named and not file.src_uri.startswith(_TABLES):
            _section(config.nav, "Guides").append(file.src_uri)
    return files


def on_post_build(config: Any) -> None:
    """Refuse a site that would ask anybody else for anything: its readers are nobody's business."""
    for path in Path(config.site_dir).rglob("*.html"):
        for asked in _ELSEWHERE.findall(path.read_text("utf-8")):
            raise _refused(f"{path.name} loads something from elsewhere: {asked}")


def table(family: str) -> str:
    """Every method of one family with what it does and needs, as `unsum list` shows it."""
    import unsum.spans  # noqa: F401 (registers its separator)
    from unsum.active import SERVERS
    from unsum.defend import DEFENSES
    from unsum.invert import INVERTERS
    from unsum.labels import LABEL_RULES
    from unsum.match import MATCHERS
    from unsum.peel import PEELERS
    from unsum.separate import SEPARATORS

    registries: tuple[Any, ...] = (
        SEPARATORS,
        MATCHERS,
        LABEL_RULES,
        PEELERS,
        INVERTERS,
        SERVERS,
        DEFENSES,
    )
    entries = list(dict(zip(_FAMILIES, registries, strict=True))[family])
    with_needs = any(entry.needs for entry in entries)
    lines = ["| name | what it does | what it needs |", "|---|---|---|"]
    for entry in entries:
        lines.append(f"| `{entry.name}` | {_cell(entry.summary)} | {_cell(entry.needs) or '–'} |")
    return "\n".join(lines if with_needs else [line.rpartition(" | ")[0] + " |" for line in lines])


def commands() -> str:
    """The command line, from the Typer app: a heading for each command, its arguments and options
    below."""
    import typer
    from typer.cli import get_docs_for_click

    from unsum.commands.main import app

    command = typer.main.get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="unsum", title="unsum")
    text = text.split("\n", 1)[1]  # the page has a title of its own
    return re.sub(
        r"\*\*Commands\*\*:.*?(?=^## )", "", text, count=1, flags=re.DOTALL | re.MULTILINE
    )  # cut short by Click


def _refused(sentence: str) -> Exception:
    from mkdocs.exceptions import PluginError  # here, so that tests of this file need no MkDocs

    return PluginError(sentence)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _paths(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        for value in nav.values():
            yield from _paths(value)
    else:
        for item in nav or []:
            yield from _paths(item)


def _section(nav: list[Any], title: str) -> list[Any]:
    """The pages of a section; a new one stands before the reference."""
    for item in nav:
        if isinstance(item, dict) and title in item:
            pages: list[Any] = item[title]
            return pages
    place = next(
        (i for i, item in enumerate(nav) if isinstance(item, dict) and "Reference" in item),
        len(nav),
    )
    nav.insert(place, {title: []})
    return _section(nav, title)
