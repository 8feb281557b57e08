"""A thin Typer layer over the API: parse, call, print."""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from unsum.active import SERVERS
from unsum.attack.auto import CHOICES
from unsum.attack.options import AttackOptions
from unsum.audit import Audit
from unsum.audit import audit as run_audit
from unsum.audit import sweep as run_sweep
from unsum.audit.compare import Comparison
from unsum.audit.gate_files import check_gate, write_gate
from unsum.audit.leakage import DEFAULT_LEVEL
from unsum.audit.result import SampleRow, check_folder
from unsum.audit.sweep.table import show as show_sweep
from unsum.audit.texts import COLORS
from unsum.audit.wording import error, fixed, percent, plain
from unsum.commands import attack as attack_command
from unsum.commands import bench as bench_command
from unsum.commands import capture, doctor, faults, options
from unsum.commands.app import command as live_page
from unsum.commands.stages import stages
from unsum.commands.train_inverse import command as train_inverse
from unsum.defend import DEFENSES, parse_defense
from unsum.errors import UnsumError, first_line
from unsum.invert import INVERTERS
from unsum.invert.refine import Mode
from unsum.knowledge import CHANGES_MODEL
from unsum.labels import LABEL_RULES
from unsum.match import MATCHERS
from unsum.peel import PEELERS
from unsum.registry import PROBLEMS
from unsum.separate import SEPARATORS

