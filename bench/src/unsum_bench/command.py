"""`unsum bench`: the papers' tables and the whole field; run, show, draw, and make pages of
them."""

from __future__ import annotations

import json
import math
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.console import Console
from rich.table import Table as Drawn
from rich.text import Text
from typer import Option
from typer.core import TyperGroup

from unsum.commands import options
from unsum.commands.faults import FAILED
from unsum.commands.help import SUMMARIES
from unsum.commands.listing import say_problems
from unsum.commands.stages import PROGRESS, loading, say
from unsum.errors import UnsumError, check_name, unknown_name

if TYPE_CHECKING:
    from unsum_bench.declare import Size
    from unsum_bench.table import Form

_WIDE = 200  # columns of a table that goes to a file or another program


class RunByDefault(TyperGroup):
    """`unsum bench rgla-8 --size small` is `unsum bench run rgla-8 --size small`: the usual word
    may be left out."""

    # Any: of Click, or of Typer's own copy of it
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ("--help",)):
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=RunByDefault,
    help=SUMMARIES["bench"],
    no_args_is_help=False,
    pretty_exceptions_enable=False,
)

TablesArgument = Annotated[
    list[str] | None,
    typer.Argument(help="Tables from `unsum bench list`; all by default.", show_default=False),
]
SizeOption = Annotated[
    str, Option(help="smoke (a minute of CPU), small (an hour of CPU) or paper (a GPU).")
]
StoreOption = Annotated[Path, Option(help="The file of results; a run goes on from what is in it.")]
_STORE = Path("unsum-bench.sqlite")
_SHARD = re.compile(r"\d+/\d+")


@app.command("run")
def run_command(
    tables: TablesArgument = None,
    size: SizeOption = "smoke",
    store: StoreOption = _STORE,
    data: Annotated[
        str | None, Option(help="Photos: a folder, tar or npz.", show_default="the embedded ones")
    ] = None,
    cifar: Annotated[
        str | None,
        Option(
            help="Photos of CIFAR-100, for the tables that RGLA has on them: a folder, tar or npz."
        ),
    ] = None,
    weights: Annotated[
        str | None, Option(help="Weights of the ResNet-50 (version 1) of size paper.")
    ] = None,
    inverse: Annotated[
        str | None,
        Option(help="An inverse from `unsum train-inverse` for that network, for pictures."),
    ] = None,
    option: Annotated[
        list[str] | None,
        Option(
            help=(
                "An option of an attack, ATTACK:KEY=VALUE, as in gias:generator=net.py:build; "
                "repeat."
            )
        ),
    ] = None,
    attack: Annotated[
        list[str] | None, Option(help="Only the cells of this attack, exact say; repeat for more.")
    ] = None,
    without: Annotated[
        list[str] | None, Option(help="All but the cells of this attack, ig say; repeat for more.")
    ] = None,
    shard: Annotated[
        str | None,
        Option(
            help=(
                "One of N processes with a store of its own each, I/N; `unsum bench merge` joins "
                "them."
            )
        ),
    ] = None,
    minutes: Annotated[
        float | None, Option(help="Begin no cell after this time; the same command goes on.")
    ] = None,
    ray: Annotated[
        str | None,
        Option(
            help=(
                "Measure on Ray: auto (this machine's cluster, or one made for the run), local "
                "(the latter) or an address."
            )
        ),
    ] = None,
    gpus_per_cell: Annotated[
        float, Option(help="With --ray and --device cuda: GPUs of one cell, 0.5 say.")
    ] = 1.0,
    threads: Annotated[int, Option(help="Processor threads of one cell.")] = 1,
    retry_failed: Annotated[
        bool, Option("--retry-failed", help="Measure cells again that failed, or lacked something.")
    ] = False,
    any_code: Annotated[
        bool,
        Option(
            "--any-code",
            help="Leave cells alone that other code or data have measured; tables show those.",
        ),
    ] = False,
    as_json: Annotated[
        bool, Option("--json", help="Print the summary as JSON instead of tables.")
    ] = False,
    device: options.DeviceOption = "cpu",
) -> None:
    """Measure every cell of the tables that the store lacks, and print the tables.

    Stop it in any way and give the same command again: it goes on where it was. Exit code 2 if a
    cell failed.
    """
    with loading():
        from unsum_bench.material import Material, fingerprint, parse_option
        from unsum_bench.plan import cells_of_all, chosen, of_attacks, parse_shard, share
        from unsum_bench.run import cluster, one_by_one, run
        from unsum_bench.store import Store
        from unsum_bench.table import read_table
        from unsum_bench.table import show as show_table
    experiments = chosen(tables or [])
    wanted = _size(size)
    if threads < 1:
        raise UnsumError(f"A cell needs at least one thread, not {threads}.")
    if minutes is not None and not 0 < minutes < math.inf:
        raise UnsumError(f"--minutes takes a number above 0, not {minutes:g}.")
    part = parse_shard(shard) if shard is not None else (1, 1)
    material = Material(
        *(data, weights, inverse),
        tuple(parse_option(text) for text in option or []),
        _device(device) if ray else options.usable_device(device),
        threads,
        cifar,
    )
    for path in filter(None, (data, cifar, weights, inverse)):
        fingerprint(path)  # a file that is not there is refused before anything runs
    cells = share(of_attacks(cells_of_all(experiments, wanted), attack or [], without or []), part)
    say_problems()
    with Store(store) as results:
        way = nullcontext(one_by_one) if ray is None else cluster(ray, material, gpus=gpus_per_cell)
        with way as measured, _stopped_kindly(store):
            summary = run(
                cells,
                material,
                results,
                way=measured,
                retry_failed=retry_failed,
                minutes=minutes,
                any_code=any_code,
                console=PROGRESS,
                command=shlex.join(["unsum", *map(_without_folders, sys.argv[1:])]),
            )
        if as_json:
            typer.echo(json.dumps({**vars(summary), "store": str(store)}, indent=2))
        else:
            for experiment in experiments:
                show_table(read_table(experiment, wanted, results), _out())
            _out().print(f"{summary} Store: {store}", markup=False, highlight=False, soft_wrap=True)
    if summary.failed or summary.failed_before:
        raise typer.Exit(FAILED)


