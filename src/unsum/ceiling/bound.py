"""Distances of worlds, measured once, and what they prove under any noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from unsum.ceiling.cells import Cells
from unsum.ceiling.client import Client, Played, World, difference, separated
from unsum.ceiling.coin import Separation
from unsum.ceiling.interval import lower_limit, upper_limit
from unsum.ceiling.others import Cloud
from unsum.ceiling.secret import STRATA, Presence, Secret, TwoWorlds, View, stratum_of
from unsum.defend.added import AddedNoise
from unsum.errors import UnsumError
from unsum.running.deadline import out_of_time

CONFIDENCE = 0.99  # that no sample's limit is below its true ceiling, all samples together
_BITS = 30  # of a seed
# [1] of the doubt, for the largest of all limits; what is left is shared among those of the samples
_TOGETHER = 0.9
_CYCLE = 4  # [draws] of a secret that is gone through, in each round around worlds at random
_SEED = 2**64  # seeds may be negative, and entropy may not

Around = Literal["own", "random"]  # the client's own world, or one whose coins are drawn
Stream = tuple[Around, View]
OWN: Stream = ("own", "whole")


@dataclass(frozen=True)
class Bracket:
    """Between `lower` and `upper` lies the ceiling of a sample; `guess` is the upper limit of the
    largest chance to name one of the two values. `alone` is an upper limit for this sample whatever
    those of others do; the largest of them bounds all samples."""

    lower: float
    upper: float
    guess: float
    pairs: int
    alone: float

    def capped(self, most: float, guess: float = 1.0) -> Bracket:
        """The same where `most` bounds the ceiling as well, and `guess` the chance."""
        lower, upper, alone = (min(value, most) for value in (self.lower, self.upper, self.alone))
        return replace(self, lower=lower, upper=upper, alone=alone, guess=min(self.guess, guess))


@dataclass(eq=False)
class Distances:
    """Of every sample's pairs of worlds, in the order in which they were drawn.

    Pairs are drawn around the client's own world, and around worlds at random: every coin of every
    sample at one of its two values. The mean around worlds at random is what bounds an attacker to
    whom all coins are open. The mean around the client's own world is what bounds one that knows
    all others. Neither is always the larger: a client may be blind to every single step from its
    own samples, or to all samples but its own. The ceiling is the larger of both, and of a picture
    as it is and without its tone.
    """

    client: Client
    world: World
    secrets: Sequence[Secret]
    by_size: bool = False  # keep what Laplace noise needs
    seed: int = 0
    drawn: list[dict[Stream, list[Separation]]] = field(default_factory=list)
    own: list[Played] = field(default_factory=list)  # at most one: of the world as it is
    cloud: Cloud | None = None  # other clients' updates, one of them
    others: int = 0  # [clients] whose sum is unknown
    named: dict[tuple[int, ...], Separation] = field(default_factory=dict)  # pairs drawn before
    _bases: dict[int, tuple[World, list[Played]]] = field(default_factory=dict)  # the last few
    # of so many draws of a sample's stream: a limit takes longer than a small client's gradient
    _taken: dict[tuple[object, ...], Bracket] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.drawn = self.drawn or [{} for _ in self.secrets]

    @property
    def found(self) -> list[list[Separation]]:
        """Of every sample's pairs around the client's own world."""
        return [row.get(OWN, []) for row in self.drawn]

    @property
    def pairs(self) -> int:
        """Of worlds; what two views take from one draw counts once."""
        return sum(self.count(i, around) for i in range(len(self.secrets)) for around in AROUND)

    def count(self, i: int, around: Around) -> int:
        return len(self.drawn[i].get((around, "whole"), []))

    def of_others(self, secrets: Sequence[Secret]) -> Distances:
        """The same client and data with other secrets."""
        return replace(self, secrets=secrets, drawn=[], named={}, _bases={}, _taken={})

    def first(self, i: int) -> Separation:
        """One pair of sample `i`."""
        if not self.found[i]:
            return self._draw(i, 0, "own")["whole"]
        return self.found[i][0]

    def from_random(self, number: int) -> Separation:
        """How far the client's own world lies from one whose coins are all drawn."""
        key = (-1, number)  # no sample's
        if key not in self.named:
            pair = TwoWorlds(self.world, self._base(number))
            self.named[key] = self._apart(pair, self.secrets[0])
        return self.named[key]

    def drawable(self, i: int, around: Around, most: int) -> bool:
        """Whether sample `i` has fewer than `most` pairs around such worlds, and there are more."""
        secret, drawn = self.secrets[i], self.count(i, around)
        if around == "random":
            return secret.many and drawn < most
        return not drawn or (drawn < most and not secret.exhaustive)

    def cycle(self, i: int, around: Around | None = None) -> None:
        """One further draw from every stratum of sample `i`, unless it was gone through already;
        without `around` of both kinds."""
        for kind in AROUND if around is None else (around,):
            if not self.drawable(i, kind, _ANY):
                continue
            several = _CYCLE if kind == "random" and self.secrets[i].exhaustive else None
            first = self.count(i, kind)
            for place in range(several or self.secrets[i].strata):
                for view, separation in self._draw(i, first + place, kind).items():
                    self.drawn[i].setdefault((kind, view), []).append(separation)

    def known(self, i: int, noise: AddedNoise | None, around: Around | None = None) -> Bracket:
        """The limits of sample `i` under this noise; around worlds of one kind, or of both.

        `upper` limits of all samples hold together (a part of the doubt, shared among them). So
        does the largest of their `alone` (the other part): it is wrong only if that of the sample
        with the highest ceiling is, and which sample that is does not depend on the draws. For the
        same reason the larger of several limits bounds the larger of several means with the doubt
        of a single one.
        """
        secret = self.secrets[i]
        every: list[Stream] = [
            (kind, view) for kind in AROUND if kind == "own" or secret.many for view in secret.views
        ]
        streams = [stream for stream in every if around in (None, stream[0])]
        limits = [self._limits(i, stream, noise, len(every)) for stream in streams]
        return Bracket(
            lower=max(one.lower for one in limits),
            upper=max(one.upper for one in limits),
            guess=max(one.guess for one in limits),
            pairs=sum(self.count(i, kind) for kind in {kind for kind, _ in streams}),
            alone=max(one.alone for one in limits),
        )

    def _limits(self, i: int, stream: Stream, noise: AddedNoise | None, streams: int) -> Bracket:
        """Of the mean of one stream; lower limits share the doubt among so many."""
        separations = self.drawn[i].get(stream, [])
        key = (i, stream, len(separations), noise)
        if key not in self._taken:
            self._taken[key] = self._bracket(self.secrets[i], separations, stream, noise, streams)
        return self._taken[key]

    def _bracket(
        self,
        secret: Secret,
        separations: Sequence[Separation],
        stream: Stream,
        noise: AddedNoise | None,
        streams: int,
    ) -> Bracket:
        doubt, size = 1 - CONFIDENCE, len(self.secrets)
        guesses = [2 * one.guess(noise) - 1 for one in separations]
        values = [one.share(noise, secret.amplitude) for one in separations]
        if secret.exhaustive and values and stream[0] == "own":
            mean = float(np.average(values, weights=secret.weights))
            guess = _chance(float(np.average(guesses, weights=_columns(secret))))
            return Bracket(mean, mean, guess, len(values), mean)
        together = 1.0 if size == 1 else _TOGETHER
        each = 1.0 if size == 1 else (1 - _TOGETHER) / size
        return Bracket(
            lower_limit(values, 1 - doubt / size / streams),
            upper_limit(values, 1 - doubt * each),
            _chance(upper_limit(guesses, 1 - doubt / size)),
            len(values),
            upper_limit(values, 1 - doubt * together),
        )

    def repeated(self, rounds: int) -> Distances:
        """Of a client that sends so many updates of the same data, each with its own noise."""
        return self._with(
            [
                {name: [one.repeated(rounds) for one in row] for name, row in rows.items()}
                for rows in self.drawn
            ]
        )

    def joined(self, other: Distances) -> Distances:
        """Of a client that sends both updates, from the same pairs of worlds."""
        return self._with(
            [
                {
                    name: [a + b for a, b in zip(one[name], two[name], strict=False)]
                    for name in one.keys() & two.keys()
                }
                for one, two in zip(self.drawn, other.drawn, strict=True)
            ]
        )

    def means(self, i: int, noise: AddedNoise | None) -> float:
        """The largest mean over the draws of any kind, of sample `i`."""
        amplitude = self.secrets[i].amplitude
        rows = self.drawn[i].values()
        return max(float(np.mean([one.share(noise, amplitude) for one in row])) for row in rows)

    def _with(self, drawn: list[dict[Stream, list[Separation]]]) -> Distances:
        return replace(self, drawn=drawn, _taken={})

    def _draw(self, i: int, number: int, around: Around) -> dict[View, Separation]:
        """Draw `number` of sample `i`, in every view: the same one whatever was drawn of other
        samples. Around worlds at random, all samples share one world for each number."""
        secret, found = self.secrets[i], {}
        world = self.world if around == "own" else self._base(number)
        known = self.named if around == "own" else {}
        for view in secret.views:
            generator = self._generator(i, number, *([] if around == "own" else [1]))
            by_weight = around == "random" and secret.exhaustive
            stratum = stratum_of(secret, generator) if by_weight else number % secret.strata
            pair = secret.draw(stratum, generator, world, view)
            if pair.name not in known or not pair.name:
                known[pair.name] = self._apart(pair, secret)
            found[view] = known[pair.name]
        return found

    def _generator(self, *numbers: int) -> torch.Generator:
        entropy = np.random.SeedSequence([self.seed % _SEED, *numbers]).generate_state(1)
        return torch.Generator().manual_seed(int(entropy[0]) >> (32 - _BITS))

    def _base(self, number: int) -> World:
        """The world at random of this number; the last few stay with their updates."""
        if number not in self._bases:
            world, generator = self.world, self._generator(0, number, 2)
            for secret in self.secrets:
                world = secret.shuffled(world, generator)
            while len(self._bases) >= _KEPT:
                self._bases.pop(next(iter(self._bases)))
            self._bases[number] = world, []
        return self._bases[number][0]

    def _apart(self, pair: TwoWorlds, secret: Secret) -> Separation:
        try:
            one, other = self._play(pair.one), self._play(pair.other)
        except (ValueError, UnsumError):
            if not isinstance(secret, Presence):
                raise
            return Separation(0.0, bare=True)  # without the sample nothing can be trained or sent
        found = replace(separated(one, other, by_size=self.by_size), discrete=pair.discrete)
        if self.cloud is None or found.bare:
            return found
        along = self.cloud.along(difference(one, other))
        return replace(found, hidden=np.stack([along, self.others * self.cloud.variances]))

    def _play(self, world: World) -> Played:
        kept = [(self.world, self.own), *self._bases.values()]
        place = next((played for base, played in kept if base is world), None)
        if place is None:
            return self.client(world)
        if not place:
            place.append(self.client(world))
        return place[0]


