"""CMA-ES, in the form of Hansen's tutorial (arXiv 1604.00772): the search of GGL where nevergrad is not installed.

Mean 0 and step size 1 at first, as nevergrad begins. Asked and told one candidate at a time; a generation that is complete moves
mean, step size and covariance. The covariance's roots are computed anew only when it has changed enough to matter.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np


class Evolution:
    def __init__(self, shape: tuple[int, ...], population: int, seed: int) -> None:
        self.shape, self.population, n = shape, population, math.prod(shape)
        self.random, self.n = np.random.default_rng(seed), n
        weights = math.log(population / 2 + 0.5) - np.log(np.arange(1, population // 2 + 1))
        self.weights = weights / weights.sum()
        own = 1 / (self.weights**2).sum()  # samples that the weighted mean is worth
        self.own, self.c_sigma, self.c_c = own, (own + 2) / (n + own + 5), (4 + own / n) / (n + 4 + 2 * own / n)
        self.c_one = 2 / ((n + 1.3) ** 2 + own)
        self.c_mu = min(1 - self.c_one, 2 * (own - 2 + 1 / own) / ((n + 2) ** 2 + own))
        self.damping = 1 + 2 * max(0.0, math.sqrt((own - 1) / (n + 1)) - 1) + self.c_sigma
        self.expected = math.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n**2))  # length of a standard normal vector
        self.mean, self.sigma, self.covariance = np.zeros(n), 1.0, np.eye(n)
        self.axes, self.lengths = np.eye(n), np.ones(n)
        self.path_sigma, self.path_c = np.zeros(n), np.zeros(n)
        self.generation, self.rooted = 0, 0
        self.waiting: list[Any] = []
        self.told: list[tuple[float, np.ndarray]] = []

    def ask(self) -> Any:
        if not self.waiting:
            normal = self.random.standard_normal((self.population, self.n))
            self.waiting = list(self.mean + self.sigma * (normal * self.lengths) @ self.axes.T)
        return SimpleNamespace(value=self.waiting.pop().reshape(self.shape))

    def tell(self, candidate: Any, value: float) -> None:
        self.told.append((value, candidate.value.ravel()))
        if len(self.told) == self.population:
            best = sorted(self.told, key=lambda pair: pair[0])[: len(self.weights)]
            self._move(np.stack([x for _, x in best]))
            self.told = []

    def _move(self, best: np.ndarray) -> None:
        self.generation += 1
        steps = (best - self.mean) / self.sigma
        step = self.weights @ steps
        self.mean = self.mean + self.sigma * step
        whitened = self.axes @ ((self.axes.T @ step) / self.lengths)
        self.path_sigma = (1 - self.c_sigma) * self.path_sigma + math.sqrt(
            self.c_sigma * (2 - self.c_sigma) * self.own
        ) * whitened
        length = float(np.linalg.norm(self.path_sigma))
        grown = math.sqrt(1 - (1 - self.c_sigma) ** (2 * self.generation))
        short = length / grown < (1.4 + 2 / (self.n + 1)) * self.expected
        self.path_c = (1 - self.c_c) * self.path_c
        if short:
            self.path_c = self.path_c + math.sqrt(self.c_c * (2 - self.c_c) * self.own) * step
        kept = 1 - self.c_one - self.c_mu + (0 if short else self.c_one * self.c_c * (2 - self.c_c))
        self.covariance = (
            kept * self.covariance
            + self.c_one * np.outer(self.path_c, self.path_c)
            + self.c_mu * (steps.T * self.weights) @ steps
        )
        self.sigma *= math.exp(self.c_sigma / self.damping * (length / self.expected - 1))
        if self.generation - self.rooted > 1 / (10 * self.n * (self.c_one + self.c_mu)):
            squares, self.axes = np.linalg.eigh(self.covariance)
            self.lengths, self.rooted = np.sqrt(np.maximum(squares, 1e-20)), self.generation