@app.command("merge")
def merge_command(
    stores: Annotated[
        list[Path],
        typer.Argument(help="Stores of results, those of shards say; they stay as they are."),
    ],
    store: StoreOption = _STORE,
) -> None:
    """Join several stores into one, which keeps what it has: of the same cell the newest result, a
    measured one before others."""
    with loading():
        from unsum_bench.store import Store
    rows = []
    for path in stores:  # all are read before anything is written
        with Store(path, read_only=True) as results:
            rows += results.rows()
    with Store(store) as joined:
        new = joined.take(rows)
        total = len(joined.statuses())
    typer.echo(f"{new} of {len(rows)} results were new or newer; {store} has {total}.")


@app.command("show")
def show_command(
    tables: TablesArgument = None,
    size: SizeOption = "smoke",
    store: StoreOption = _STORE,
    markdown: Annotated[bool, Option("--markdown", help="As Markdown.")] = False,
    latex: Annotated[bool, Option("--latex", help="As LaTeX, with booktabs.")] = False,
    csv: Annotated[bool, Option("--csv", help="As comma-separated values.")] = False,
    attack: Annotated[
        list[str] | None, Option(help="Only the rows of this attack, exact say; repeat for more.")
    ] = None,
    errors: Annotated[
        bool, Option("--errors", help="The traceback of every cell that failed, instead.")
    ] = False,
) -> None:
    """Print tables from a store, as far as they are measured."""
    with loading():
        from unsum_bench.plan import cells_of_all, chosen, of_attacks
        from unsum_bench.store import Store
        from unsum_bench.table import read_table, written
        from unsum_bench.table import show as show_table
    forms = [name for name, on in (("markdown", markdown), ("latex", latex), ("csv", csv)) if on]
    if len(forms) > 1:
        raise UnsumError("Choose one of --markdown, --latex and --csv.")
    experiments, wanted = chosen(tables or []), _size(size)
    kept = {
        cell.attack.name for cell in of_attacks(cells_of_all(experiments, wanted), attack or [], [])
    }
    with Store(store, read_only=True) as results:
        for experiment in experiments:
            table = read_table(experiment, wanted, results).of_attacks(kept)
            if errors:
                for result in table.results:
                    if result.outcome.status == "failed":
                        typer.echo(
                            f"{experiment.name}: "
                            f"{result.outcome.sentence}\n{result.outcome.traceback}"
                        )
            elif not table.rows or (not tables and not table.begun):
                continue
            elif forms:
                typer.echo(written(table, cast("Form", forms[0])) + "\n")
            else:
                show_table(table, _out())


