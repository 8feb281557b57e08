"""The graph of the packages in CONTRIBUTING.md: who imports whom, drawn from the code.

    uv run python scripts/package_graph.py           writes it between the two markers
    uv run python scripts/package_graph.py --check   fails where the page is out of step

A line is a package or module at the top of `unsum`, below everything that imports it. An arrow is
left out where another way leads there: `audit` imports `update` as well, by way of `score`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- packages: scripts/package_graph.py -->\n", "<!-- /packages -->"
WIDTH = 100  # [columns] of a line

Graph = Mapping[str, set[str]]


def imported() -> dict[str, set[str]]:
    """Which parts of `unsum` each part imports; code for type checkers alone does not count."""
    graph = grimp.build_graph(
        "unsum", "unsum_bench", exclude_type_checking_imports=True, cache_dir=None
    )
    found: dict[str, set[str]] = {}
    for module in graph.modules:
        part = part_of(module)
        if part:
            beside = {part_of(name) for name in graph.find_modules_directly_imported_by(module)}
            found.setdefault(part, set()).update(beside - {part, ""})
    return found


def part_of(module: str) -> str:
    """The part at the top that a module belongs to; empty for the package itself."""
    root, _, rest = module.partition(".")
    return root if root == "unsum_bench" else rest.partition(".")[0].removeprefix("__main__")


def reached(graph: Graph, start: str) -> set[str]:
    """All that `start` leads to, itself not included."""
    found: set[str] = set()
    waiting = list(graph.get(start, ()))
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += graph.get(name, ())
    return found


def joined(graph: Graph) -> dict[str, set[str]]:
    """Parts that import one another as one: their modules form no cycle, but they themselves do."""
    below = {name: reached(graph, name) for name in graph}
    home = {
        name: " + ".join(sorted({name, *(to for to in below[name] if name in below[to])}))
        for name in graph
    }
    found: dict[str, set[str]] = {name: set() for name in home.values()}
    for name, targets in graph.items():
        found[home[name]] |= {home[to] for to in targets} - {home[name]}
    return found


def reduced(graph: Graph) -> dict[str, set[str]]:
    """Without the arrows that a longer way makes superfluous; the graph has no cycle."""
    below = {name: reached(graph, name) for name in graph}
    return {
        name: {to for to in targets if not any(to in below.get(by, ()) for by in targets)}
        for name, targets in graph.items()
    }


def levels(graph: Graph) -> dict[str, int]:
    """The length of the longest way down from each part."""
    known: dict[str, int] = {}

    def level(name: str) -> int:
        if name not in known:
            known[name] = 1 + max((level(to) for to in graph.get(name, ())), default=-1)
        return known[name]

    for name in graph:
        level(name)
    return known


def drawn(graph: Graph) -> str:
    """A block of lines, from what imports most to what imports nothing."""
    arrows, height = reduced(graph), levels(graph)
    column = max(map(len, arrows)) + 1
    lines = []
    for name in sorted(arrows, key=lambda part: (-height[part], part)):
        line = name.ljust(column) + "→"
        for to in sorted(arrows[name], key=lambda part: (-height[part], part)):
            if len(line) + 1 + len(to) > WIDTH:
                lines.append(line)
                line = " " * (column + 1)
            line += f" {to}"
        lines.append(line if arrows[name] else name)
    return "\n".join(["```text", *lines, "```", ""])


def page_with(block: str, text: str) -> str:
    """The page with the block between its markers."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + block + END + rest.split(END, 1)[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    text = PAGE.read_text("utf-8")
    made = page_with(drawn(joined(imported())), text)
    if options.check and made != text:
        print("CONTRIBUTING.md is out of step: run scripts/package_graph.py", file=sys.stderr)
        return 1
    if not options.check:
        PAGE.write_text(made, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
