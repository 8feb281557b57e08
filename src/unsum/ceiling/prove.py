"""From a client, its data and its defenses to a ceiling for every sample."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from unsum.ceiling.alternatives import (
    changeable,
    every_label,
    likeliest_tokens,
    other_labels,
)
from unsum.ceiling.bits import bits_sent, leakage_of_bits
from unsum.ceiling.bound import Decided, Distances, as_tensor, cells_of, limits_of, measure
from unsum.ceiling.client import Client, OwnClient, OwnLoss, SimulatedClient, TextClient, World
from unsum.ceiling.coin import Separation
from unsum.ceiling.observer import Observer
from unsum.ceiling.others import UPDATES, cloud_of
from unsum.ceiling.result import (
    BARE,
    BARE_SUM,
    EVERY_STEP,
    UNNOISED,
    UNSEEN,
    Ceiling,
    Unit,
    hidden,
    of_limits,
)
from unsum.ceiling.secret import (
    AnyOf,
    Cells,
    Components,
    Entries,
    Label,
    Presence,
    Secret,
    Tokens,
)
from unsum.ceiling.worst_case import WorstCase, worst_case
from unsum.client.step import AnyDefense, InsideClient
from unsum.data.table_schema import TableSchema
from unsum.defend.added import AddedNoise, ends_in_a_function, split_at_noise
from unsum.errors import UnsumError
from unsum.local_training import LocalTraining
from unsum.losses import Loss
from unsum.photos import photo_spread
from unsum.score.reference import diverse_samples, guess, public_picture

PAIRS = 64  # [pairs of worlds a sample] where nothing is to be decided: draws of 0 prove 7 to 9 %
MOST = 256  # [pairs of worlds a sample] at most: equal draws then prove 2 or 3 %
_LOOKS = 4  # [worlds] at random that a client without noise is held against
_SMALLEST = 4  # pixels: smaller pictures have no spectrum to speak of


@dataclass(frozen=True, eq=False)
class Simulation:
    """A client whose samples are bounded; inputs and targets have one row a sample.

    `spread` is the deviation that an attacker gives an entry before it sees the update, a number or
    a tensor like one sample. By default it is each sample's own distance from what an attacker
    guesses without the update, so that limits are in the unit of the leakage.
    """

    model: nn.Module
    inputs: Tensor
    targets: Tensor
    train: bool = True
    training: LocalTraining | None = None
    loss: str | Loss | OwnLoss | None = None
    buffers: bool = False
    spread: float | Tensor | None = None
    schema: TableSchema | None = None
    text: bool = False
    mask: Tensor | None = None
    segments: Tensor | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.inputs) == 0 or len(self.inputs) != len(self.targets):
            raise UnsumError(
                f"A batch needs as many targets as inputs; found {len(self.inputs)} inputs and "
                f"{len(self.targets)} targets."
            )
        if self.inputs.is_floating_point() and not bool(self.inputs.isfinite().all()):
            raise UnsumError(
                "Inputs hold NaN or infinity; leave these samples out or fill them in."
            )
        if self.buffers and self.training is not None and self.training.several_steps:
            raise UnsumError(
                "A client of several local steps is played without its buffers; leave buffers out, "
                "or give the client (client=), which returns them as Played(noisy, bare)."
            )

    @cached_property
    def world(self) -> World:
        return World(self.inputs, self.targets, self.mask, self.segments)

    @property
    def unit(self) -> Unit:
        if self.text:
            return "text"
        if self.schema is not None:
            return "row"
        return "picture" if self._photos else "sample"

    @property
    def discrete(self) -> bool:
        """Whether a part of a sample is right or wrong: a token, a category."""
        if self.schema is None:
            return self.text
        return any(column.kind != "number" for column in self.schema.columns)

    def client(self, played: Sequence[AnyDefense]) -> Client:
        """With the defenses up to the noise."""
        if self.text:
            return TextClient(self.model, self.train, tuple(played), self.seed)
        return SimulatedClient(
            self.model, self.train, self.training, self.loss, tuple(played), self.buffers, self.seed
        )

    def secrets(self) -> list[Secret]:
        """One for every sample: a component, a cell, a token or an entry of it."""
        samples, world = range(len(self.inputs)), self.world
        if self.text:
            likeliest = likeliest_tokens(
                self.model, self.inputs, self.mask, self.targets, seed=self.seed
            )
            places = [
                changeable(self.model, self.inputs, self.mask, self.targets, i) for i in samples
            ]
            return [Tokens(world, i, likeliest, places[i]) for i in samples]
        if self.spread is not None:
            return [Entries(world, i, self._declared_spread) for i in samples]
        if not self.inputs.is_floating_point():
            raise UnsumError(
                "Inputs that are whole numbers cannot move up or down; give floats, or a language "
                "model that reads them."
            )
        if self.schema is not None:
            return [Cells(world, i, self.schema, self._guess[i]) for i in samples]
        return [Components(world, i, self._guess[i], self._photos) for i in samples]

    def labels(self) -> list[Secret] | None:
        """One for every sample, or None where targets are no classes."""
        if self.text and self.targets.ndim != 1:
            return None
        others = other_labels(self.model, self.inputs, self.targets)
        return (
            None
            if others is None
            else [Label(self.world, i, [other]) for i, other in enumerate(others)]
        )

    def labels_of_any_kind(self) -> list[Secret] | None:
        """One for every sample, against all other labels, or many of them."""
        every = (
            None
            if self.text and self.targets.ndim != 1
            else every_label(self.model, self.inputs, self.targets)
        )
        if every is None:
            return None
        return [Label(self.world, i, others) for i, others in enumerate(every)]

    @property
    def deviations(self) -> Tensor:
        """(…) like one sample's components, in any unit: what bits are spent on."""
        if self.spread is not None:
            return self._declared_spread
        return photo_spread(self.inputs.shape[1:]) if self._photos else self._own_spread

    @property
    def _declared_spread(self) -> Tensor:
        shape = self.inputs.shape[1:]
        spread = torch.as_tensor(self.spread, dtype=torch.float64)
        if not self.inputs.is_floating_point():
            raise UnsumError("A spread is for inputs that are floats; whole numbers have none.")
        if spread.ndim and spread.shape != shape:
            raise UnsumError(
                f"The spread is one number or like one sample, {tuple(shape)}, not "
                f"{tuple(spread.shape)}."
            )
        if not bool((spread >= 0).all() & spread.isfinite().all() & (spread > 0).any()):
            raise UnsumError(
                "The spread is an entry's standard deviation: at least 0, and not 0 everywhere."
            )
        return spread.expand(shape)

    @property
    def _photos(self) -> bool:
        shape = self.inputs.shape
        pictures = self.inputs.ndim == 4 and shape[1] in (1, 3) and min(shape[2:]) >= _SMALLEST
        return pictures and self.inputs.is_floating_point() and self.spread is None

    @cached_property
    def _guess(self) -> Tensor:
        """(B, n) the zero of the scale of leakage: what an attacker answers without the update."""
        public = public_picture(self.inputs)
        return guess(self.inputs, public, diverse_samples(self.inputs, public))

    @property
    def _own_spread(self) -> Tensor:
        """Over the batch, entry by entry; that of all entries where one is the same everywhere."""
        rows = self.inputs.double()
        whole = rows.std(unbiased=False).clamp_min(1e-12)
        own = rows.std(0, unbiased=False) if len(rows) > 1 else torch.zeros_like(rows[0])
        return torch.where(own > 0, own, whole)


