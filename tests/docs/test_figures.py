"""Figures on the pages are those that the commands beside them made."""

from __future__ import annotations

import re
import shlex

from support import pages

GUIDE, EXAMPLE = (
    pages.ROOT / "docs" / "guides" / name for name in ("sweep.md", "sweep-example.html")
)


def test_the_table_of_the_sweep_guide_is_that_of_its_example_page() -> None:
    text, page = (
        GUIDE.read_text("utf-8"),
        EXAMPLE.read_text("utf-8").replace("\N{NO-BREAK SPACE}", " "),
    )
    command = re.search(r"^    (unsum audit --sweep .*)$", text, re.MULTILINE)
    assert command is not None
    made = re.search(r"<pre><code[^>]*>(.*?)</code></pre>", page, re.DOTALL)
    assert made is not None
    # the page was made by the command beside it
    assert shlex.split(made[1]) == shlex.split(command[1])

    rows = re.findall(
        r"^\| (none|noise|prune|quantize|sign)\b(.*?) \| (.*?) ?\| (.*?) \|$", text, re.MULTILINE
    )
    assert len(rows) == 10
    for name, remark, strength, figures in rows:
        leakage, ceiling, over, labels, accuracy = figures.split(" | ")
        shown = _row(page, name, strength.removesuffix(" bits").removesuffix(" bit"))
        limit = shown[1].removesuffix(" proven")
        assert (shown[0], limit, *shown[3:5], shown[7]) == (
            leakage,
            ceiling,
            over,
            labels,
            accuracy,
        ), f"{name} {strength}"
        marks = ("unproven" in shown[-1], " proven" in shown[-1], "ruins" in shown[-1])
        assert ("**unproven**" in remark, "**proven**" in remark, "ruins" in remark) == marks


def _row(page: str, name: str, strength: str) -> list[str]:
    """The cells of a strength in the table of its defense, and the heading of its row last."""
    section = (
        page
        if name == "none"
        else re.split(rf'<h2 id="defense-\d">{name}:', page)[1].split("<h2 ")[0]
    )
    heading = "no defense" if name == "none" else strength
    for row in re.findall(r"<tr[^>]*>(.*?)</tr>", section, re.DOTALL):
        title = re.search(r"<th scope=\"row\"[^>]*>(.*?)</th>", row, re.DOTALL)
        words = re.sub(r"<[^>]*>", " ", title[1]).split() if title else []
        if words[: len(heading.split())] == heading.split():
            # which is drawn
            cells = re.findall(r'<td(?! class="ends")[^>]*>(.*?)</td>', row, re.DOTALL)
            return [" ".join(re.sub(r"<[^>]*>", " ", cell).split()) for cell in cells] + [
                " ".join(words)
            ]
    raise AssertionError(f"The example page has no row {name} {strength}.")
