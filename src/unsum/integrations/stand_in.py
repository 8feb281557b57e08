"""What nobody can exceed of a client over the rounds of a training, from data that stand in for its
own.

A server holds no client's samples. Somebody who has data of the kind plays a client with these on
the weights that every round sent out, under the noise that clients are declared to add. Squared
distances of worlds add over rounds, from the same pairs of worlds in each. The figure is of a
client that takes part in every round with the same data; one that misses some gives away no more.
"""

from __future__ import annotations

import copy
import math
import os
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from unsum.audit.ceilings import ceiling
from unsum.audit.many.workers import process_context
from unsum.audit.round_ceiling import RoundCeiling
from unsum.audit.sweep.bench import shown
from unsum.ceiling import Ceiling
from unsum.ceiling.bound import Distances
from unsum.ceiling.prove import PAIRS
from unsum.ceiling.result import UNNOISED
from unsum.client.step import in_mode
from unsum.data import Batch
from unsum.defend import Defense
from unsum.errors import UnsumError, first_line
from unsum.integrations.rounds import fill
from unsum.local_training import LocalTraining
from unsum.running.declared import check_positive

SECONDS = 10.0  # [s] for the pairs of worlds of one round
BEHIND = 16  # rounds whose weights wait to be played; more would take memory without end


@dataclass(frozen=True, eq=False)
class StandIn:
    """A client with data like the clients': (inputs, targets) or a `Batch`, what it does to its
    update (noise in units of a gradient), and how it trains.
    """

    data: Any
    defenses: Sequence[Defense] = ()
    training: LocalTraining | None = None
    train: bool = True
    seconds: float = SECONDS
    seed: int = 0

    def __post_init__(self) -> None:
        check_positive("The time for the ceiling of a round", self.seconds)
        pair = self.data if isinstance(self.data, tuple) else (self.data,)
        if not isinstance(self.data, Batch) and [isinstance(part, Tensor) for part in pair] != [
            True,
            True,
        ]:
            raise UnsumError(
                "Data that stand in are (inputs, targets), two tensors with a row for each sample."
            )
        if not len(self.inputs) or (len(pair) == 2 and len(pair[0]) != len(pair[1])):
            raise UnsumError(
                "Data that stand in need as many targets as inputs, at least one of each."
            )
        known = self.training
        if known is not None and known.several_steps and known.learning_rate is None:
            raise UnsumError(
                "A stand-in client of several local steps needs a learning rate; give "
                "LocalTraining(learning_rate=…)."
            )

    @property
    def inputs(self) -> Any:
        return self.data[0] if isinstance(self.data, tuple) else self.data.images

    def play(self, model: nn.Module) -> Ceiling:
        """Of one round; `model` holds the weights that were sent."""
        found = ceiling(
            model,
            self.data,
            defenses=self.defenses,
            train=self.train,
            time_limit=self.seconds,
            seed=self.seed,
            pairs=PAIRS,
            **self._steps(),
        )
        if found.unit == "text":
            raise UnsumError(
                "Rounds are added up on photos, tables or other arrays; texts have no such pairs."
            )
        return found

    def _steps(self) -> dict[str, Any]:
        """How it trains, as `ceiling` takes it; one step is played as its gradient."""
        known, count = self.training, len(self.inputs)
        steps = None if known is None else known.steps
        if known is not None and steps is None and known.batch_size is not None:
            steps = known.epochs * math.ceil(count / known.batch_size)
        if known is None or (steps or 1) == 1:
            return {}
        told = ("learning_rate", "epochs", "momentum", "weight_decay")
        return {name: getattr(known, name) for name in told} | {"local_steps": steps}


def _unplayed(number: int, error: Exception) -> str:
    why = (
        str(error)
        if isinstance(error, UnsumError)
        else f"{type(error).__name__}: {first_line(error)}"
    )
    return f"Round {number} could not be played. {why}"


class OverRounds:
    """Round after round; what could not be played is granted whole from there on."""

    def __init__(self, model: nn.Module, client: StandIn) -> None:
        self._model, self._client = copy.deepcopy(model).cpu(), client
        self._together: Distances | None = None
        self._rounds, self._lost = 0, ""

    def add(self, number: int, weights: Mapping[str, Any] | None) -> RoundCeiling:
        """What nobody can exceed after this round as well, in which `weights` were sent out; None
        where they are lost."""
        start = time.perf_counter()
        self._rounds += 1
        found: Ceiling | None = None
        if not self._lost:
            try:
                found = self._added(weights)
            except Exception as error:
                self._lost = _unplayed(number, error)
        seconds = time.perf_counter() - start
        if found is None:
            return RoundCeiling(number, self._rounds, 1.0, 0, seconds, self._lost)
        size = len(self._client.inputs)
        return RoundCeiling(
            number, self._rounds, found.highest, found.pairs, seconds, found.why, size
        )

    def _added(self, weights: Mapping[str, Any] | None) -> Ceiling:
        if weights is None:
            raise UnsumError("The weights that were sent to everybody are not known.")
        fill(self._model, weights)
        if _bare_buffers(self._model, self._client, weights):
            raise UnsumError(UNNOISED)
        one = self._client.play(self._model)
        worst = None if one.worst is None else one.worst.after(self._rounds)
        cap = 1.0 if worst is None else worst.cap(one.discrete)
        if one.distances is None:  # noise in every local step: the mechanism's own bound
            return replace(one, samples=torch.full_like(one.samples, cap), worst=worst)
        self._together = (
            one.distances if self._together is None else self._together.joined(one.distances)
        )
        added = replace(one, distances=self._together).under(one.noise)
        return replace(added, samples=added.samples.clamp_max(cap), worst=worst, why=one.why)


