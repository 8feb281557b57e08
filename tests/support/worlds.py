"""All worlds of a small client, played one by one, and the best attacker there can be on them.

A world leaves every coin as it is or moves it: entries of the samples by twice their deviation, and
labels. From all noise-free updates follows what the best possible attacker knows, the posterior
mean over all worlds, and beside it what the two-worlds bound allows: for every coin the distance of
the two worlds that differ in it alone, averaged over all settings of the other coins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from torch import Tensor, nn

from unsum.ceiling.client import Played, SimulatedClient, World, separated
from unsum.ceiling.coin import Separation
from unsum.client.step import AnyDefense
from unsum.defend.added import AddedNoise
from unsum.local_training import LocalTraining

DRAWS = 4000  # noisy updates that the best attacker is given
ERRORS = 4.5  # standard errors of their mean that are no violation


@dataclass(frozen=True)
class Setup:
    """A client and its coins: `moved` (sample, flat entry, deviation), and `relabeled` (sample,
    other class)."""

    model: nn.Module
    world: World
    moved: Sequence[tuple[int, int, float]]
    relabeled: Sequence[tuple[int, int]] = ()
    loss: str | None = None
    training: LocalTraining | None = None
    train: bool = True
    defenses: Sequence[AnyDefense] = ()

    @property
    def coins(self) -> int:
        return len(self.moved) + len(self.relabeled)

    @property
    def weights(self) -> np.ndarray:
        """Of the coins in a sample's leakage: their variances; labels count by themselves."""
        return np.array([size**2 for *_, size in self.moved])


@dataclass(frozen=True)
class Worlds:
    """All 2ⁿ: (2ⁿ, n) signs and the (2ⁿ, P) noise-free updates."""

    setup: Setup
    signs: np.ndarray
    updates: Tensor

    @classmethod
    def of(cls, setup: Setup) -> Worlds:
        client = SimulatedClient(
            setup.model, setup.train, setup.training, setup.loss, tuple(setup.defenses), seed=3
        )
        signs = np.array(list(product([-1.0, 1.0], repeat=setup.coins)))
        sent = [client(_set(setup, row)).noisy for row in signs]
        return cls(
            setup,
            signs,
            torch.stack([torch.cat([g.flatten() for g in one.values()]) for one in sent]),
        )

    @property
    def typical(self) -> float:
        """Median distance of two worlds that differ in one coin."""
        pairs = [
            self._pair(k, rest)
            for k in range(self.setup.coins)
            for rest in (0, len(self.signs) // 2 - 1)
        ]
        return float(np.median([(self.updates[a] - self.updates[b]).norm() for a, b in pairs]))

    def ceilings(
        self, noise: AddedNoise, distort: Callable[[Separation], Separation] = lambda one: one
    ) -> np.ndarray:
        """(n, 2) of every coin: the largest share known, and the largest chance to name it, over
        all other coins."""
        found = []
        for k in range(self.setup.coins):
            pairs = (self._pair(k, rest) for rest in range(len(self.signs) // 2))
            both = (distort(self._separation(*pair)) for pair in pairs)
            found.append(np.mean([(one.known(noise), one.guess(noise)) for one in both], axis=0))
        return np.array(found)

    def best_attack(self, noise: AddedNoise, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """((n, 2), (n, 2)) what the posterior over all worlds knows of each coin, and its standard
        error."""
        assert noise.kind == "gaussian"
        random = np.random.default_rng(seed)
        clean = self.updates.double().numpy()
        true = random.integers(0, len(clean), DRAWS)
        sent = clean[true] + noise.scale * random.standard_normal((DRAWS, clean.shape[1]))
        log = (sent @ clean.T - (clean**2).sum(1) / 2) / noise.scale**2
        posterior = np.exp(log - log.max(1, keepdims=True))
        posterior /= posterior.sum(1, keepdims=True)
        mean = posterior @ self.signs  # (draws, n): E[coin | update]
        draws = np.stack([mean**2, (1 + np.abs(mean)) / 2], axis=2)
        return draws.mean(0), draws.std(0) / math.sqrt(DRAWS)

    def _pair(self, k: int, rest: int) -> tuple[int, int]:
        """Two worlds that differ in coin `k`; `rest` numbers the settings of all others."""
        n = self.setup.coins
        high, low = divmod(rest, 2 ** (n - 1 - k))
        first = high * 2 ** (n - k) + low
        return first, first + 2 ** (n - 1 - k)

    def _separation(self, one: int, other: int) -> Separation:
        return separated(*(Played({"all": self.updates[place]}) for place in (one, other)))


def _set(setup: Setup, signs: np.ndarray) -> World:
    inputs = setup.world.inputs.clone()
    for (sample, entry, size), sign in zip(setup.moved, signs, strict=False):
        if sign > 0:
            inputs[sample].view(-1)[entry] += 2 * size
    world = setup.world._replace(inputs=inputs)
    targets = world.targets.clone()
    for (sample, other), sign in zip(setup.relabeled, signs[len(setup.moved) :], strict=True):
        if sign > 0:
            targets[sample] = other
    return world._replace(targets=targets)


def above(worlds: Worlds, ceilings: np.ndarray, noise: AddedNoise, seed: int = 0) -> np.ndarray:
    """(n, 2) by how many standard errors the best attacker passes these ceilings; at most 0 where
    it does not."""
    found, error = worlds.best_attack(noise, seed)
    # what is rarer than one draw is not seen
    return np.asarray((found - ceilings) / np.maximum(error, 1 / DRAWS))
