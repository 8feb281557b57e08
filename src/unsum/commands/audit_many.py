"""`unsum audit --updates FOLDER/`: every update under a folder, a row each, in one SQLite file that grows as they come."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table
from rich.text import Text

from unsum.commands import options
from unsum.commands.stages import OUT, stages
from unsum.errors import UnsumError

if TYPE_CHECKING:
    from unsum.audit.many import Findings
    from unsum.models.load import LoadedModel
    from unsum.models.received import Received

FILE = "findings.sqlite"
_SHOWN = 10  # clients on the screen, those that leak most; the file has them all
_LOOKED_AT = 10  # updates that may be damaged before one tells the model's classes


def audit_many(
    folder: Path,
    named: options.NamedModel,
    captured: options.Captured,
    *,
    out: Path,
    processes: int | None,
    ray: str | None,
    fail_above: float | None,
    as_json: bool,
    seed: int,
    **how: Any,
) -> None:
    """Audit them, show a summary, and leave with the gate's exit code; the same command goes on where one was stopped."""
    from unsum.audit.many import attack_many
    from unsum.audit.many.arrived import in_folder
    from unsum.models.received import Received

    alike = Received(**vars(replace(captured, update=folder)))
    with stages() as shown:
        shown.say("Loading the model")
        loaded = _model(folder, alike, named, seed)
        out.mkdir(parents=True, exist_ok=True)
        shown.say("Auditing the updates")
        findings = attack_many(
            loaded.model,
            in_folder(folder, alike),
            results=out / FILE,
            processes=processes,
            ray=ray,
            seed=seed,
            progress=shown,
            **how,
        )
    content = summary(findings, fail_above)
    if as_json:
        typer.echo(json.dumps(content | {"findings": str(out / FILE)}, indent=2))
    else:
        _show(findings, loaded.name)
        OUT.print(f"Written: {out / FILE}, one row a client and round")
    if fail_above is not None:
        if not as_json:
            OUT.print(content["gate"]["reason"], soft_wrap=True)
        raise typer.Exit(content["gate"]["exit_code"])


def summary(findings: Findings, fail_above: float | None) -> dict[str, Any]:
    """Counts for machines, and what a gate at this level says: an update of which nobody knows does not pass it."""
    above, unknown, failed = [], 0, 0
    for finding in findings:
        failed += finding.outcome == "failed"
        unknown += math.isnan(finding.leakage)
        if fail_above is not None and finding.leakage > fail_above:
            above.append(finding.client)
    content: dict[str, Any] = {"updates": len(findings), "states": findings.counts(), "failed": failed}
    if fail_above is None:
        return content
    reason = f"No update leaks more than {fail_above:g}."
    if above:
        reason = f"{len(above)} of {len(findings)} updates leak more than {fail_above:g}; the first is {above[0]}."
    elif unknown:
        reason = f"Of {unknown} of {len(findings)} updates it is not decidable whether they leak, which is not safe."
    return content | {"gate": {"exit_code": 1 if above else 2 if unknown else 0, "reason": reason}}


def _model(folder: Path, alike: Received, named: options.NamedModel, seed: int) -> LoadedModel:
    """The model, with as many classes as the first update that can be read has."""
    from unsum.audit.inputs import Inputs
    from unsum.audit.many.arrived import in_folder

    refused: UnsumError | None = None
    for one in itertools.islice(in_folder(folder, alike), _LOOKED_AT):
        try:
            return Inputs(update=one.update, seed=seed, **vars(named)).captured()[0]
        except UnsumError as error:
            refused = refused or error
    assert refused is not None
    raise refused


def _show(findings: Findings, model: str) -> None:
    from unsum.audit.wording import percent

    OUT.print(
        f"{len(findings)} updates of {model}: {', '.join(f'{n} {state}' for state, n in findings.counts().items())}"
    )
    table = Table("round", "client", "leakage", "certain", "samples", "attack", title="The most", title_justify="left")
    for finding in findings.largest(_SHOWN):
        sure = "yes" if finding.exact else "no"
        table.add_row(
            *(str(finding.round), Text(finding.client), percent(finding.leakage), sure),
            *(str(finding.batch_size), finding.method),
        )
    if table.row_count:
        OUT.print(table)
    for finding in itertools.islice((one for one in findings if one.outcome == "failed"), 3):
        OUT.print(f"• {finding.client} was not audited: {finding.reason}")