@dataclass(frozen=True)
class Effort:
    """How long to draw. `decided` ends a sample's draws; by default so many pairs do. `settled`
    ends those of all samples, once one sample's limits say enough."""

    decided: Decided | None = None
    settled: Decided | None = None
    pairs: int = PAIRS
    most: int = MOST
    together: bool = False  # bound the mean over the samples instead of every sample
    labels: bool = True
    every_label: bool = False  # also against all others, where the likeliest hides every label
    presence: bool = False
    told: Callable[[int, int], None] = lambda _done, _total: None


def prove(
    case: Simulation,
    defenses: Sequence[AnyDefense] = (),
    *,
    observer: Observer | None = None,
    effort: Effort | None = None,
    client: Client | None = None,
    others: World | None = None,
) -> Ceiling:
    """The ceiling of every sample under these defenses."""
    return Prover(case, observer or Observer(), effort or Effort(), client, others)(defenses)


@dataclass(eq=False)
class Prover:
    """Ceilings of one client under any number of defenses.

    Distances do not depend on the noise: they are measured once for all defenses that do the same
    before it. `others` is a public pool that other clients' samples are taken to come from; without
    it they are granted.
    """

    case: Simulation
    observer: Observer = field(default_factory=Observer)
    effort: Effort = field(default_factory=Effort)
    client: Client | None = None
    others: World | None = None
    _measured: list[tuple[Sequence[AnyDefense], bool, _Measured]] = field(default_factory=list)

    def __call__(self, defenses: Sequence[AnyDefense] = ()) -> Ceiling:
        start = time.perf_counter()
        case, observer, size = self.case, self.observer, len(self.case.inputs)
        played, noise = split_at_noise(defenses, size)
        seen, training = observer.sees(noise), case.training
        visits = training.epochs if training is not None and training.several_steps else 0
        if ends_in_a_function(defenses, size):
            return _by_mechanism(case, None, observer, None, UNSEEN)
        worst = worst_case(defenses, size, visits, observer)
        if case.buffers or self.client is not None:
            worst = None  # parts of what is sent may pass by the clip
        cap = 1.0 if worst is None else worst.cap(case.discrete)
        if visits and noise is not None and noise.every_step:
            return _by_mechanism(case, noise, observer, worst, EVERY_STEP)
        measured = self._distances(played, by_size=seen is not None and seen.kind == "laplace")
        found, bare = measured.samples, _bare(measured.samples, seen)
        # First, because they are few: a pair for each sample, where its components take tens.
        guesses: dict[str, Any] = {
            name: _guesses(measured.others[name], seen)
            for name in ("labels", "present")
            if name in measured.others
        }
        if "present" in guesses and split_at_noise(defenses, size - 1)[1] != noise:
            guesses["present"] = torch.ones_like(
                guesses["present"]
            )  # how loud it is shows who is there
        if self.effort.every_label and "labels" in guesses and hidden(guesses["labels"]):
            guesses["any_label"] = self._any_label(measured, seen, guesses["labels"])
        if not bare:
            effort, decided = self.effort, self.effort.decided
            ends = None if decided is None else _with_cap(decided, cap)
            most = effort.pairs if decided is None else effort.most
            order = _most_exposed_first(measured)
            how: dict[str, Any] = {"settled": effort.settled, "order": order, "told": effort.told}
            measure(found, ends, seen, most=most, **how)
        guess = 1.0 if worst is None else worst.guess
        limits = [one.capped(cap, guess) for one in limits_of(found, seen)]
        result = of_limits(limits, noise=noise, unit=case.unit, observer=observer)
        cells = None if bare else cells_of(found, seen)
        guesses |= {} if cells is None else {"cells": cells}
        # A clip and noise bound a guess of one sample's label or cell, but not of who took part.
        guesses = {
            name: value if name == "present" else value.clamp_max(guess)
            for name, value in guesses.items()
        }
        estimate = "" if found.cloud is None else self._estimate()
        result = replace(
            result, distances=found, worst=worst, estimate=estimate, discrete=case.discrete
        )
        if bare:
            bits = _by_bits(case, found.client, defenses)
            result = replace(result, why=bare, lower=result.samples, by_bits=bits)
        return replace(result, **guesses, seconds=time.perf_counter() - start)

    def _any_label(
        self, measured: _Measured, noise: AddedNoise | None, likeliest: Tensor
    ) -> Tensor:
        """The largest chance to tell each label from any of the others, or of many of them."""
        secrets = self.case.labels_of_any_kind() or []
        if not any(secret.strata for secret in secrets):
            return likeliest  # there is no other one
        if "any label" not in measured.others:
            measured.others["any label"] = measured.samples.of_others(secrets)
        distances = measured.others["any label"]
        measure(distances, None, noise, most=1)
        rows = zip(distances.secrets, distances.found, likeliest.tolist(), strict=True)
        return as_tensor(
            [
                max([first, *(one.guess(noise) for one in row)])
                if len(row) == secret.strata
                else 1.0
                for secret, row, first in rows
            ]
        )

    def _clouded(self, by_size: bool) -> bool:
        """Whether other clients' sum is unknown; beside Laplace noise they are granted."""
        if self.others is None:
            return False
        if self.observer.clients < 2 or self.case.text:
            raise UnsumError(
                "Other clients hide something in a sum alone, of photos, tables or arrays; name "
                "the observer with at least two clients: aggregate:10."
            )
        return not by_size

    def _estimate(self) -> str:
        assert self.others is not None
        pool, each = len(self.others.inputs), len(self.case.inputs)
        return (
            "An estimate that proves nothing: the samples of the other "
            f"{self.observer.clients - 1} clients are taken to be unknown, and their sum to be "
            f"Gaussian, with the covariance of {UPDATES} updates of {each} out of {pool} public "
            "samples each."
        )

    def _distances(self, played: Sequence[AnyDefense], *, by_size: bool) -> _Measured:
        for before, sizes, measured in self._measured:
            if sizes == by_size and _do_the_same(before, played):
                return measured
        case = self.case
        own = None if self.client is None else OwnClient(self.client, played, case.seed)
        sender = own or case.client(played)
        secrets = case.secrets()
        secrets = [AnyOf(secrets)] if self.effort.together else secrets
        samples = Distances(sender, case.world, secrets, by_size, case.seed)
        if self._clouded(by_size):
            assert self.others is not None
            cloud = cloud_of(sender, self.others, len(case.inputs), seed=case.seed)
            samples = replace(samples, cloud=cloud, others=self.observer.clients - 1)
        others: dict[str, Distances] = {}
        if self.effort.labels and (labels := case.labels()) is not None:
            others["labels"] = samples.of_others(labels)
        if self.effort.presence and len(case.inputs) > 1:
            others["present"] = samples.of_others(
                [Presence(case.world, i) for i in range(len(case.inputs))]
            )
        measured = _Measured(samples, others)
        self._measured.append((played, by_size, measured))
        return measured


