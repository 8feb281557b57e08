"""`unsum capture`: play the client, and write the update that it would send."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from unsum.audit.inputs import Inputs
from unsum.client import capture
from unsum.commands import options
from unsum.commands.stages import stages
from unsum.defend import parse_defense
from unsum.errors import UnsumError

_PROGRESS = Console(stderr=True)


def command(
    model: options.ModelOption = "default",
    weights: options.WeightsOption = None,
    data: options.DataOption = None,
    classes: options.ClassesOption = None,
    batch: Annotated[int, typer.Option(help="How many photos the client trains on.")] = 8,
    same_label: Annotated[int, typer.Option(help="How many of them share one label; 0 takes them as they come.")] = 0,
    defense: Annotated[
        list[str] | None,
        typer.Option(help="noise:STD, clip:NORM, sign … from `unsum list`; repeat to chain, in order."),
    ] = None,
    eval_mode: Annotated[
        bool, typer.Option("--eval-mode", help="The client's BatchNorm uses running statistics.")
    ] = False,
    out: Annotated[Path, typer.Option(help="The file for the update, .safetensors.")] = Path("client.safetensors"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    as_json: options.JsonOption = False,
    download: options.DownloadOption = False,
    device: options.DeviceOption = "cpu",
    seed: options.SeedOption = 0,
) -> None:
    """Compute the update that one client would send after one step, and save it."""
    if out.suffix != ".safetensors":
        raise UnsumError(f"Updates are saved as .safetensors; rename {out.name!r} accordingly.")
    if out.exists() and not force:
        raise UnsumError(f"{str(out)!r} exists already; add --force to overwrite it, or name another with --out.")
    chain = [parse_defense(text) for text in defense or []]
    chosen = options.usable_device(device)
    with stages(_PROGRESS) as shown:
        shown.say("Loading the model and the client's photos")
        loaded, truth = Inputs(model, data, None, weights, classes, download, batch, same_label, seed).simulated()
        name, network = loaded.name, loaded.model
        shown.say("The client computes its update")
        torch.manual_seed(seed)
        images, targets = truth.images.to(chosen), truth.targets.to(chosen)
        update = capture(network.to(chosen), images, targets, train=not eval_mode, defenses=chain)
    out.parent.mkdir(parents=True, exist_ok=True)
    update.save(out)
    values = sum(gradient.numel() for gradient in update.gradients.values())
    defenses = " | ".join(repr(part) for part in chain) or "none"
    if as_json:
        content = {"update": str(out), "model": name, "samples": len(images), "defenses": defenses, "seed": seed}
        typer.echo(json.dumps(content | {"tensors": len(update.gradients), "values": values}, indent=2))
        return
    typer.echo(f"{out}: {len(update.gradients)} tensors, {values:,} values, of {len(images)} photos.")
    typer.echo(f"Model: {name}. Defense: {defenses}. The file says nothing about the photos or their number.")
