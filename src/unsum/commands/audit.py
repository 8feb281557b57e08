"""`unsum audit`: one federated round, played or captured, and what its update gives away; or a
sweep of many."""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

import unsum
from unsum.commands import options
from unsum.commands.audit_many import audit_many, audit_run
from unsum.commands.stages import OUT, PROGRESS, loading, stages
from unsum.errors import UnsumError, first_line
from unsum.files.report_folder import check_folder
from unsum.running.deadline import interruptible
from unsum.showing.level import DEFAULT_LEVEL

if TYPE_CHECKING:
    from unsum.audit import Audit


@options.spread
def command(
    named: options.NamedModel,
    captured: options.Captured,
    given: options.ClientData,
    chosen: options.ChosenAttack,
    updates: Annotated[
        Path | None,
        Option(
            help="A folder of updates (in round-3/ and so on, if you like): a page, a CSV and "
            "findings.sqlite under --out; the same command goes on where one was stopped. --data "
            "of the kind and --defense give a ceiling."
        ),
    ] = None,
    processes: Annotated[
        int | None, Option(help="With --updates: how many.", show_default="the cores")
    ] = None,
    ray: Annotated[
        str | None, Option(help="With --updates: a cluster: auto, local or HOST:PORT.")
    ] = None,
    flower_run: Annotated[
        Path | None,
        Option(
            help="A run that StoreUpdates wrote: a page over its rounds; --batch is then what one "
            "local step sees. --data of the kind and --defense give a ceiling."
        ),
    ] = None,
    batch: Annotated[
        int | None, Option(help="How many samples the client has.", show_default="8")
    ] = None,
    defense: options.DefenseOption = None,
    sweep: Annotated[
        list[str] | None,
        Option(
            metavar="<str>",
            help=(
                "A defense at many strengths: NAME=LOW..HIGH, NAME=LOW..HIGH/STEPS, NAME=a,b,c or "
                "NAME; repeat for more."
            ),
        ),
    ] = None,
    keep_under: Annotated[
        float | None,
        Option(
            help="With --sweep: the leakage no sample may reach, from 0 to 1 (the sample itself).",
            show_default=f"{DEFAULT_LEVEL:g}",
        ),
    ] = None,
    utility_data: Annotated[
        Path | None, Option(help="With --sweep: an .npz of `images`, `labels` for accuracy.")
    ] = None,
    no_utility: Annotated[
        bool, Option("--no-utility", help="With --sweep: leave out the accuracy.")
    ] = False,
    server: Annotated[
        str | None,
        Option(help="A server that changes the model first: imprint, imprint:bins=64, traps."),
    ] = None,
    batch_size_known: Annotated[
        bool,
        Option(
            "--batch-size-known",
            help="Grant the attacker the batch size (of a captured update: --batch).",
        ),
    ] = False,
    eval_mode: options.EvalOption = False,
    buffers: options.BuffersOption = False,
    time_limit: options.TimeLimitOption = None,
    compare: Annotated[
        bool | None,
        Option(
            "--compare/--no-compare",
            help="Play the round again under other defenses.",
            show_default="where that takes seconds",
        ),
    ] = None,
    fail_above: Annotated[
        float | None, Option(help="Exit with 1 when any sample leaks more, from 0 to below 1.")
    ] = None,
    prove_below: Annotated[
        float | None,
        Option(
            help=(
                "Exit with 1 unless every sample's ceiling is proven to be below, from above 0 to "
                "below 1."
            )
        ),
    ] = None,
    fail_on_labels: Annotated[
        bool,
        Option(
            "--fail-on-labels", help="Exit with 1 when labels, tokens or categories are read, too."
        ),
    ] = False,
    ceiling: Annotated[
        bool, Option("--ceiling/--no-ceiling", help="Bound what any attacker can read, too.")
    ] = True,
    junit: Annotated[
        Path | None,
        Option(help=f"JUnit XML: a test case a sample, by --fail-above (or {DEFAULT_LEVEL:g})."),
    ] = None,
    sarif: Annotated[
        Path | None, Option(help="SARIF 2.1.0: a result a finding, by the same level.")
    ] = None,
    out: Annotated[Path, Option(help="Folder for the pages and result.json.")] = Path(
        "unsum-report"
    ),
    force: Annotated[bool, Option("--force", help="Overwrite a report that is there.")] = False,
    as_json: options.JsonOption = False,
    device: options.DeviceOption = "cpu",
    seed: options.SeedOption = 0,
) -> None:
    """Simulate one federated round, attack its update, and report what was recovered; or attack an
    update that was captured.

    Exit codes: 0 it ran (and no sample leaks more than --fail-above), 1 a sample leaks more, 2 the
    gate could not be decided, or anything failed.
    """
    if updates is None:
        check_folder(out, force=force)
    with loading():
        from unsum.attack.options import AttackOptions
        from unsum.audit.gate import check_gate
        from unsum.audit.gate_files import write_gate
        from unsum.commands.audit_tables import show, show_sweep
        from unsum.defend import parse_defense
    check_gate(
        fail_above,
        junit,
        sarif,
        sweeping=bool(sweep),
        prove_below=prove_below,
        fail_on_labels=fail_on_labels,
    )
    limit = options.seconds(time_limit)
    others = (
        sweep,
        server,
        chosen.label_rule,
        chosen.inverse,
        chosen.refine,
        junit,
        sarif,
        prove_below,
    )
    if updates is not None or flower_run is not None:
        loss = chosen.loss if updates is None else None
        single = (*others, captured.update, captured.before, buffers, fail_on_labels, loss)
        if any(single):
            raise UnsumError(
                "--updates and --flower-run attack what was captured, as it is; leave out single "
                "updates, sweeps, servers, label rules, pictures, --buffers, --prove-below, "
                "--fail-on-labels, --junit and --sarif."
            )
        if (defense or given.same_label) and given.data is None:
            raise UnsumError(
                "--updates and --flower-run attack what was captured, as it is; --defense is what "
                "its clients declare, for the ceiling of a client with samples of the kind: give "
                "these with --data."
            )
        many: dict[str, Any] = {
            "out": out,
            "fail_above": fail_above,
            "as_json": as_json,
            "seed": seed,
        }
        many["train"] = not eval_mode
        if given.data is not None and ceiling:
            many["stand_in"] = given, batch, [parse_defense(text) for text in defense or []]
        if updates is not None:
            known = batch if batch_size_known else None
            many |= {
                "processes": processes,
                "ray": ray,
                "device": options.usable_device(device),
                "batch_size": known,
            }
            audit_many(
                updates,
                named,
                captured,
                method=chosen.attack,
                loss=chosen.loss,
                time_limit=limit,
                **many,
            )
        elif flower_run is not None:
            audit_run(
                flower_run,
                named,
                captured,
                attack=chosen.attack,
                batch=batch,
                time_limit=time_limit,
                **many,
            )
        return
    if processes is not None or ray is not None:
        raise UnsumError(
            "--processes and --ray are for many updates; add --updates FOLDER/, or leave them out."
        )
    received = captured.received()
    if sweep and received is not None:
        raise UnsumError(
            "A sweep simulates every round; leave out the captured update, or leave out --sweep."
        )
    if not sweep and (keep_under is not None or utility_data is not None or no_utility):
        raise UnsumError(
            "--keep-under, --utility-data and --no-utility belong to a sweep; add, say, --sweep "
            "noise=1e-3..10."
        )
    trained = captured.simulated() if received is None else {}
    # what a sweep takes as one round does; refused there, with a sentence
    shared: dict[str, Any] = {
        "model": named.model,
        "data": given.data,
        "loading": named.loading,
        "samples": given.samples(batch),
        "client": unsum.ClientTraining(not eval_mode, buffers, chosen.loss, **trained),
        "attacker": unsum.Attacker(
            chosen.attack,
            chosen.label_rule,
            chosen.refine,  # type: ignore[arg-type] # refused there, if it is no mode
            batch_size_known,
            inverse=chosen.inverse,
            server=server,
        ),
        "limits": unsum.AuditLimits(limit, compare, ceiling, prove_below),
        "defenses": [parse_defense(text) for text in defense or []],
        "device": options.usable_device(device),
        "seed": seed,
        "command": shlex.join(["unsum", *sys.argv[1:]]),
    }
    if sweep:
        with stages() as shown:
            swept = unsum.sweep(
                **shared,
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
            show_sweep(swept, page)
        return
    with stages(AttackOptions(chosen.attack).steps) as shown, interruptible():
        result = unsum.audit(**shared, update=received, progress=shown)
        shown.say("Writing the report")
        page = _written(result, out, force)
    level = DEFAULT_LEVEL if fail_above is None else fail_above
    held = result.gate(level, prove_below=prove_below, fail_on_labels=fail_on_labels)
    write_gate(result, held, page, junit=junit, sarif=sarif)
    has_gate = fail_above is not None or prove_below is not None or fail_on_labels
    if as_json:
        _print(result.to_dict() | ({"gate": held.to_dict()} if has_gate else {}), page)
    else:
        show(result, page)
    if has_gate:
        console = PROGRESS if as_json else OUT
        console.print(held.reason, style="red" if held.exit_code else "green", soft_wrap=True)
        raise typer.Exit(held.exit_code)


def _written(result: Audit, out: Path, force: bool) -> Path:
    """The report where it belongs; where that fails, after all that work, in a folder for temporary
    files."""
    try:
        return result.write(out, force=force)
    except OSError as reason:
        try:
            page = result.write(tempfile.mkdtemp(prefix="unsum-report-"), force=True)
        except OSError:
            raise reason from None
        raise UnsumError(
            f"{str(out)!r} could not be written ({first_line(reason)}); the report is in "
            f"{str(page.parent)!r}."
        ) from reason


def _print(content: dict[str, Any], page: Path) -> None:
    typer.echo(json.dumps(content | {"report": str(page)}, indent=2))