AROUND: tuple[Around, Around] = ("own", "random")
_KEPT = STRATA  # [worlds] at random whose updates are kept: those of one cycle, for all samples
_ANY = 2**31  # [pairs] more than anybody draws


def _columns(secret: Secret) -> Sequence[float] | None:
    """Weights that make every cell of a row count alike, whatever its number of alternatives."""
    if not isinstance(secret, Cells) or len(secret.places) == len(secret.schema.columns):
        return None
    columns = [k for k, _ in secret.places]
    return [1 / columns.count(k) for k in columns]


Decided = Callable[[Bracket], bool]


def measure(
    distances: Distances,
    decided: Decided | None,
    noise: AddedNoise | None,
    *,
    most: int,
    settled: Decided | None = None,
    order: Sequence[int] | None = None,
    told: Callable[[int, int], None] = lambda _done, _total: None,
) -> None:
    """Draw until every sample is decided, one sample's limits have `settled` it for all, each has
    `most` pairs, or time is over.

    With a decision to make, pairs around the client's own world come first, one sample after the
    other, in this `order`: one that is made says more than several that are near. Those around
    worlds at random follow, in turns, because all samples share these worlds. With none, all in
    turns. Limits that are taken whenever it stops hold all the same.
    """
    samples = list(order or range(len(distances.secrets)))

    def open_for(i: int, around: Around, cap: float | None) -> bool:
        """Whether a sample needs further pairs of this kind: until it is decided, and around worlds
        at random as many as around its own, so that its limit says something in any case."""
        if decided is None:
            return True
        both = [distances.known(i, noise, kind) for kind in (around, None)]
        shown = [_by_itself(one) if cap is None else one.capped(cap) for one in both]
        made = any(map(decided, shown))
        behind = around == "random" and distances.count(i, "random") < distances.count(i, "own")
        return behind or not made

    def over(i: int) -> bool:
        return settled is not None and settled(distances.known(i, noise))

    def turns() -> Iterator[tuple[int, Around]]:
        if decided is not None:
            for i in samples:  # by itself: enough where all of them are below
                while distances.drawable(i, "own", most) and not decided(
                    _by_itself(distances.known(i, noise, "own"))
                ):
                    yield i, "own"
                if over(i):
                    return
        caps = (None,) if decided is None else (None, True)
        for capped in caps:
            cap = max(distances.known(i, noise).alone for i in samples) if capped else None
            while todo := [
                (i, around)
                for around in AROUND
                for i in samples
                if distances.drawable(i, around, most) and open_for(i, around, cap)
            ]:
                for turn in todo:
                    if over(turn[0]):
                        return
                    yield turn

    for i, around in turns():
        if out_of_time("further pairs of worlds"):
            return
        told(samples.index(i), len(samples))
        distances.cycle(i, around)


