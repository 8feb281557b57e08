"""What a mechanism promises for every client, whatever its data: a clip, then Gaussian noise.

All updates of norm at most c lie within 2c of each other. With noise σ the mechanism is
μ-Gaussian-private for μ = 2c/σ (Dong, Roth and Su 2022), and R rounds for μ √R. Then no attacker

    names one of two worlds more often than                      Φ(μ/2)
    explains a bit by more than                                  1 − mmse(μ²/4)
    guesses what it knew with probability κ more often than      Φ(Φ⁻¹(κ) + μ)
    (Hayes et al. 2023; Kaissis et al. 2023)

and (ε, δ)-differential privacy holds with δ(ε) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from unsum.ceiling.coin import known_in_gaussian, normal_cdf
from unsum.ceiling.observer import Observer
from unsum.client.step import AnyDefense
from unsum.defend.added import split_at_noise
from unsum.defend.clip import Clip
from unsum.defend.dp import DPSGD
from unsum.late_scipy import root


@dataclass(frozen=True)
class WorstCase:
    """`mu` bounds the distance of any two worlds, in units of the noise; `what` says which worlds
    these are.
    """

    mu: float
    what: str

    @property
    def leakage(self) -> float:
        return float(known_in_gaussian(np.array([self.mu**2 / 4]))[0])

    @property
    def guess(self) -> float:
        return normal_cdf(self.mu / 2)

    def after(self, rounds: int) -> WorstCase:
        return WorstCase(self.mu * math.sqrt(rounds), self.what)

    def success(self, prior: float) -> float:
        """The largest chance of a guess that succeeds with probability `prior` without the update.

        >>> round(WorstCase(1.0, "").success(0.01), 3)
        0.092
        """
        return normal_cdf(NormalDist().inv_cdf(prior) + self.mu)

    def epsilon(self, delta: float) -> float:
        """The least ε ≥ 0 for which (ε, delta)-differential privacy holds.

        >>> round(WorstCase(1.0, "").epsilon(1e-5), 2)
        4.38
        """

        def excess(epsilon: float) -> float:
            tail = epsilon + math.log(max(normal_cdf(-epsilon / self.mu - self.mu / 2), 1e-300))
            return normal_cdf(-epsilon / self.mu + self.mu / 2) - math.exp(tail) - delta

        if self.mu == 0 or excess(0.0) <= 0:
            return 0.0
        high = 1.0
        while excess(high) > 0:
            high *= 2
        return root(excess, 0.0, high, tolerance=1e-9)


def distance_for(leakage: float) -> float:
    """The μ at which the mechanism leaves this much of a bit.

    >>> round(WorstCase(distance_for(0.2), "").leakage, 6)
    0.2
    """
    return root(lambda mu: WorstCase(mu, "").leakage - leakage, 1e-6, 40.0, tolerance=1e-9)


def worst_case(
    defenses: Iterable[AnyDefense] | AnyDefense,
    samples: int,
    steps: int = 1,
    observer: Observer | None = None,
) -> WorstCase | None:
    """Of a chain that clips and then adds Gaussian noise; None where nothing bounds an update, or
    no noise follows.

    `steps` counts how often one sample is used where DP-SGD acts in every step.
    """
    played, noise = split_at_noise(defenses, samples)
    seen = (observer or Observer()).sees(noise)
    if seen is None or seen.kind != "gaussian" or not played:
        return None
    last = played[-1]
    if isinstance(last, DPSGD):
        mu = 2 * last.clip / (samples * seen.scale) * math.sqrt(steps)
        return WorstCase(mu, "one sample in the place of any other")
    if isinstance(last, Clip):
        return WorstCase(
            2 * last.strength / seen.scale, "any data of this client in the place of any other"
        )
    return None
