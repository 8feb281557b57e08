"""`unsum audit` of many clients' updates: `--updates FOLDER/`, a row each in one SQLite file that
grows as they come; and `--flower-run FOLDER`, a stored federated run, every client and round on one
page."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table
from rich.text import Text

from unsum.commands import options
from unsum.commands.stages import OUT, stages
from unsum.errors import UnsumError, needed
from unsum.running.deadline import interruptible

if TYPE_CHECKING:
    from unsum.audit.many import Findings
    from unsum.audit.over_time import RunAudit
    from unsum.audit.round_ceiling import RoundCeiling
    from unsum.defend import Defense
    from unsum.integrations.stand_in import StandIn
    from unsum.integrations.stored import StoredReply
    from unsum.models.load import LoadedModel
    from unsum.running.progress import Progress

    # Data of the clients' kind, how many of them a client has, and what it does to its update.
    Declared = tuple[options.ClientData, int | None, list[Defense]]

FILE = "findings.sqlite"
# updates on a page that a browser opens at once; the CSV and the file have them all
_ON_PAGE = 5_000
_SHOWN, _SHOWN_OF_RUN = 10, 20  # updates on the screen; the file and the page have them all
_LOOKED_AT = 10  # updates that may be damaged before one tells the model's classes
_NUMBER = re.compile(r"\(\d+\)")  # in a sentence about what was granted
_SECONDS = 10.0  # for one update of a run, unless --time-limit says otherwise: a run has many


def audit_many(
    folder: Path,
    named: options.NamedModel,
    captured: options.Captured,
    *,
    out: Path,
    fail_above: float | None,
    as_json: bool,
    seed: int,
    stand_in: Declared | None = None,
    **how: Any,
) -> None:
    """Audit them, show a summary, and leave with the gate's exit code; the same command goes on
    where one was stopped."""
    from unsum.audit.many import attack_many
    from unsum.audit.many.arrived import in_folder
    from unsum.audit.many.table import write_csv
    from unsum.audit.over_time import CSV
    from unsum.models.received import Received

    alike = Received(**vars(replace(captured, update=folder)))
    with stages() as shown:
        shown.say("Loading the model")
        loaded = _model(
            (one.update for one in itertools.islice(in_folder(folder, alike), _LOOKED_AT)),
            named,
            seed,
        )
        client = _stand_in(stand_in, named, captured, seed=seed, train=how["train"])
        bounded: dict[str, Any] = {}
        out.mkdir(parents=True, exist_ok=True)
        shown.say("Auditing the updates")
        updates = in_folder(folder, alike)
        start = time.perf_counter()
        findings = attack_many(
            loaded.model, updates, results=out / FILE, seed=seed, progress=shown, **how
        )
        shown.say("Writing the page")
        if client is not None:
            from unsum.integrations.stand_in import declared_by, like_this_one

            shown.say("Playing a client with the data given in two worlds")
            rounds = sorted({finding.round for finding in findings})
            bare = any(finding.statistics_layers for finding in findings)
            bounded["ceilings"] = like_this_one(loaded.model, client, rounds, bare=bare)
            bounded["declared"] = declared_by(client)
        run = _page_of(findings, loaded, folder, time.perf_counter() - start, **bounded)
        table = write_csv(out / CSV, findings, run.ceiling_at)
        page = run.write_page(out)
    content = summary(findings, fail_above)
    if as_json:
        content["ceilings"] = [one.to_dict() for one in run.ceilings]
        files = {"findings": str(out / FILE), "csv": str(table), "report": str(page)}
        typer.echo(json.dumps(content | files, indent=2))
    else:
        _show(findings, loaded.name)
        for sentence in run.bounded:
            OUT.print(f"• {sentence}", markup=False)
        OUT.print(f"Written: {out / FILE} and {table.name}, one row a client and round")
        OUT.print(f"Report: {page}")
    if fail_above is not None:
        if not as_json:
            OUT.print(content["gate"]["reason"], soft_wrap=True)
        raise typer.Exit(content["gate"]["exit_code"])


def _granted_in(granted: Iterable[Sequence[str]]) -> list[str]:
    """What the attacker was granted over all updates; a number that differs between them is not
    that of the first."""
    kinds = dict[str, list[str]]()
    for sentence in (sentence for one in granted for sentence in one):
        same = kinds.setdefault(_NUMBER.sub("", sentence), [])
        same += [] if sentence in same else [sentence]
    return [
        same[0] if len(same) == 1 else _NUMBER.sub("(of every update its own)", same[0])
        for same in kinds.values()
    ]


def _stand_in(
    declared: Declared | None, named: options.NamedModel, captured: options.Captured, **how: Any
) -> StandIn | None:
    """A client with the data given that does what is declared; None where no data were given."""
    if declared is None:
        return None
    from unsum.audit.inputs import Inputs
    from unsum.integrations.stand_in import StandIn
    from unsum.local_training import LocalTraining

    given, batch, chain = declared
    place: dict[str, Any] = {
        "loading": named.loading,
        "samples": given.samples(batch),
        "seed": how["seed"],
    }
    own = Inputs(named.model, given.data, **place).simulated()[1]
    training = LocalTraining(
        captured.learning_rate,
        captured.steps,
        None,
        captured.weight_decay,
        captured.momentum,
        captured.epochs,
    )
    return StandIn(own, chain, training, **how)


def _page_of(
    findings: Findings, loaded: LoadedModel, folder: Path, seconds: float, **bounded: Any
) -> RunAudit:
    """The page of a stored run, for updates that were found in a folder; of very many, those that
    leak most."""
    from unsum.audit.over_time import Audited, RunAudit
    from unsum.audit.provenance import Provenance, fingerprint, versions

    total = len(findings)
    shown = list(findings) if total <= _ON_PAGE else findings.largest(_ON_PAGE)
    left_out = (
        f"This page is of {len(shown):,} of {total:,} updates, those that leak most; the CSV "
        "beside it has all."
    )
    return RunAudit(
        loaded.name,
        str(folder),
        [Audited(finding, finding.counted) for finding in shown],
        [left_out] if len(shown) < total else [],
        _command(),
        seconds,
        _granted_in([finding.granted for finding in shown]),
        stored_run=False,
        provenance=Provenance.of(model=fingerprint(loaded.model.state_dict())),
        versions=versions(),
        **bounded,
    )


def _command() -> str:
    return shlex.join(["unsum", *sys.argv[1:]])


def summary(findings: Findings, fail_above: float | None) -> dict[str, Any]:
    """Counts for machines, and what a gate at this level says: an update of which nobody knows does
    not pass it."""
    from unsum.audit.gate import EXIT_CODES, outcome_of, result_of

    failed = sum(finding.outcome == "failed" for finding in findings)
    content: dict[str, Any] = {
        "updates": len(findings),
        "states": findings.counts(),
        "failed": failed,
    }
    if fail_above is None:
        return content
    outcomes = [(finding.client, outcome_of(finding.leakage, fail_above)) for finding in findings]
    above = [client for client, outcome in outcomes if outcome == "above"]
    result = result_of((finding.leakage for finding in findings), fail_above)
    reason = f"No update leaks more than {fail_above:g}."
    if result == "failed":
        reason = (
            f"{len(above)} of {len(findings)} updates leak more than {fail_above:g}; the first is "
            f"{above[0]}."
        )
    elif result == "undecided":
        unknown = sum(outcome == "unknown" for _, outcome in outcomes)
        reason = (
            f"Of {unknown} of {len(findings)} updates it is not decidable whether they leak, which "
            "is not safe."
        )
    return content | {"gate": {"exit_code": EXIT_CODES[result], "reason": reason}}


def _model(updates: Iterable[Any], named: options.NamedModel, seed: int) -> LoadedModel:
    """The model, with as many classes as the first update that can be read has."""
    from unsum.audit.inputs import Inputs

    refused: UnsumError | None = None
    for update in updates:
        try:
            return Inputs(named.model, update=update, loading=named.loading, seed=seed).captured()[
                0
            ]
        except UnsumError as error:
            refused = refused or error
    raise needed(refused, "An update")


def _show(findings: Findings, model: str) -> None:
    from unsum.audit.verdict import LEAKS

    counts = findings.counts().items()
    states = (f"{n} {'leak' if state == LEAKS and n > 1 else state}" for state, n in counts)
    OUT.print(f"{len(findings)} updates of {model}: {', '.join(states)}")
    table = Table(
        "round",
        "client",
        "leakage",
        "certain",
        "samples",
        "attack",
        title="The most",
        title_justify="left",
    )
    for finding in findings.largest(_SHOWN):
        sure = "yes" if finding.exact else "no"
        table.add_row(
            *(str(finding.round), Text(finding.client), finding.leaked, sure),
            *("–" if finding.distinct is None else str(finding.distinct), finding.method),
        )
    if table.row_count:
        OUT.print(table)
    for finding in itertools.islice((one for one in findings if one.outcome == "failed"), 3):
        OUT.print(f"• {finding.client} was not audited: {finding.reason}")


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
    stand_in: Declared | None = None,
) -> None:
    """Audit what was stored, write the page, and leave with the gate's exit code."""
    from unsum.audit.over_time import RunAudit
    from unsum.audit.provenance import Provenance, fingerprint, versions
    from unsum.integrations.stand_in import declared_by
    from unsum.integrations.stored import gaps, replies
    from unsum.local_training import LocalTraining
    from unsum.models.received import Received

    declared = LocalTraining(
        captured.learning_rate,
        captured.steps,
        batch,
        captured.weight_decay,
        captured.momentum,
        captured.epochs,
    )
    waiting, start, missing = list(replies(folder)), time.perf_counter(), gaps(folder)
    if not waiting:
        raise UnsumError(
            f"{str(folder)!r} holds no client's answer; "
            f"{missing[-1] if missing else 'run the training again.'}"
        )
    limit = _SECONDS if time_limit is None else options.seconds(time_limit)
    with stages() as shown, interruptible():
        shown.say("Loading the model")
        loaded = _model((Received(before=one.sent, after=one.back) for one in waiting), named, seed)
        client = _stand_in(stand_in, named, captured, seed=seed, train=train)
        done = []
        for place, one in enumerate(waiting, 1):
            shown.say(
                f"Auditing client {one.client} in round {one.round} ({place} of {len(waiting)})"
            )
            done.append(
                one.audited(
                    loaded.model, declared, attack, train=train, seed=seed, time_limit=limit
                )
            )
        ceilings = [] if client is None else _after_each(waiting[-1], folder, loaded, client, shown)
    granted = _granted_in([one.finding.granted for one in done])
    made = Provenance.of(model=fingerprint(loaded.model.state_dict()))
    how: dict[str, Any] = {"provenance": made, "versions": versions(), "ceilings": ceilings}
    how["declared"] = "" if client is None else declared_by(client)
    run = RunAudit(
        loaded.name,
        str(folder),
        done,
        missing,
        _command(),
        time.perf_counter() - start,
        granted,
        **how,
    )
    page = run.write(out)
    if as_json:
        typer.echo(json.dumps(run.to_dict() | {"report": str(page)}, indent=2))
    else:
        _show_run(run)
        OUT.print(f"Report: {page}")
    if fail_above is not None:  # 1 where an update leaks more, 2 where nobody knows of one
        from unsum.audit.gate import EXIT_CODES, result_of

        raise typer.Exit(EXIT_CODES[result_of((one.finding.leakage for one in done), fail_above)])


def _after_each(
    last: StoredReply, folder: Path, loaded: LoadedModel, client: StandIn, shown: Progress
) -> list[RoundCeiling]:
    """The ceiling of the client after each of the stored rounds."""
    from unsum.integrations.stand_in import OverRounds
    from unsum.integrations.stored import sent_weights

    curve, found, sent = OverRounds(loaded.model, client), [], dict(sent_weights(folder))
    for number in range(1, last.round + 1):
        shown.say(f"Playing a client with the data given in two worlds, in round {number}")
        found.append(curve.add(number, sent.get(number)))
    return found


def _show_run(run: RunAudit) -> None:
    headings = ("round", "client", "leakage", "certain", "labels")
    table = Table(*headings, title="What leaked, over time", title_justify="left")
    for one in run.audited[:_SHOWN_OF_RUN]:
        finding = one.finding
        sure = "yes" if finding.exact else "no"
        table.add_row(
            str(finding.round), Text(finding.client), finding.leaked, sure, Text(one.told)
        )
    OUT.print(table)
    OUT.print(run.headline)
    for sentence in run.sentences:
        OUT.print(f"• {sentence}", markup=False)