def against(level: float) -> Decided:
    """Whether the ceiling is known to be below the level, or at it or above."""
    return lambda limits: limits.upper < level or limits.lower >= level


def above(level: float) -> Decided:
    """Whether the ceiling is known to be at the level or above: one sample settles it for all."""
    return lambda limits: limits.lower >= level


def limits_of(distances: Distances, noise: AddedNoise | None) -> list[Bracket]:
    """Of all samples, which hold together."""
    limits = [distances.known(i, noise) for i in range(len(distances.secrets))]
    cap = max(one.alone for one in limits)
    return [one.capped(cap) for one in limits]


def cells_of(distances: Distances, noise: AddedNoise | None) -> Tensor | None:
    """(B, columns) the largest chance to name the value of each cell of a table, of its own and any
    alternative, by whoever knows all other cells; NaN where not every pair was played.
    """
    rows = []
    for secret, found in zip(distances.secrets, distances.found, strict=True):
        if not isinstance(secret, Cells):
            return None
        row = [math.nan] * len(secret.schema.columns)
        if secret.exhaustive and found:
            for (k, _), one in zip(secret.places, found, strict=True):
                row[k] = max(one.guess(noise), 0.0 if math.isnan(row[k]) else row[k])
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64)


def _by_itself(limits: Bracket) -> Bracket:
    return replace(limits, upper=limits.alone)


def as_tensor(values: Sequence[float]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.float64)


def _chance(advantage: float) -> float:
    return (1 + advantage) / 2