def _bare_buffers(model: nn.Module, client: StandIn, weights: Mapping[str, Any]) -> bool:
    """Whether buffers are sent along that depend on the samples: noise on the update does not reach
    them."""
    own = {name for name, value in model.named_buffers() if value.is_floating_point()}
    sent = own & weights.keys() or (own if len(weights) == len(model.state_dict()) else set())
    if not client.train or not sent:
        return False
    before = {name: value.clone() for name, value in model.named_buffers()}
    with in_mode(model, client.train), torch.no_grad():
        model(client.inputs)
        return any(
            not torch.equal(value, before[name])
            for name, value in model.named_buffers()
            if name in sent
        )


class Beside:
    """The curve in a process of its own: `offer` never waits, `ready` gives what has come, `finish`
    waits."""

    def __init__(self, model: nn.Module, client: StandIn) -> None:
        try:
            self._task = pickle.dumps((model, client))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise UnsumError(
                f"The model cannot be sent to another process ({error}); define it in a file that "
                "can be imported, or leave data= out."
            ) from error
        self._pool: ProcessPoolExecutor | None = None
        self._waiting: list[tuple[int, int, Future[RoundCeiling]]] = []  # round, how many so far
        self._rounds, self._lost, self._seconds = 0, "", client.seconds

    def offer(
        self, number: int, weights: Callable[[], Mapping[str, Tensor]], lost: str = ""
    ) -> None:
        """One more round. `lost` says why it cannot be played; `weights` are read only where it
        can."""
        self._rounds += 1
        behind = sum(not future.done() for *_, future in self._waiting) >= BEHIND
        self._lost = (
            self._lost or lost or (f"Ceilings were {BEHIND} rounds behind." if behind else "")
        )
        future: Future[RoundCeiling] = Future()
        try:
            future = self._submitted(number, weights) if not self._lost else future
        except Exception as error:  # its process was killed, say
            self._lost = _unplayed(number, error)
        if self._lost:
            future.set_result(self._granted(number, self._rounds))
        self._waiting.append((number, self._rounds, future))

    def _submitted(
        self, number: int, weights: Callable[[], Mapping[str, Tensor]]
    ) -> Future[RoundCeiling]:
        if self._pool is None:
            how: dict[str, Any] = {"initializer": _begin, "initargs": (self._task,)}
            self._pool = ProcessPoolExecutor(1, mp_context=process_context(), **how)
        # shared memory may be scarce
        plain = {name: value.numpy() for name, value in weights().items()}
        return self._pool.submit(_add, number, plain)

    def ready(self) -> list[RoundCeiling]:
        found = []
        while self._waiting and self._waiting[0][2].done():
            found.append(self._taken(0.0))
        return found

    def finish(self) -> list[RoundCeiling]:
        """Those that were still to come: each has its seconds, and as many again to begin and to
        end."""
        found = []
        while self._waiting:
            found.append(self._taken(2 * self._seconds + _BEGIN))
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
        return found

    def _taken(self, seconds: float) -> RoundCeiling:
        number, rounds, future = self._waiting.pop(0)
        try:
            return future.result(seconds)
        except Exception as error:  # the process was killed, or it does not answer
            self._lost = self._lost or _unplayed(number, error)
            return self._granted(number, rounds)

    def _granted(self, number: int, rounds: int) -> RoundCeiling:
        return RoundCeiling(number, rounds, 1.0, 0, 0.0, self._lost)


_BEGIN = 60.0  # [s] in which a process imports PyTorch on a busy machine
_NICE = 10  # the training goes first
_PLAYED: list[OverRounds] = []  # of the process that plays


def _begin(task: bytes) -> None:
    if hasattr(os, "nice"):  # not on Windows
        os.nice(_NICE)
    torch.set_num_threads(1)
    _PLAYED[:] = [OverRounds(*pickle.loads(task))]


def _add(number: int, weights: Mapping[str, Any]) -> RoundCeiling:
    return _PLAYED[0].add(number, weights)


def declared_by(client: StandIn) -> str:
    """What it does to its update, in words."""
    return shown(client.defenses) if client.defenses else "no defense"


def like_this_one(
    model: nn.Module, client: StandIn, rounds: Sequence[int], *, bare: bool
) -> list[RoundCeiling]:
    """The curve of rounds whose weights are not known one by one: each is taken to be like `model`.

    `bare`: what was captured holds buffers of the batch, which no noise hides.
    """
    start, size = time.perf_counter(), len(client.inputs)
    if bare:
        return [
            RoundCeiling(number, 1 + i, 1.0, 0, 0.0, UNNOISED, size)
            for i, number in enumerate(rounds)
        ]
    try:
        one = client.play(copy.deepcopy(model).cpu())
    except Exception as error:
        why = _unplayed(rounds[0], error)
        return [
            RoundCeiling(number, 1 + i, 1.0, 0, 0.0, why, size) for i, number in enumerate(rounds)
        ]
    seconds = time.perf_counter() - start
    highest = [float(one.after(1 + i).max()) if i else one.highest for i in range(len(rounds))]
    told = one.pairs, seconds, one.why, size
    return [RoundCeiling(number, 1 + i, highest[i], *told) for i, number in enumerate(rounds)]