def _do_the_same(one: Sequence[AnyDefense], other: Sequence[AnyDefense]) -> bool:
    """Whether two chains of defenses are equal; functions and what holds tensors only if they are
    the very same."""

    def plain(part: AnyDefense) -> bool:
        return isinstance(part, InsideClient) and all(
            isinstance(value, int | float | str | None) for value in vars(part).values()
        )

    def same(a: AnyDefense, b: AnyDefense) -> bool:
        equal = type(a) is type(b) and plain(a) and plain(b)
        return a is b or (equal and vars(a) == vars(b))

    return len(one) == len(other) and all(map(same, one, other))


@dataclass(frozen=True, eq=False)
class _Measured:
    """Distances before the noise: of the samples, of their `labels`, and of who is `present`."""

    samples: Distances
    others: dict[str, Distances]


def _with_cap(decided: Decided, cap: float) -> Decided:
    """What ends the draws of a sample; what the mechanism proves needs no pair of worlds."""
    return lambda limits: decided(limits.capped(cap))


def _most_exposed_first(measured: _Measured) -> list[int]:
    """Samples whose labels move the update the most, so that one above the level is met early."""
    samples, labels = range(len(measured.samples.secrets)), measured.others.get("labels")
    if labels is None or len(labels.secrets) != len(samples):
        return list(samples)
    moved = [
        sum(one.squared for one in pairs) for pairs in labels.found
    ]  # none where time was over
    return sorted(samples, key=lambda i: -moved[i])


