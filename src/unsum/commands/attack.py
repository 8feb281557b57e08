"""`unsum attack`: a model and an update, and what can be read out of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.console import Console
from rich.table import Table

from unsum.attack.chain import run_attack
from unsum.attack.options import AttackOptions
from unsum.audit.leak_folder import leak_summary, write_leak
from unsum.audit.result import check_folder
from unsum.client.step import in_mode
from unsum.commands import options
from unsum.commands.stages import stages
from unsum.invert.refine import Mode
from unsum.leak import Leak
from unsum.models.received import Received

_PROGRESS, _OUT = Console(stderr=True), Console()


def command(
    model: options.ModelOption = "default",
    weights: options.WeightsOption = None,
    classes: options.ClassesOption = None,
    update: options.UpdateOption = None,
    before: options.BeforeOption = None,
    after: options.AfterOption = None,
    delta: options.DeltaOption = False,
    rate: options.RateOption = None,
    steps: options.StepsOption = None,
    attack: Annotated[str, typer.Option(help="auto, or an attack from `unsum list`.")] = "auto",
    labels: Annotated[
        str | None, typer.Option(help="A label rule from `unsum list` that finds the labels first.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Grant the attacker the batch size.")] = None,
    loss: Annotated[
        str | None, typer.Option(help="The client's loss, if not cross-entropy: bce, mse or focal:GAMMA.")
    ] = None,
    inverse: Annotated[
        list[Path] | None,
        typer.Option(
            help="An inverse from `unsum train-inverse` for this backbone, for pictures; repeat for inner layers."
        ),
    ] = None,
    refine: Annotated[
        str | None, typer.Option(help="Refine the pictures: features (raises PSNR), or the published f, g, gf.")
    ] = None,
    eval_mode: Annotated[
        bool, typer.Option("--eval-mode", help="The client's BatchNorm used running statistics.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for leak.safetensors, leak.json and pictures.")] = Path(
        "unsum-leak"
    ),
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing folder.")] = False,
    as_json: options.JsonOption = False,
    download: options.DownloadOption = False,
    device: options.DeviceOption = "cpu",
    seed: options.SeedOption = 0,
) -> None:
    """Attack a captured update: no data are needed, and none are looked at."""
    check_folder(out, force=force)
    wanted = AttackOptions(
        attack,
        batch_size=batch_size,
        label_rule=labels,
        inverse=inverse,
        refine=cast("Mode | None", refine),  # checked below, with a sentence
        loss=loss,
        seed=seed,
    )
    wanted.check()
    files = Received(update, before, after, delta, rate, steps)
    chosen = options.usable_device(device)
    with stages(_PROGRESS, wanted.steps) as shown:
        shown.say("Loading the model and the update")
        loaded, sent = files.open(model, weights=weights, classes=classes, seed=seed, download=download)
        network = loaded.model.to(chosen)
        with in_mode(network, not eval_mode):
            moved = sent.map(lambda _name, tensor: tensor.to(chosen))
            leak = run_attack(network, moved, replace(wanted, device=chosen), shown)
        leak = replace(leak, notes=[*sent.notes, *leak.notes])
        files_written = write_leak(leak, out, model=loaded.name)
    if as_json:
        content = leak_summary(leak, model=loaded.name) | {"files": [str(file) for file in files_written]}
        typer.echo(json.dumps(content, indent=2))
        return
    _show(leak, loaded.name)
    _OUT.print(
        f"Written: {', '.join(file.name for file in files_written[:2])} … in {out}", markup=False, highlight=False
    )


def _show(leak: Leak, model: str) -> None:
    facts = Table(show_header=False, title="What the update gives away", title_justify="left")
    facts.add_row("model", model)
    facts.add_row("granted to the attacker", "\n".join(leak.knowledge.granted()))
    facts.add_row("attack", leak.method)
    facts.add_row("samples found", str(leak.batch_size))
    facts.add_row("certificate", "exact" if leak.exact else "not exact")
    facts.add_row("predicted feature error", f"{leak.predicted_error:.1e}")
    facts.add_row("gradient left unexplained", f"{leak.residual:.1e}")
    facts.add_row("gradient scale found", f"{leak.scale:.6g}")
    facts.add_row("time", f"{leak.seconds:.2f} s")
    _OUT.print(facts)
    if leak.tokens is not None:
        _show_text(leak)
        return
    samples = Table("sample", "label", "its probability", "input certified", title="Found", title_justify="left")
    for i in range(leak.batch_size):
        label = int(leak.labels[i])
        certified = "–" if leak.inputs_exact is None else "yes" if bool(leak.inputs_exact[i]) else "no"
        samples.add_row(str(i + 1), f"class {label}", f"{float(leak.targets[i, label]):.3f}", certified)
    _OUT.print(samples)
    for sentence in leak.notes:
        _OUT.print(f"• {sentence}", markup=False, highlight=False)


def _show_text(leak: Leak) -> None:
    lines = Table("sequence", "tokens", title="Found", title_justify="left")
    for place, sequence in enumerate(leak.tokens or [], 1):
        lines.add_row(str(place), " ".join(map(str, sequence)))
    _OUT.print(lines)
    for sentence in leak.notes:
        _OUT.print(f"• {sentence}", markup=False, highlight=False)