@app.command("list")
def list_command(
    size: SizeOption = "smoke",
    as_json: Annotated[bool, Option("--json", help="Print as JSON instead of a table.")] = False,
) -> None:
    """Every table and figure, and how many cells it has."""
    with loading():
        from unsum_bench.experiments import EXPERIMENTS
        from unsum_bench.plan import cells_of
    wanted = _size(size)
    rows = [
        (e.name, e.title, len(cells_of(e, wanted)), e.figure is not None)
        for e in EXPERIMENTS.values()
    ]
    say_problems()
    if as_json:
        fields = ("name", "title", "cells", "figure")
        typer.echo(json.dumps([dict(zip(fields, row, strict=True)) for row in rows], indent=2))
        return
    drawn = Drawn("name", "what", f"cells, size {wanted}", "figure")
    for name, title, count, figure in rows:
        drawn.add_row(name, Text(title), str(count), "yes" if figure else "")
    _out().print(drawn)


@app.command("figures")
def figures_command(
    tables: TablesArgument = None,
    size: SizeOption = "smoke",
    store: StoreOption = _STORE,
    out: Annotated[Path, Option(help="Folder for the figures.")] = Path("unsum-figures"),
    form: Annotated[str, Option("--format", help="png, svg or pdf.")] = "png",
) -> None:
    """Draw what was measured: leakage against batch, duplicates, noise and pruning, time against
    batch, pictures."""
    check_name("format", form, ["png", "svg", "pdf"])
    with loading():
        from unsum_bench.figures import draw
        from unsum_bench.plan import chosen
        from unsum_bench.store import Store
        from unsum_bench.table import read_table
    named = chosen(tables or [])
    with Store(store, read_only=True) as results:
        drawn = []
        for experiment in named if tables else [e for e in named if e.figure is not None]:
            path = out / f"{experiment.name}.{form}"
            try:
                drawn += [path] * draw(read_table(experiment, _size(size), results), path)
            except OSError as error:
                raise UnsumError(
                    f"{str(path)!r} cannot be written: {error.strerror or error}."
                ) from error
    if not drawn:
        raise UnsumError(
            f"The store has nothing to draw at size {size!r}; run `unsum bench --size {size}` "
            "first."
        )
    for path in drawn:
        typer.echo(str(path))


@app.command("pages")
def pages_command(
    size: SizeOption = "small",
    store: StoreOption = _STORE,
    out: Annotated[
        Path, Option(help="Folder for the pages, docs/results/tables of this repository say.")
    ] = Path("unsum-pages"),
) -> None:
    """Make Markdown pages of a store: tables beside the papers' figures, hardware, data, command,
    deviations, drawings."""
    with loading():
        from unsum_bench.pages import write_pages
        from unsum_bench.store import Store
    with Store(store, read_only=True) as results:
        for path in write_pages(results, _size(size), out):
            typer.echo(str(path))


@contextmanager
def _stopped_kindly(store: Path) -> Iterator[None]:
    """Ctrl-C, or a scheduler's SIGTERM at the end of a job's time, is an ordinary way to stop: what
    was measured is there."""
    code = 128 + signal.SIGINT

    def terminated(number: int, _frame: object) -> None:
        nonlocal code
        code = 128 + number
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, terminated)
    try:
        yield
    except KeyboardInterrupt:
        say(f"stopped; {store} keeps what was measured, and the same command goes on.")
        raise typer.Exit(code) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _out() -> Console:
    return Console(width=None if Console().is_terminal else _WIDE)


def _without_folders(word: str) -> str:
    """Files by their names alone: pages that quote the command say nothing of the machine's
    folders. A shard's I/N has a slash, too, and an option's file stands behind its name."""
    return word if _SHARD.fullmatch(word) else re.sub(r"(^|[=:])[^=:]*/", r"\1", word.rstrip("/"))


def _device(name: str) -> str:
    """On Ray the workers have the device, not this process: only its kind can be checked."""
    kinds = ["cpu", "cuda"]
    check_name("device for cells on Ray", name, kinds)
    return name


def _size(name: str) -> Size:
    from unsum_bench.declare import SIZES

    if name not in SIZES:
        raise unknown_name("size", name, SIZES)
    return name