def _bare(distances: Distances, noise: AddedNoise | None) -> str:
    """Why nothing is to be measured: no noise, and worlds that send other bits; or empty.

    Without noise a client that sends the same bits in the first pair is also held against worlds
    whose coins are all drawn: it may be blind to each single step and not to all of them together.
    """

    def differs(one: Separation) -> bool:
        return one.bare if noise is not None else not one.same

    looks = range(1 if noise is not None else _LOOKS)
    if differs(distances.first(0)) or any(differs(distances.from_random(n)) for n in looks):
        return UNNOISED if noise is not None else BARE if distances.cloud is None else BARE_SUM
    return ""


def _guesses(distances: Distances, noise: AddedNoise | None) -> Tensor:
    """The largest chance to name each secret's value."""
    measure(distances, None, noise, most=1)
    return as_tensor([one.guess for one in limits_of(distances, noise)])


def _by_mechanism(
    case: Simulation,
    noise: AddedNoise | None,
    observer: Observer,
    worst: WorstCase | None,
    why: str,
) -> Ceiling:
    """The mechanism's own bound, or none: without pairs of worlds."""
    size = len(case.inputs)
    value, guess = (1.0, 1.0) if worst is None else (worst.cap(case.discrete), worst.guess)
    same = as_tensor([value] * size)
    return Ceiling(
        samples=same,
        labels=as_tensor([guess] * size),
        pairs=0,
        lower=torch.zeros(size, dtype=torch.float64),
        guesses=as_tensor([guess] * size),
        noise=noise,
        unit=case.unit,
        observer=observer,
        worst=worst,
        discrete=case.discrete,
        why=why,
    )


def _by_bits(case: Simulation, client: Client, defenses: Sequence[AnyDefense]) -> float:
    """The share of a sample that the bits of the whole update can hold, on average."""
    if case.text or case.schema is not None:
        return math.nan
    sent = client(case.world)
    sizes = {name: tensor.numel() for name, tensor in sent.noisy.items()}
    each = max(8.0 * tensor.element_size() for tensor in sent.noisy.values())
    beside = each * sum(tensor.numel() for tensor in sent.bare.values())
    bits = bits_sent(sizes, defenses, each=each) + beside
    return leakage_of_bits(case.deviations, bits / len(case.inputs))
