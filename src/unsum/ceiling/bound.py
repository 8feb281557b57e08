"""Distances of worlds, measured once, and what they prove under any noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from unsum.ceiling.client import Client, Played, World, difference, separated
from unsum.ceiling.coin import Separation
from unsum.ceiling.interval import lower_limit, upper_limit
from unsum.ceiling.others import Cloud
from unsum.ceiling.secret import Presence, Secret, TwoWorlds
from unsum.defend.added import AddedNoise
from unsum.errors import UnsumError
from unsum.running.deadline import out_of_time

CONFIDENCE = 0.99  # that no sample's limit is below its true ceiling, all samples together
_BITS = 30  # of a seed


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

    def capped(self, most: float) -> Bracket:
        """The same where `most` bounds the ceiling as well."""
        lower, upper, alone = (min(value, most) for value in (self.lower, self.upper, self.alone))
        return replace(self, lower=lower, upper=upper, alone=alone)


@dataclass(eq=False)
class Distances:
    """Of every sample's pairs of worlds, in the order in which they were drawn."""

    client: Client
    world: World
    secrets: Sequence[Secret]
    by_size: bool = False  # keep what Laplace noise needs
    seed: int = 0
    found: list[list[Separation]] = field(default_factory=list)
    own: list[Played] = field(default_factory=list)  # at most one: of the world as it is
    cloud: Cloud | None = None  # other clients' updates, one of them
    others: int = 0  # [clients] whose sum is unknown
    named: dict[tuple[int, ...], Separation] = field(default_factory=dict)  # pairs drawn before

    def __post_init__(self) -> None:
        self.found = self.found or [[] for _ in self.secrets]

    @property
    def pairs(self) -> int:
        return sum(map(len, self.found))

    def of_others(self, secrets: Sequence[Secret]) -> Distances:
        """The same client and data with other secrets."""
        return replace(self, secrets=secrets, found=[], named={})

    def first(self, i: int) -> Separation:
        """One pair of sample `i`."""
        if not self.found[i]:
            return self._separation(i, 0)
        return self.found[i][0]

    def cycle(self, i: int) -> None:
        """One further draw from every stratum of sample `i`, unless it was gone through already."""
        secret, known = self.secrets[i], self.found[i]
        if secret.exhaustive and known:
            return
        known += [self._separation(i, len(known) + place) for place in range(secret.strata)]

    def known(self, i: int, noise: AddedNoise | None) -> Bracket:
        """The limits of sample `i` under this noise.

        `upper` limits of all samples hold together (half of the doubt, shared among them). So does
        the largest of their `alone` (the other half): it is wrong only if that of the sample with
        the highest ceiling is, and which sample that is does not depend on the draws.
        """
        secret, doubt, size = self.secrets[i], 1 - CONFIDENCE, len(self.secrets)
        separations = self.found[i]
        guesses = [2 * one.guess(noise) - 1 for one in separations]
        values = [one.share(noise, secret.amplitude) for one in separations]
        if secret.exhaustive and values:
            mean = float(np.average(values, weights=secret.weights))
            guess = _chance(math.fsum(guesses) / len(guesses))
            return Bracket(mean, mean, guess, len(values), mean)
        half = doubt if size == 1 else doubt / 2
        return Bracket(
            lower_limit(values, 1 - doubt / size),
            upper_limit(values, 1 - half / size),
            _chance(upper_limit(guesses, 1 - doubt / size)),
            len(values),
            upper_limit(values, 1 - half),
        )

    def repeated(self, rounds: int) -> Distances:
        """Of a client that sends so many updates of the same data, each with its own noise."""
        return replace(self, found=[[one.repeated(rounds) for one in row] for row in self.found])

    def joined(self, other: Distances) -> Distances:
        """Of a client that sends both updates, from the same pairs of worlds."""
        rows = zip(self.found, other.found, strict=True)
        return replace(self, found=[[a + b for a, b in zip(*row, strict=False)] for row in rows])

    def _separation(self, i: int, number: int) -> Separation:
        """Draw `number` of sample `i`: the same one whatever was drawn of other samples."""
        secret = self.secrets[i]
        seed = int(np.random.SeedSequence([self.seed, i, number]).generate_state(1)[0]) >> (
            32 - _BITS
        )
        pair = secret.draw(number % secret.strata, torch.Generator().manual_seed(seed))
        if pair.name not in self.named:
            separation = self._apart(pair, secret)
            if not pair.name:
                return separation
            self.named[pair.name] = separation
        return self.named[pair.name]

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
        if world is not self.world:
            return self.client(world)
        if not self.own:
            self.own.append(self.client(world))
        return self.own[0]


Decided = Callable[[Bracket], bool]


def measure(
    distances: Distances,
    decided: Decided | None,
    noise: AddedNoise | None,
    *,
    most: int,
    settled: Decided = lambda _limits: False,
    order: Sequence[int] | None = None,
    told: Callable[[int, int], None] = lambda _done, _total: None,
) -> None:
    """Draw until every sample is decided, one sample's limits have `settled` it for all, each has
    `most` pairs, or time is over.

    With a decision to make, one sample after the other, in this `order`: one that is made says more
    than several that are near. With none, all in turns. Limits that are taken whenever it stops
    hold all the same.
    """
    samples = list(order or range(len(distances.secrets)))

    def drawable(i: int) -> bool:
        drawn = len(distances.found[i])
        return not drawn or (drawn < most and not distances.secrets[i].exhaustive)

    def turns() -> Iterator[int]:
        if decided is None:
            while todo := [i for i in samples if drawable(i)]:
                yield from todo
            return
        for i in samples:  # by itself: enough where all of them are below
            while drawable(i) and not decided(_by_itself(distances.known(i, noise))):
                yield i
            if settled(distances.known(i, noise)):
                return
        cap = max(distances.known(i, noise).alone for i in samples)
        for i in samples:
            while drawable(i) and not decided(distances.known(i, noise).capped(cap)):
                yield i

    for i in turns():
        if out_of_time("further pairs of worlds"):
            return
        told(samples.index(i), len(samples))
        distances.cycle(i)


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


def _by_itself(limits: Bracket) -> Bracket:
    return replace(limits, upper=limits.alone)


def as_tensor(values: Sequence[float]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.float64)


def _chance(advantage: float) -> float:
    return (1 + advantage) / 2
