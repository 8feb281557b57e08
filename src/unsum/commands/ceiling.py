"""`unsum ceiling`: what nobody can exceed, for every sample of a simulated client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from unsum.commands import options
from unsum.commands.stages import OUT, loading, stages
from unsum.errors import UnsumError
from unsum.showing.level import DEFAULT_LEVEL

if TYPE_CHECKING:
    from torch import nn

    from unsum.ceiling import Ceiling, Observer

_CURVE = (1, 3, 10, 30, 100)  # [rounds] of the curve that --rounds draws


@options.spread
def command(
    named: options.NamedModel,
    given: options.ClientData,
    batch: Annotated[
        int | None,
        Option(help="How many photos, rows or texts the client trains on.", show_default="8"),
    ] = None,
    defense: options.DefenseOption = None,
    noise: Annotated[
        float | None,
        Option(help="Gaussian noise of this standard deviation on every entry, after --defense."),
    ] = None,
    prove_below: Annotated[
        float,
        Option(
            help=(
                "The leakage that every ceiling is held against; exit with 1 where one is not "
                "proven to be below."
            )
        ),
    ] = DEFAULT_LEVEL,
    pairs: Annotated[
        int | None,
        Option(
            help="Pairs of worlds for every sample, of either kind.",
            show_default="until it is decided, at most 256",
        ),
    ] = None,
    observer: Annotated[
        str,
        Option(
            help=(
                "Who looks: server, aggregate:CLIENTS, or outsider:CLIENTS:NOISE with the server's "
                "own noise."
            )
        ),
    ] = "server",
    others: Annotated[
        str | None,
        Option(
            help="Public data that the other clients of a sum are taken to hold: photos (the "
            "embedded ones) or a folder. An estimate then, which proves nothing; without it their "
            "data are granted."
        ),
    ] = None,
    rounds: Annotated[
        int | None, Option(help="Also what is proven after so many such rounds on the same data.")
    ] = None,
    flower_run: Annotated[
        Path | None,
        Option(
            help=(
                "A stored federated run: what is proven of this client's data after each of its "
                "rounds."
            )
        ),
    ] = None,
    presence: Annotated[
        bool,
        Option(
            "--presence", help="Bound as well how well anyone tells whether a sample took part."
        ),
    ] = False,
    loss: Annotated[
        str | None, Option(help="The client's loss, if not cross-entropy: bce, mse or focal:GAMMA.")
    ] = None,
    learning_rate: Annotated[
        float | None, Option("--lr", help="The client's learning rate, for local steps.")
    ] = None,
    local_steps: Annotated[
        int | None, Option(help="How many steps of SGD the client takes, in all epochs together.")
    ] = None,
    epochs: Annotated[int, Option(help="How often the client goes through its samples.")] = 1,
    momentum: Annotated[float, Option(help="The momentum of the client's SGD.")] = 0.0,
    weight_decay: Annotated[float, Option(help="The weight decay of the client's SGD.")] = 0.0,
    eval_mode: options.EvalOption = False,
    buffers: options.BuffersOption = False,
    time_limit: Annotated[
        float | None,
        Option(
            help="Seconds for the pairs of worlds; 0 takes as long as it takes.", show_default="180"
        ),
    ] = None,
    as_json: options.JsonOption = False,
    device: options.DeviceOption = "cpu",
    seed: options.SeedOption = 0,
) -> None:
    """Prove an upper limit of what any attacker reads of each sample, whatever it computes.

    Exit codes: 0 when every sample is proven to be below --prove-below, 1 when that is not proven,
    2 when the input was wrong.
    """
    if rounds is not None and rounds < 1:
        raise UnsumError(f"--rounds counts rounds on the same data, at least 1, not {rounds}.")
    with loading():
        import unsum
        from unsum.defend import parse_defense
    if (
        named.classes is not None
        or named.classes_from is not None
        or named.fresh_head
        or named.download
    ):
        raise UnsumError(
            "--classes, --classes-from, --fresh-head and --download belong to an audit; leave them "
            "out."
        )
    how: dict[str, Any] = {
        "noise": noise,
        "defenses": [parse_defense(text) for text in defense or []],
        "train": not eval_mode,
        "time_limit": options.seconds(time_limit),
        "seed": seed,
        "observer": _observer(observer),
        "presence": presence,
        "loss": loss,
        "learning_rate": learning_rate,
        "local_steps": local_steps,
        "epochs": epochs,
        "momentum": momentum,
        "weight_decay": weight_decay,
        "buffers": buffers,
        "device": options.usable_device(device),
    }
    where: dict[str, Any] = {"batch": batch, "target": given.target, "columns": given.columns}
    where |= {"weights": named.weights, "image_size": named.image_size}
    with stages() as shown:
        if flower_run is not None:
            if others is not None:
                raise UnsumError(
                    "Over stored rounds the other clients' data are granted; leave --others out."
                )
            found, curve = _after_each(
                flower_run, named.model, given.data, where, pairs, how | {"progress": shown}
            )
        else:
            level = prove_below if pairs is None else None
            found = unsum.ceiling(
                named.model,
                given.data,
                level=level,
                pairs=pairs,
                others=others,
                progress=shown,
                **how,
                **where,
            )
            curve = {r: float(found.after(r).max()) for r in _rounds(rounds)}
    proven = found.decided(prove_below) == "below"
    if as_json:
        typer.echo(json.dumps(_plain(found, prove_below, proven, curve), indent=2, allow_nan=False))
    else:
        _show(found, prove_below, proven, curve)
    raise typer.Exit(0 if proven else 1)


def _after_each(
    folder: Path,
    model: str,
    data: str | None,
    where: dict[str, Any],
    pairs: int | None,
    how: dict[str, Any],
) -> tuple[Ceiling, dict[int, float]]:
    """The ceiling after the last of the stored rounds, and the largest one after each."""
    import copy

    import unsum
    from unsum.audit.ceilings import over_rounds
    from unsum.audit.inputs import Inputs
    from unsum.integrations.rounds import fill
    from unsum.integrations.stored import sent_weights

    loading = unsum.Loading(where["weights"], image_size=where["image_size"])
    samples = unsum.ClientSamples(where["batch"], target=where["target"], columns=where["columns"])
    loaded, own = Inputs(
        model, data, loading=loading, samples=samples, seed=how["seed"]
    ).simulated()
    sent = list(sent_weights(folder))
    if not sent:
        raise UnsumError(
            f"{str(folder)!r} holds no round whose weights were stored; give what StoreUpdates "
            "wrote."
        )

    def models() -> Iterator[nn.Module]:
        for _, tensors in sent:
            network = copy.deepcopy(loaded.model)
            fill(network, tensors)
            yield network

    found = over_rounds(models(), own, **({} if pairs is None else {"pairs": pairs}), **how)
    return found[-1], {number: one.highest for (number, _), one in zip(sent, found, strict=True)}


def _observer(text: str) -> Observer:
    from unsum.ceiling import Observer

    kind, *numbers = text.split(":")
    try:
        clients = int(numbers[0]) if numbers else 1
        noise = float(numbers[1]) if len(numbers) > 1 else 0.0
        if len(numbers) > 2:
            raise ValueError
    except ValueError:
        raise UnsumError(
            f"--observer takes server, aggregate:CLIENTS or outsider:CLIENTS:NOISE, not {text!r}."
        ) from None
    return Observer(kind, clients, noise)  # type: ignore[arg-type] # refused there, by name


def _rounds(last: int | None) -> list[int]:
    return [] if last is None else [r for r in _CURVE if r < last] + [last]


def _plain(found: Ceiling, level: float, proven: bool, curve: dict[int, float]) -> dict[str, Any]:
    from unsum.audit.result import finite

    whole = {"level": level, "proven": proven, "decision": found.decided(level)}
    return finite(
        found.to_dict() | whole | {"after_rounds": {str(r): value for r, value in curve.items()}}
    )


def _show(found: Ceiling, level: float, proven: bool, curve: dict[int, float]) -> None:
    from rich.table import Table

    from unsum.audit import ceiling_words
    from unsum.audit.wording import percent

    table = Table(title="What nobody can exceed", title_justify="left")
    table.add_column(found.unit)
    named = {"ceiling": found.samples, "at least": found.lower, "label told apart": found.labels}
    named |= {"one of two told": found.guesses}
    if found.cells is not None:
        named["likeliest cell told"] = found.cells.max(1).values
    if found.present is not None:
        named["presence told"] = found.present
    for name in named:
        table.add_column(name, justify="right")
    for i in range(len(found.samples)):
        table.add_row(str(i + 1), *(percent(float(values[i])) for values in named.values()))
    OUT.print(table)
    for rounds, value in curve.items():
        OUT.print(f"After round {rounds} on the same data: at most {percent(value)}.")
    OUT.print(
        ceiling_words.headline(found, level), style="green" if proven else "yellow", soft_wrap=True
    )
    for sentence in ceiling_words.details(found):
        OUT.print(f"• {sentence}", soft_wrap=True)
