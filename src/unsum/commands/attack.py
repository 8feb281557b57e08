"""`unsum attack`: a model and an update, and what can be read out of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text
from typer import Option

from unsum.commands import options
from unsum.commands.stages import OUT, loading, stages
from unsum.files.report_folder import check_folder
from unsum.running.deadline import interruptible

if TYPE_CHECKING:
    from unsum.leak import Leak


@options.spread
def command(
    named: options.NamedModel,
    captured: options.Captured,
    asked: options.ChosenAttack,
    previous: options.PreviousOption = None,
    batch: Annotated[
        int | None,
        Option(
            help="How many samples the client has, granted to the attacker.", show_default="found"
        ),
    ] = None,
    time_limit: options.TimeLimitOption = None,
    eval_mode: Annotated[
        bool, Option("--eval-mode", help="The client's BatchNorm used running statistics.")
    ] = False,
    out: Annotated[
        Path, Option(help="Folder for leak.safetensors, leak.json and pictures.")
    ] = Path("unsum-leak"),
    force: Annotated[bool, Option("--force", help="Overwrite an existing folder.")] = False,
    as_json: options.JsonOption = False,
    device: options.DeviceOption = "cpu",
    seed: options.SeedOption = 0,
) -> None:
    """Attack a captured update: no data are needed, and none are looked at."""
    check_folder(out, force=force)
    with loading():
        from unsum.attack.chain import run_attack
        from unsum.attack.options import AttackOptions
        from unsum.audit.inputs import Inputs
        from unsum.audit.leak_folder import leak_summary, write_leak
        from unsum.audit.text import texts_of
        from unsum.client.step import in_mode
        from unsum.models.received import Received
    known = {name: value for name, value in vars(asked).items() if name != "attack"}
    limit = options.seconds(time_limit)
    wanted = AttackOptions(asked.attack, **known, batch_size=batch, time_limit=limit, seed=seed)
    wanted.check()
    inputs = Inputs(
        update=Received(**vars(captured), previous=previous),
        seed=seed,
        model=named.model,
        loading=named.loading,
    )
    chosen = options.usable_device(device)
    with stages(wanted.steps) as shown, interruptible():
        shown.say("Loading the model and the update")
        loaded, sent = inputs.captured()
        names = inputs.class_names(loaded.model)
        network = loaded.model.to(chosen)
        with in_mode(network, not eval_mode):
            moved = sent.map(lambda _name, tensor: tensor.to(chosen))
            leak = run_attack(network, moved, replace(wanted, device=chosen), shown)
        leak = replace(leak, notes=[*sent.notes, *leak.notes])
        texts = texts_of(leak, named.model)
        files_written = write_leak(leak, out, model=loaded.name, texts=texts)
    if as_json:
        summary = leak_summary(leak, model=loaded.name, texts=texts)
        content = summary | {"files": [str(file) for file in files_written]}
        typer.echo(json.dumps(content, indent=2))
        return
    _show(leak, loaded.name, texts, names)
    OUT.print(f"Written: {', '.join(file.name for file in files_written[:2])} … in {out}")


def _show(leak: Leak, model: str, texts: list[str] | None, names: list[str]) -> None:
    from unsum.audit.distribution import LabelDistribution, is_telling
    from unsum.audit.leakage import Tried
    from unsum.audit.wording import error, plain
    from unsum.commands.audit_tables import distribution_table, show_tried

    facts = Table(show_header=False, title="What the update gives away", title_justify="left")
    facts.add_row("model", model)
    facts.add_row("granted to the attacker", "\n".join(leak.knowledge.granted()))
    facts.add_row("attack", leak.method)
    facts.add_row("samples found", "none told apart" if leak.made_up else leak.number_of())
    facts.add_row("certificate", "exact" if leak.exact else "not exact")
    facts.add_row("predicted feature error", error(leak.predicted_error))
    facts.add_row("gradient left unexplained", error(leak.residual))
    facts.add_row("gradient scale found", f"{leak.scale:.6g}")
    facts.add_row("time", f"{leak.seconds:.2f} s")
    OUT.print(facts)
    counts = leak.label_counts

    def called(label: int) -> str:
        return names[label] if names else f"class {label}"

    # samples that were made up of a sum are none
    if counts is not None and is_telling(counts) and texts is None:
        OUT.print(distribution_table(LabelDistribution.of(counts, called)))
    elif texts is None and not leak.made_up:
        found = Table(
            "sample",
            "label",
            "its probability",
            "input certified",
            title="Found",
            title_justify="left",
        )
        for i, label in enumerate(map(int, leak.labels)):
            certified = (
                "–" if leak.inputs_exact is None else "yes" if bool(leak.inputs_exact[i]) else "no"
            )
            found.add_row(
                str(i + 1), Text(called(label)), f"{float(leak.targets[i, label]):.3f}", certified
            )
        OUT.print(found)
    elif texts is not None:
        found = Table("sequence", "text", title="Found", title_justify="left")
        for place, text in enumerate(texts, 1):
            found.add_row(str(place), Text(plain(text)))
        OUT.print(found)
    show_tried([Tried.of(attempt, [], made_up=leak.made_up) for attempt in leak.tried])
    for sentence in leak.notes:
        OUT.print(f"• {sentence}")
    if leak.undecided and not leak.exact:
        OUT.print(f"• What was not found may leak all the same: {leak.undecided}.")
