"""`unsum capture`: play the client, and write the update that it would send."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from unsum.commands import options
from unsum.commands.stages import loading, say, stages
from unsum.errors import UnsumError
from unsum.files.report_folder import check_writable


@options.spread
def command(
    named: options.NamedModel,
    given: options.ClientData,
    batch: Annotated[
        int | None, Option(help="How many samples the client has.", show_default="8")
    ] = None,
    defense: options.DefenseOption = None,
    eval_mode: options.EvalOption = False,
    buffers: options.BuffersOption = False,
    out: Annotated[Path, Option(help="The file for the update, .safetensors.")] = Path(
        "client.safetensors"
    ),
    force: Annotated[bool, Option("--force", help="Overwrite an existing file.")] = False,
    as_json: options.JsonOption = False,
    device: options.DeviceOption = "cpu",
    seed: options.SeedOption = 0,
) -> None:
    """Compute the update that one client would send after one step, and save it."""
    if out.suffix != ".safetensors":
        raise UnsumError(f"Updates are saved as .safetensors; rename {out.name!r} accordingly.")
    check_writable(out.parent)
    if out.exists() and not force:
        raise UnsumError(
            f"{str(out)!r} exists already; add --force to overwrite it, or name another with --out."
        )
    with loading():
        import torch

        from unsum.audit.inputs import Inputs
        from unsum.audit.text import is_text, text_inputs
        from unsum.client import capture, capture_text
        from unsum.defend import parse_defense
    chain = [parse_defense(text) for text in defense or []]
    chosen = options.usable_device(device)
    with stages() as shown:
        shown.say("Loading the model and the client's samples")
        inputs = Inputs(
            named.model, given.data, loading=named.loading, samples=given.samples(batch), seed=seed
        )
        text = is_text(named.model)
        if text:
            read = text_inputs(inputs)
            loaded, (images, targets, *besides) = read.loaded, read.step
        else:
            loaded, truth = inputs.simulated()
            images, targets, besides = truth.images, truth.targets, []
            if truth.resized:
                say(truth.resized)
        name, network = loaded.name, loaded.model
        shown.say("The client computes its update")
        torch.manual_seed(seed)
        sent = network.to(chosen), images.to(chosen), targets.to(chosen)
        mask, segments = (
            None if part is None else part.to(chosen) for part in besides or (None, None)
        )
        train = not eval_mode
        update = (
            capture_text(*sent, mask=mask, segments=segments, train=train, defenses=chain)
            if text
            else capture(*sent, train=train, defenses=chain, buffers=buffers)
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    update.save(out)
    values = sum(gradient.numel() for gradient in update.gradients.values())
    what = "texts" if text else "photos" if given.target is None else "rows"
    defenses = " | ".join(repr(part) for part in chain) or "none"
    if as_json:
        content = {
            "update": str(out),
            "model": name,
            "samples": len(images),
            "defenses": defenses,
            "seed": seed,
        }
        typer.echo(
            json.dumps(content | {"tensors": len(update.gradients), "values": values}, indent=2)
        )
        return
    typer.echo(
        f"{out}: {len(update.gradients)} tensors, {values:,} values, of {len(images)} {what}."
    )
    typer.echo(
        f"Model: {name}. Defense: {defenses}. The file says nothing about the {what} or their "
        "number."
    )
