"""`unsum audit --flower-run FOLDER`: a stored federated run, every client and round, on one page."""

from __future__ import annotations

import json
import math
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table
from rich.text import Text

from unsum.commands import options
from unsum.commands.stages import OUT, stages
from unsum.deadline import interruptible
from unsum.errors import UnsumError

if TYPE_CHECKING:
    from unsum.audit.over_time import RunAudit

_SECONDS = 10.0  # for one update, unless --time-limit says otherwise: a run has many
_SHOWN = 20  # updates on the screen; the page has them all


def audit_run(
    folder: Path,
    named: options.NamedModel,
    captured: options.Captured,
    *,
    out: Path,
    batch: int | None,
    attack: str,
    time_limit: float | None,
    train: bool,
    fail_above: float | None,
    as_json: bool,
    seed: int,
) -> None:
    """Audit what was stored, write the page, and leave with the gate's exit code."""
    from unsum.audit.over_time import RunAudit
    from unsum.integrations.stored import gaps, replies
    from unsum.local_training import LocalTraining

    declared = LocalTraining(
        captured.learning_rate, captured.steps, batch, captured.weight_decay, captured.momentum, captured.epochs
    )
    waiting, start, missing = list(replies(folder)), time.perf_counter(), gaps(folder)
    if not waiting:
        raise UnsumError(
            f"{str(folder)!r} holds no client's answer; {missing[-1] if missing else 'run the training again.'}"
        )
    how: dict[str, Any] = {
        "train": train,
        "seed": seed,
        "time_limit": _SECONDS if time_limit is None else time_limit or None,
    }
    with stages() as shown, interruptible():
        shown.say("Loading the model")
        loaded = _model(waiting, named, seed)
        done = []
        for place, one in enumerate(waiting, 1):
            shown.say(f"Auditing client {one.client} in round {one.round} ({place} of {len(waiting)})")
            done.append(one.audited(loaded.model, declared, attack, **how))
    granted = next((one.finding.granted for one in done if one.finding.granted), ())
    run = RunAudit(
        *(
            loaded.name,
            str(folder),
            done,
            missing,
            shlex.join(["unsum", *sys.argv[1:]]),
            time.perf_counter() - start,
            granted,
        )
    )
    page = run.write(out)
    if as_json:
        typer.echo(json.dumps(run.to_dict() | {"report": str(page)}, indent=2))
    else:
        _show(run)
        OUT.print(f"Report: {page}")
    if fail_above is not None:
        raise typer.Exit(_gate(run, fail_above))


def _model(waiting: list[Any], named: options.NamedModel, seed: int) -> Any:
    """The model, with as many classes as the first reply that can be read has."""
    from unsum.audit.inputs import Inputs
    from unsum.models.received import Received

    refused: UnsumError | None = None
    for one in waiting:
        try:
            return Inputs(update=Received(before=one.sent, after=one.back), seed=seed, **vars(named)).captured()[0]
        except UnsumError as error:
            refused = refused or error
    assert refused is not None
    raise refused


def _show(run: RunAudit) -> None:
    from unsum.audit.wording import percent

    table = Table(
        "round", "client", "leakage", "certain", "labels", title="What leaked, over time", title_justify="left"
    )
    for one in run.audited[:_SHOWN]:
        finding = one.finding
        sure = "yes" if finding.exact else "no"
        table.add_row(str(finding.round), Text(finding.client), percent(finding.leakage), sure, Text(one.told))
    OUT.print(table)
    OUT.print(run.headline)
    for sentence in run.sentences:
        OUT.print(f"• {sentence}", markup=False)


def _gate(run: RunAudit, level: float) -> int:
    """1 where an update leaks more, 2 where nobody knows of one, 0 else."""
    leakages = [one.finding.leakage for one in run.audited]
    return 1 if any(value > level for value in leakages) else 2 if any(map(math.isnan, leakages)) else 0
