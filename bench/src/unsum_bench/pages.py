"""Pages of `docs/results/tables/` out of a store: every table with the paper's figures, what it ran
on, and where it differs.

Pages are made, never edited: the same store makes the same pages. Pages on the same questions are
linked.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

from unsum.errors import UnsumError
from unsum_bench.declare import Size
from unsum_bench.experiments import EXPERIMENTS
from unsum_bench.figures import draw
from unsum_bench.run import duration
from unsum_bench.store import Store
from unsum_bench.table import Table, axis_text, markdown, matrix, read_table

_COMMANDS = 8  # of a store that several runs made, the usual ones
TITLES = {
    "rgla": "RGLA's tables and figures, by `unsum bench`",
    "soft-labels": "The soft-label paper's tables, by `unsum bench`",
    "field": "Every attack against every defense, by `unsum bench`",
}


def write_pages(store: Store, size: Size, out: Path) -> list[Path]:
    """One page for each paper of which the store has anything, `bench-NAME.md`
    (`bench-NAME-paper.md`), its figures beside it."""
    tables = [read_table(experiment, size, store) for experiment in EXPERIMENTS.values()]
    if not any(table.begun for table in tables):
        raise UnsumError(
            f"The store has nothing of size {size!r}; run `unsum bench --size {size}`, or give "
            "another --size."
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
        title_end, name_end = (
            (", in the papers' own size", "-paper") if size == "paper" else ("", "")
        )
        pages = []
        for paper, title in TITLES.items():
            own, path = (
                [t for t in tables if t.experiment.paper == paper],
                out / f"bench-{paper}{name_end}.md",
            )
            begun, waiting = (
                [table for table in own if table.begun],
                [table for table in own if not table.begun],
            )
            if not begun:
                continue
            parts = [
                f"# {title}{title_end}",
                _introduction(begun),
                *(_section(table, path) for table in begun),
            ]
            if waiting:
                listed = ", ".join(
                    f"`{table.experiment.name}` ({table.experiment.title})" for table in waiting
                )
                parts.append(f"## Not run\n\nDeclared, and not in this store: {listed}.")
            path.write_text("\n\n".join(parts) + "\n", "utf-8")
            pages.append(path)
        return pages
    except OSError as error:
        raise UnsumError(
            f"The pages cannot be written to {str(out)!r}: {error.strerror or error}."
        ) from error


def _introduction(tables: list[Table]) -> str:
    results = [result for table in tables for result in table.results]
    origins = [result.origin for result in results]
    commands = Counter(of_any_shard(origin["command"]) for origin in origins).most_common(_COMMANDS)
    unique = {result.key: result.outcome for result in results}.values()
    total = duration(sum(outcome.cpu_seconds for outcome in unique))
    peak = max(outcome.peak_mb for outcome in unique)

    def every(name: str) -> str:
        return "; ".join(sorted({origin[name] for origin in origins}))

    data = "; ".join(sorted({f"{o['data']} (sha256 {o['data_sha256']}…)" for o in origins}))
    return (
        "Made from a store of results by `unsum bench pages`; [how to run, resume and extend "
        f"it](../../bench.md). Size **{tables[0].size}**.\n\n"
        + "\n".join(f"    {command}" for command, _ in commands)
        + "\n\n"
        f"- **Hardware:** {every('hardware')}; torch {every('torch')}. {len(unique)} cells took "
        f"{total} of processor time; the "
        f"largest needed {peak:,.0f} MB.\n"
        f"- **Data:** {data}.\n"
        f"- **Code:** unsum {every('unsum')}, version {every('code')} of what measures.\n"
        "- PSNR and the like are means over pictures; *leakage* is 1 for the sample itself and 0 "
        "for no more than a typical "
        f'sample. "needs" is a method\'s own refusal.' + _missing(tables)
    )


def _missing(tables: list[Table]) -> str:
    """What a run that was stopped early left out, of the tables on this page."""
    rows = [row for table in tables for row in table.rows]
    empty = sum(not row.results for row in rows)
    short = sum(0 < row.batches < row.asked for row in rows)
    missing = [f"{empty} of {len(rows)} rows were not run"] if empty else []
    fewer = (
        [f'{short} of {len(rows)} rows have fewer batches than declared ("3 of 100")']
        if short
        else []
    )
    if not missing and not fewer:
        return ""
    return (
        f"\n- The run was stopped before its end: {', and '.join([*missing, *fewer])}. The same "
        "commands go on."
    )


def of_any_shard(command: str) -> str:
    """The command that all shards of a run share, without its bound: I for the shard's number, also
    in its store's name."""
    command = re.sub(r" --minutes [^ ]+", "", command)
    found = re.search(r"--shard (\d+)/", command)
    if found is None:
        return command
    command = re.sub(rf"(--store [^ ]*?)\b{found[1]}\b", r"\1I", command)
    return command.replace(found[0], "--shard I/")


def _section(table: Table, page: Path) -> str:
    experiment = table.experiment
    parts = [f"## {experiment.title}", " ".join(experiment.deviations.get(table.size, ()))]
    if experiment.see:
        names = (f"[{Path(name).stem}]({name})" for name in experiment.see)
        parts.append(f"On the same question: {', '.join(names)}.")
    if experiment.figure is not None:
        form = "jpg" if experiment.figure.kind == "pictures" else "png"
        picture = page.with_name(
            f"bench-{experiment.name}{'-paper' if table.size == 'paper' else ''}.{form}"
        )
        if draw(table, picture):
            parts.append(f"![{experiment.title}]({picture.name})")
    if experiment.across:
        parts.append(
            "Entries are leakages; of rules that seek labels alone, the share of labels found."
        )
        parts.append(matrix(table))
    else:
        run = replace(table, rows=tuple(row for row in table.rows if row.results))
        parts.append(markdown(run))
        absent = [
            ", ".join([*(axis_text(r.cell, a) for a in table.axes)])
            for r in table.rows
            if not r.results
        ]
        parts.append(f"Declared, and not in this store: {'; '.join(absent)}." if absent else "")
    return "\n\n".join(part for part in parts if part)
