"""`unsum doctor`: what an audit would run into, before it runs."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text
from typer import Option

from unsum.commands import options
from unsum.commands.stages import OUT, loading

_SHOWN = {
    "ok": ("✓ ok", "green"),
    "warning": ("! warning", "yellow"),
    "will not work": ("✗ will not work", "red"),
    "tampered": ("✗ looks tampered with", "bold red"),
}


@options.spread
def command(
    named: options.NamedModel,
    captured: options.Captured,
    data: options.DataOption = None,
    inverse: Annotated[
        Path | None,
        Option(help="An inverse from `unsum train-inverse` for this backbone, for pictures."),
    ] = None,
    batch: Annotated[int | None, Option(help="How many samples a client trains on.")] = None,
    same_label: Annotated[int, Option(help="How many of them share one label.")] = 0,
    eval_mode: options.EvalOption = False,
    as_json: options.JsonOption = False,
    device: options.DeviceOption = "cpu",
    seed: options.SeedOption = 0,
) -> None:
    """Say what an audit would run into, without running it, and whether a model (or a file of
    weights) looks tampered with.

    Exit code 2 if something will not work, 1 if the model looks as if its server had prepared it to
    leak.
    """
    with loading():
        import unsum
        from unsum.doctor import doctor
    findings = doctor(
        named.model,
        data,
        update=captured.received(),
        loading=named.loading,
        samples=unsum.ClientSamples(batch, same_label),
        inverse=inverse,
        train=not eval_mode,
        device=options.usable_device(device),
        seed=seed,
    )
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        table = Table("", "check", "what was found", title="Before the audit", title_justify="left")
        for finding in findings:
            mark, color = _SHOWN[finding.mark]
            table.add_row(Text(mark, color), finding.check, Text(finding.sentence))
        OUT.print(table)
        counts: Counter[str] = Counter(finding.mark for finding in findings)
        OUT.print(", ".join(f"{counts[mark]} {mark}" for mark in _SHOWN if counts[mark]) + ".")
    marks = {finding.mark for finding in findings}
    if marks & {"will not work", "tampered"}:
        raise typer.Exit(2 if "will not work" in marks else 1)
