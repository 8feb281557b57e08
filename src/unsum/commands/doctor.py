"""`unsum doctor`: what an audit would run into, before it runs."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from unsum.commands import options
from unsum.doctor.finding import Finding
from unsum.doctor.run import doctor

_OUT = Console()
_SHOWN = {
    "ok": ("✓ ok", "green"),
    "warning": ("! warning", "yellow"),
    "will not work": ("✗ will not work", "red"),
    "tampered": ("✗ looks tampered with", "bold red"),
}


def command(
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
    inverse: Annotated[
        Path | None, typer.Option(help="An inverse from `unsum train-inverse` for this backbone, for pictures.")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="How many samples a client trains on.")] = None,
    same_label: Annotated[int, typer.Option(help="How many of them share one label.")] = 0,
    eval_mode: Annotated[
        bool, typer.Option("--eval-mode", help="The client's BatchNorm uses running statistics.")
    ] = False,
    as_json: options.JsonOption = False,
    download: options.DownloadOption = False,
    device: options.DeviceOption = "cpu",
    seed: options.SeedOption = 0,
) -> None:
    """Say what an audit would run into, without running it, and whether a model (or a file of weights) looks tampered with.

    Exit code 2 if something will not work, 1 if the model looks as if its server had prepared it to leak.
    """
    findings = doctor(
        model,
        data,
        update=options.received(update, before, after, delta, rate, steps),
        weights=weights,
        classes=classes,
        inverse=inverse,
        batch=batch,
        same_label=same_label,
        train=not eval_mode,
        download=download,
        device=options.usable_device(device),
        seed=seed,
    )
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        _show(findings)
    if any(finding.mark == "will not work" for finding in findings):
        raise typer.Exit(2)
    if any(finding.mark == "tampered" for finding in findings):
        raise typer.Exit(1)


def _show(findings: list[Finding]) -> None:
    table = Table("", "check", "what was found", title="Before the audit", title_justify="left")
    for finding in findings:
        mark, color = _SHOWN[finding.mark]
        table.add_row(Text(mark, color), finding.check, Text(finding.sentence))
    _OUT.print(table)
    counts: Counter[str] = Counter(finding.mark for finding in findings)
    _OUT.print(", ".join(f"{counts[mark]} {mark}" for mark in _SHOWN if counts[mark]) + ".", highlight=False)
