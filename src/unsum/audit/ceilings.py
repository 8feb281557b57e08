"""`unsum.ceiling`: the upper side of an audit alone, for any model that can be trained."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unsum.audit import groups
from unsum.audit.inputs import Data, Inputs
from unsum.audit.text import is_text, text_inputs
from unsum.ceiling.bound import Distances, above, against, limits_of
from unsum.ceiling.client import Client, OwnLoss, World
from unsum.ceiling.observer import Observer
from unsum.ceiling.prove import MOST, PAIRS, Effort, prove
from unsum.ceiling.result import Ceiling, of_limits
from unsum.ceiling.simulation import Simulation
from unsum.data import Batch, Source, client_batch, embedded_batch, open_data, photo_count, tags
from unsum.data.table_file import is_table
from unsum.data.texts import TextData
from unsum.defend import Defense, Noise
from unsum.errors import UnsumError
from unsum.head import find_head
from unsum.losses import Loss
from unsum.models import DEFAULT_MODEL
from unsum.running.deadline import time_limit as limited_to
from unsum.running.declared import check_seed
from unsum.running.progress import SILENT, Progress

# [s] for the pairs of worlds, unless said otherwise: a ResNet-18 at 224² is decided within it (404
# gradients of 0.6 CPU seconds, on two cores)
LIMIT = 180.0


def ceiling(
    model: nn.Module | str = DEFAULT_MODEL,
    data: Data | TextData | None = None,
    *,
    noise: float | None = None,
    defenses: Defense | Iterable[Defense] = (),
    train: bool = True,
    spread: float | Tensor | None = None,
    time_limit: float | None = None,
    seed: int = 0,
    level: float | None = None,
    pairs: int | None = None,
    observer: Observer | None = None,
    others: Data | None = None,
    presence: bool = False,
    loss: str | Loss | OwnLoss | None = None,
    learning_rate: float | None = None,
    local_steps: int | None = None,
    epochs: int = 1,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    buffers: bool = False,
    client: Client | None = None,
    batch: int | None = None,
    target: str | None = None,
    columns: str | Mapping[str, str] | None = None,
    weights: str | Path | None = None,
    image_size: int | None = None,
    device: torch.device | str | None = None,
    progress: Progress = SILENT,
) -> Ceiling:
    """What nobody can exceed: an upper limit of what any attacker reads of each sample out of one
    update.

    One component of a sample is as it is or mirrored at what an attacker would answer without the
    update; the client trains in both worlds; the distance of the two updates over the noise bounds
    every attacker. Nothing is differentiated or linearized beyond the training itself, so that
    every model that can be trained can be bounded.

    Args:
        model, data: as `unsum.audit` takes them; (inputs, targets) of any shape with a module of
            your own.
        noise: the standard deviation of Gaussian noise on every entry of the update, after
            `defenses`.
        defenses: what the client does to its update, noise among it. What follows the noise counts
            for nothing; without noise the ceiling is 1 unless both worlds send the same bits.
        train: the client's BatchNorm mode.
        spread: the standard deviation that an attacker gives an entry before it sees the update, a
            number
            or a tensor like one sample: entries are two of them further then. By default each
            sample's own distance from what an attacker would answer without the update, so that the
            result is in the unit of `audit.leakages`.
        time_limit: seconds for the pairs of worlds (180 by default; `math.inf` for none).
        level: draw until every sample is known to be below this level, or one of them not to be; at
            most 256 pairs each.
        pairs: instead, so many pairs of worlds for every sample (64 by default), around the
            client's own world and as many around worlds at random.
        observer: who looks: `Observer("aggregate", clients=10)`, `Observer("outsider", clients=10,
            noise=0.1)`; the server by default, which sees this client's update.
        others: public samples that the other clients of a sum are taken to hold: "photos" for the
            embedded photos that are not the client's, a folder of photos (labels beyond the model's
            are counted around), or (inputs, targets). The result is an estimate then and proves
            nothing; without them the others' data are granted to the attacker.
        presence: bound as well how well anyone can tell whether a sample took part.
        loss: what the client minimizes, as for `unsum.audit`, or a function of (what the model
            returns, targets) that gives a number.
        learning_rate, local_steps, epochs, momentum, weight_decay, buffers: how the client trains
            and what it sends, as for `unsum.audit`.
        client: instead, the client itself: a function from a `World` (inputs, targets) to
            `Played(noisy)`, a mapping of tensors before the noise. Any optimizer and any number of
            steps will do.
        batch, target, columns, weights, image_size: of data and models in files, as for
            `unsum.audit`.

    Returns:
        A `Ceiling`: `.samples` (B,) in the unit of `audit.leakages`, `.labels` (B,) the largest
        chance to tell a label from its likeliest alternative, `.pairs` of worlds that this rests
        on.

    Examples:
        >>> import torch, unsum
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Linear(64, 20)
        >>> data = torch.randn(3, 64), torch.tensor([4, 4, 1])
        >>> bool((unsum.ceiling(model, data).samples == 1).all())  # no noise
        True
        >>> bool((unsum.ceiling(model, data, noise=10.0).samples < 0.12).all())
        True
    """
    start = time.perf_counter()
    check(pairs, level, noise, time_limit)
    check_seed(seed)
    chain = [defenses] if callable(defenses) or isinstance(defenses, str) else list(defenses)
    if not all(callable(part) for part in chain):
        raise UnsumError(
            f"Defenses are objects such as unsum.Noise(0.1), or a list of them, not {defenses!r}."
        )
    if not isinstance(observer, Observer | None):
        raise UnsumError(
            f'The observer is an unsum.Observer("aggregate", clients=10), say, not {observer!r}.'
        )
    if isinstance(data, tuple) and len(data) != 2:
        raise UnsumError(f"Data are a pair, (inputs, targets), not a tuple of {len(data)}.")
    case = _case(model, data, batch, target, columns, weights, image_size, loss, seed)
    trains = groups.ClientTraining(
        train, buffers, None, learning_rate, local_steps, epochs, momentum, weight_decay
    )
    training = trains.training
    if case.text and (training is not None or buffers or loss is not None):
        raise UnsumError(
            "A client's text is played as one plain step; leave loss, buffers and local training "
            "out."
        )
    where = torch.device(device or "cpu")
    case = replace(
        case,
        model=case.model.to(where),
        **{name: part.to(where) for name in _TENSORS if (part := getattr(case, name)) is not None},
        train=train,
        training=training,
        buffers=buffers,
        spread=spread,
    )
    if noise:
        chain.append(Noise(noise))
    progress.say("Playing the client in two worlds")
    effort = Effort(presence=presence)
    if pairs is not None:
        effort = replace(effort, pairs=pairs, most=pairs)
    elif level is not None:
        effort = replace(effort, decided=against(level), settled=above(level), most=MOST)
    with limited_to(LIMIT if time_limit is None else time_limit, progress):
        pool = None if others is None else _pool(others, case)
        found = prove(case, chain, observer=observer, effort=effort, client=client, others=pool)
    return replace(found, seconds=time.perf_counter() - start)


def over_rounds(
    models: Iterable[nn.Module], data: Data, *, pairs: int = PAIRS, **how: Any
) -> list[Ceiling]:
    """What nobody can exceed after one round, two rounds, …: of a client that takes part in all of
    them with the same data.

    Squared distances add, from the same pairs of worlds in every round; the noise of each round is
    drawn anew.

    Args:
        models: what the server sent out in each round.
        data, pairs, how: as for `ceiling`.

    Examples:
        >>> import torch
        >>> model, data = torch.nn.Linear(8, 4), (torch.randn(2, 8), torch.tensor([0, 1]))
        >>> one, two = over_rounds([model, model], data, noise=1.0, pairs=8)
        >>> bool((two.samples >= one.samples).all())
        True
    """
    found: list[Ceiling] = []
    together: Distances | None = None
    for model in models:
        one = ceiling(model, data, pairs=pairs, **how)
        if one.distances is None or one.unit == "text":
            raise UnsumError(
                "Rounds are added up for one step each, on photos, tables or other arrays."
            )
        together = one.distances if together is None else together.joined(one.distances)
        seen = one.observer.sees(one.noise)
        rounds = len(found) + 1
        cap = 1.0 if one.worst is None else one.worst.after(rounds).cap(one.discrete)
        limits = [limit.capped(cap) for limit in limits_of(together, seen)]
        added = of_limits(limits, noise=one.noise, unit=one.unit, observer=one.observer)
        worst = None if one.worst is None else one.worst.after(rounds)
        found.append(
            replace(
                added,
                distances=together,
                worst=worst,
                why=one.why,
                seconds=one.seconds,
                discrete=one.discrete,
            )
        )
    return found


def _pool(others: Any, case: Simulation) -> World:
    """Public samples like the client's, which are not the client's own."""
    if isinstance(others, tuple | Batch):
        inputs, targets = others if isinstance(others, tuple) else (others.images, others.targets)
    elif not isinstance(others, str | Path) or case.unit != "picture":
        raise UnsumError(
            'Other clients\' data are "photos", a folder of photos, or (inputs, targets).'
        )
    else:
        classes, side = find_head(case.model)[1].out_features, case.inputs.shape[-1]
        if others == "photos":
            fewer = classes if classes < len(tags()) else None
            batch = embedded_batch(photo_count(), image_size=side, classes=fewer)
        else:
            source = open_data(others)
            if not isinstance(source, Source):
                raise UnsumError(
                    'Other clients\' data are "photos", a folder of photos, or (inputs, targets).'
                )
            batch = client_batch(source, min(len(source.names), _POOL), image_size=side)
        inputs, targets = batch.images, batch.targets % classes
    own = case.inputs.cpu()
    if inputs.shape[1:] == own.shape[1:]:
        new = [i for i, row in enumerate(inputs) if not any(torch.equal(row, mine) for mine in own)]
        inputs, targets = inputs[new], targets[new]
    if (
        inputs.shape[1:] != own.shape[1:]
        or targets.shape[1:] != case.targets.shape[1:]
        or len(inputs) < 2
    ):
        raise UnsumError(
            "Other clients hold samples like this client's, at least two that are not its own."
        )
    return World(inputs.to(case.inputs), targets.to(case.targets))


_POOL = 256  # [photos] of a folder that other clients' samples are drawn from
_TENSORS = ("inputs", "targets", "mask", "segments")


def check(
    pairs: int | None, level: float | None, noise: float | None, time_limit: float | None
) -> None:
    """Refuse figures that say nothing."""
    if pairs is not None and pairs < 1:
        raise UnsumError(
            f"A ceiling rests on pairs of worlds, at least 1 for each sample, not {pairs}."
        )
    if level is not None and not 0 < level < 1:
        raise UnsumError(f"The level is a leakage between 0 and 1, not {level:g}.")
    if noise is not None and not 0 <= noise < float("inf"):
        raise UnsumError(f"Noise needs a standard deviation of at least 0, not {noise}.")
    if time_limit is not None and not time_limit > 0:
        raise UnsumError(f"The time limit must be positive, not {time_limit}.")


def _case(
    model: nn.Module | str,
    data: Any,
    batch: int | None,
    target: str | None,
    columns: str | Mapping[str, str] | None,
    weights: str | Path | None,
    image_size: int | None,
    loss: Any,
    seed: int,
) -> Simulation:
    """The client's samples, as the audit would take them; a module with tensors needs no head."""
    own_tensors = isinstance(model, nn.Module) and isinstance(data, tuple)
    declared = loss if loss is None or isinstance(loss, str | Loss) else None
    loading = groups.Loading(weights, image_size=image_size)
    samples = groups.ClientSamples(batch, target=target, columns=columns)
    inputs = Inputs(model, data, None, loading, samples, declared, seed)
    if not is_table(data) and _reads_text(model, data):
        given = text_inputs(inputs)
        tokens, labels, mask, segments = given.step
        return Simulation(
            given.loaded.model, tokens, labels, text=True, mask=mask, segments=segments, seed=seed
        )
    if own_tensors:
        return Simulation(model, data[0], data[1], loss=loss, seed=seed)  # type: ignore[arg-type]
    loaded, own = inputs.simulated()
    return of_batch(loaded.model, own, loss=loss, seed=seed)


def of_batch(model: nn.Module, batch: Batch, **how: Any) -> Simulation:
    return Simulation(model, batch.images, batch.targets, schema=batch.schema, **how)


def _reads_text(model: nn.Module | str, data: Any) -> bool:
    """Whether the model is a language model; one with targets of its own is played as any other."""
    return not (isinstance(data, tuple) and isinstance(model, nn.Module)) and is_text(model)