app = typer.Typer(
    name="unsum",
    help="What does one federated-learning update give away? Audit systems that you operate or may test.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_PROGRESS = Console(stderr=True)  # results alone go to stdout, so that --json can be piped
_OUT = Console()
_CHOICES = "what --attack auto tries, in this order"


@app.command()
def audit(
    model: options.ModelOption = "default",
    weights: options.WeightsOption = None,
    data: options.DataOption = None,
    update: options.UpdateOption = None,
    before: options.BeforeOption = None,
    after: options.AfterOption = None,
    delta: options.DeltaOption = False,
    rate: options.RateOption = None,
    steps: options.StepsOption = None,
    classes: options.ClassesOption = None,
    download: options.DownloadOption = False,
    inverse: Annotated[
        list[Path] | None,
        typer.Option(
            help="An inverse from `unsum train-inverse` for this backbone, for pictures; repeat for inner layers."
        ),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(help="How many photos the client trains on. [default: 8]", show_default=False)
    ] = None,
    same_label: Annotated[int, typer.Option(help="How many of them share one label; 0 takes them as they come.")] = 0,
    defense: Annotated[
        list[str] | None,
        typer.Option(help="noise:STD, clip:NORM, sign … from `unsum list`; repeat to chain, in order."),
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            help="Try a defense at many strengths: NAME=LOW..HIGH, NAME=LOW..HIGH/STEPS, NAME=a,b,c or NAME; repeat for several."
        ),
    ] = None,
    keep_under: Annotated[
        float | None,
        typer.Option(
            help="With --sweep: the leakage no sample may reach, from 0 (no better than a typical sample) to 1 (the sample "
            f"itself). [default: {DEFAULT_LEVEL:g}]",
            show_default=False,
        ),
    ] = None,
    utility_data: Annotated[
        Path | None,
        typer.Option(help="With --sweep: an .npz with `images` and `labels` to measure accuracy on."),
    ] = None,
    no_utility: Annotated[
        bool,
        typer.Option(
            "--no-utility", help="With --sweep: leave out the accuracy, which takes a few seconds a strength."
        ),
    ] = False,
    server: Annotated[
        str | None,
        typer.Option(help="A server that changes the model first, from `unsum list`: imprint, imprint:bins=64, traps."),
    ] = None,
    attack: Annotated[str, typer.Option(help="auto, or an attack from `unsum list`.")] = "auto",
    labels: Annotated[
        str | None, typer.Option(help="A label rule from `unsum list` that finds the labels first.")
    ] = None,
    refine: Annotated[
        str | None, typer.Option(help="Refine the pictures: features (raises PSNR), or the published f, g, gf.")
    ] = None,
    batch_size_known: Annotated[
        bool,
        typer.Option("--batch-size-known", help="Grant the attacker the batch size (of a captured update: --batch)."),
    ] = False,
    eval_mode: Annotated[
        bool, typer.Option("--eval-mode", help="The client's BatchNorm uses running statistics.")
    ] = False,
    compare: Annotated[
        bool | None,
        typer.Option(
            "--compare/--no-compare",
            help="Play the round again under standard defenses, for the report. [default: where that takes seconds]",
            show_default=False,
        ),
    ] = None,
    fail_above: Annotated[
        float | None,
        typer.Option(help="Exit with 1 when any sample's leakage is above this level, from 0 to below 1."),
    ] = None,
    junit: Annotated[
        Path | None,
        typer.Option(
            help=f"Write JUnit XML: one test case a sample, held against --fail-above (or {DEFAULT_LEVEL:g})."
        ),
    ] = None,
    sarif: Annotated[
        Path | None, typer.Option(help="Write SARIF 2.1.0 for code scanning: one result a finding, by the same level.")
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder for report.html, report.md and result.json (sweep.html and sweep.json).")
    ] = Path("unsum-report"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing report folder.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON instead of a table.")] = False,
    device: options.DeviceOption = "cpu",
    seed: options.SeedOption = 0,
) -> None:
    """Simulate one federated round, attack its update, and report what was recovered; or attack an update that was captured.

    Exit codes: 0 when the audit ran (and no sample leaks more than --fail-above), 1 when a sample leaks more than --fail-above,
    2 when the input was wrong or the gate could not be decided.
    """
    check_folder(out, force=force)
    check_gate(fail_above, junit, sarif, sweeping=bool(sweep))
    captured = options.received(update, before, after, delta, rate, steps)
    chain = [parse_defense(text) for text in defense or []]
    mode = cast("Mode | None", refine)  # checked there, with a sentence
    chosen = options.usable_device(device)
    if sweep and server is not None:
        raise UnsumError("A sweep is of honest servers; leave out --server, or leave out --sweep.")
    if sweep and captured is not None:
        raise UnsumError("A sweep simulates every round; leave out the captured update, or leave out --sweep.")
    if sweep:
        with stages(_PROGRESS) as shown:
            swept = run_sweep(
                model,
                data,
                weights=weights,
                classes=classes,
                download=download,
                batch=batch,
                same_label=same_label,
                defenses=chain,
                attack=attack,
                label_rule=labels,
                refine=mode,
                batch_size_known=batch_size_known,
                inverse=inverse,
                train=not eval_mode,
                device=chosen,
                seed=seed,
                command=_command(),
                progress=shown,
                over=sweep,
                keep_under=DEFAULT_LEVEL if keep_under is None else keep_under,
                utility=not no_utility,
                utility_data=utility_data,
                unfinished=out,
            )
            shown.say("Writing the page")
            page = swept.write(out, force=force)
        if as_json:
            _print(swept.to_dict(), page)
        else:
            show_sweep(swept, page, _OUT)
        return
    if keep_under is not None or utility_data is not None or no_utility:
        raise UnsumError(
            "--keep-under, --utility-data and --no-utility belong to a sweep; add, say, --sweep noise=1e-5..1e-1."
        )
    with stages(_PROGRESS, AttackOptions(attack).steps) as shown:
        result = run_audit(
            model,
            data,
            weights=weights,
            classes=classes,
            download=download,
            batch=batch,
            same_label=same_label,
            defenses=chain,
            attack=attack,
            label_rule=labels,
            refine=mode,
            batch_size_known=batch_size_known,
            inverse=inverse,
            train=not eval_mode,
            device=chosen,
            seed=seed,
            command=_command(),
            progress=shown,
            update=captured,
            server=server,
            compare=compare,
        )
        shown.say("Writing the report")
        page = _written(result, out, force)
    held = result.gate(DEFAULT_LEVEL if fail_above is None else fail_above)
    write_gate(result, held, page, junit=junit, sarif=sarif)
    gated = fail_above is not None
    if as_json:
        _print(result.to_dict() | ({"gate": held.to_dict()} if gated else {}), page)
    else:
        _show(result, page)
    if gated:
        console = _PROGRESS if as_json else _OUT
        console.print(
            held.reason, style="red" if held.exit_code else "green", markup=False, highlight=False, soft_wrap=True
        )
        raise typer.Exit(held.exit_code)


app.command("capture")(capture.command)
app.command("attack")(attack_command.command)
app.command("doctor")(doctor.command)
app.command("train-inverse")(train_inverse)
app.command("app")(live_page)
app.add_typer(bench_command.app, name="bench")


def _written(result: Audit, out: Path, force: bool) -> Path:
    """The report where it belongs; where that fails, after all that work, in a folder for temporary files."""
    try:
        return result.write(out, force=force)
    except OSError as reason:
        try:
            page = result.write(tempfile.mkdtemp(prefix="unsum-report-"), force=True)
        except OSError:
            raise reason from None
        raise UnsumError(
            f"{str(out)!r} could not be written ({first_line(reason)}); the report is in {str(page.parent)!r}."
        ) from reason


def _print(content: dict[str, Any], page: Path) -> None:
    typer.echo(json.dumps(content | {"report": str(page)}, indent=2))


@app.command("list")
def list_methods(
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON instead of tables.")] = False,
) -> None:
    """What auto tries in which order; every attack, label rule, peeler, inverter, server and defense, with what it needs."""
    families: dict[str, Any] = {
        "attacks (--attack)": SEPARATORS,
        "gradient matching (--attack)": MATCHERS,
        "label rules (--labels)": LABEL_RULES,
        "peelers": PEELERS,
        "inverters": INVERTERS,
        "servers that change the model (--server)": SERVERS,
        "defenses (--defense)": DEFENSES,
    }
    fields: dict[str, tuple[str, ...]] = {_CHOICES: ("name", "when", "says")}
    rows = {_CHOICES: [(choice.method, choice.when, choice.says) for choice in CHOICES]}
    for title, family in families.items():
        fields[title] = ("name", "summary", "needs")
        rows[title] = [(entry.name, entry.summary, entry.needs) for entry in family]
    for sentence in PROBLEMS:
        _PROGRESS.print(f"unsum: {sentence}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    if as_json:
        content = {t: [dict(zip(fields[t], row, strict=True)) for row in found] for t, found in rows.items()}
        typer.echo(json.dumps(content, indent=2))
        return
    headings = {
        "when": "when it is tried",
        "says": "what it then says",
        "summary": "what it does",
        "needs": "what it needs",
    }
    for title, entries in rows.items():
        table = Table(*(headings.get(field, field) for field in fields[title]), title=title, title_justify="left")
        for row in entries:
            table.add_row(*row)
        _OUT.print(table)


def _show(result: Audit, page: Path) -> None:
    verdict = result.verdict
    _OUT.print(_setting_table(result))
    _OUT.print(_sample_table(result))
    if result.comparison.points:
        _OUT.print(_comparison_table(result.comparison))
    _OUT.print(verdict.headline, style=COLORS[verdict.level])
    for sentence in filter(None, [*verdict.details, *result.leak.notes, result.trained_on]):
        _OUT.print(f"• {plain(sentence)}", markup=False, highlight=False)
    _OUT.print(f"Report: {page}", markup=False, highlight=False)


def _setting_table(result: Audit) -> Table:
    leak, setting = result.leak, result.setting
    batch = f"{setting.batch_size} photos" if result.truth else "of unknown size"
    facts: dict[str, str | Text] = {
        "model": setting.model,
        "private batch": f"{batch}, {setting.classes} classes, {setting.mode} mode",
        "defense": setting.defenses,
        "granted to the attacker": _granted(result),
        "attack": setting.attack,
        "samples found": f"{leak.batch_size}" + (f" (there are {setting.batch_size})" if result.truth else ""),
        "certificate": "exact" if leak.exact else "not exact",
        "predicted feature error": error(leak.predicted_error),
        "gradient scale found": f"{leak.scale:.6g}",
        "time": f"attack {leak.seconds:.2f} s, everything {result.seconds:.1f} s on {setting.device}",
    }
    table = Table(show_header=False, title="One federated round, seen by the server", title_justify="left")
    for name, value in facts.items():
        table.add_row(name, value if isinstance(value, Text) else Text(plain(value)))
    return table


def _granted(result: Audit) -> Text:
    """What no honest server may do stands out in red."""
    lines = [Text(plain(line), "bold red" if line == CHANGES_MODEL else "") for line in result.granted]
    return Text("\n").join(lines)


def _sample_table(result: Audit) -> Table:
    """The samples; titles and labels as `Text`, because names from outside must not be read as rich's markup."""
    compared = result.truth is not None
    table = Table(title="Recovered, beside the truth" if compared else "Recovered", title_justify="left")
    for heading in ("photo", "label", "recovered label") if compared else ("sample", "recovered label"):
        table.add_column(heading)
    for heading in ("leakage", "feature error", "PSNR (dB)", "SSIM") if compared else ("leakage, certified",):
        table.add_column(heading, justify="right")
    for row in result.rows:
        table.add_row(*_cells(row))
    return table


def _comparison_table(comparison: Comparison) -> Table:
    table = Table("defense", title="The same round under other defenses", title_justify="left")
    for heading in ("largest leakage", "mean leakage", "labels"):
        table.add_column(heading, justify="right")
    for i, point in enumerate(comparison.points):
        labels = "–" if point.refused else f"{point.labels_right}/{len(point.samples)}"
        table.add_row(Text(comparison.label(i)), percent(point.worst), percent(point.mean), labels)
    return table


def _cells(row: SampleRow) -> list[str | Text]:
    found = row.found_label or "not found"
    if row.score is None:
        return [Text(row.title), Text(found), percent(row.leakage)]
    return [
        Text(row.title),
        Text(row.label or ""),
        Text(found, style="green" if row.label_correct else "red"),
        percent(row.leakage),
        error(row.score.feature_error),
        fixed(row.score.psnr, 1),
        fixed(row.score.ssim, 2),
    ]


def _command() -> str:
    return shlex.join(["unsum", *sys.argv[1:]])


def main() -> None:
    """Entry point: errors meant for people become one sentence and exit code 2; Ctrl-C becomes 130."""
    interrupt = faults.Interrupt()
    try:
        with interrupt:
            app()
    except SystemExit as end:
        if not interrupt.came or end.code in (None, 0):  # Ctrl-C is how the live page ends well
            raise
        _say(f"Stopped. {faults.go_on()}")
        raise SystemExit(faults.INTERRUPTED) from None
    except Exception as error:
        sentence = faults.sentence_of(error)
        if sentence is None:
            raise
        _say(sentence)
        raise SystemExit(faults.FAILED) from None


def _say(sentence: str) -> None:
    _PROGRESS.print(f"unsum: {sentence}", style="red", markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
