"""What a mechanism promises for every client, whatever its data: a clip, then Gaussian noise.

All updates of norm at most c lie within 2c of each other. With noise σ the mechanism is
μ-Gaussian-private for μ = 2c/σ (Dong, Roth and Su 2022), and R rounds for μ √R. Then no attacker

    names one of two worlds more often than                      Φ(μ/2)
    explains a bit by more than                                  1 − mmse(μ²/4)
    guesses what it knew with probability κ more often than      Φ(Φ⁻¹(κ) + μ)
    (Hayes et al. 2023; Kaissis et al. 2023)

and (ε, δ)-differential privacy holds with δ(ε) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2) (Balle and
Wang 2018). That is exact for Gaussian noise, in however many rounds, so that an accountant, which
composes mechanisms numerically, has nothing to add; the tests hold it against Opacus'.
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
from unsum.defend.smooth import SmoothLabels
from unsum.errors import UnsumError
from unsum.running.late_scipy import root

DELTA = 1e-5  # [1] chance that a promise of ε fails. Chosen by: what most of the literature takes
_FAR = 30.0  # [standard deviations] the tail beyond is 5e-198


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

    def cap(self, discrete: bool = False) -> float:
        """The largest ceiling of a sample, in the unit of its kind: a part that is right or wrong
        is named 2 Φ(μ/2) − 1 more often than every other time, which is more than the share of a
        squared error.

        >>> worst = WorstCase(0.95, "")
        >>> round(worst.cap(), 2), round(worst.cap(discrete=True), 2)
        (0.19, 0.37)
        """
        return 2 * self.guess - 1 if discrete else self.leakage

    def after(self, rounds: int) -> WorstCase:
        return WorstCase(self.mu * math.sqrt(rounds), self.what)

    def success(self, prior: float) -> float:
        """The largest chance of a guess that succeeds with probability `prior` without the update.

        >>> round(WorstCase(1.0, "").success(0.01), 3)
        0.092
        """
        if not 0 <= prior <= 1:
            raise UnsumError(f"A prior is a probability between 0 and 1, not {prior}.")
        if prior in (0, 1):
            return float(prior)
        return normal_cdf(NormalDist().inv_cdf(prior) + self.mu)

    def epsilon(self, delta: float) -> float:
        """The least ε ≥ 0 for which (ε, delta)-differential privacy holds.

        >>> round(WorstCase(1.0, "").epsilon(1e-5), 2)
        4.38
        """

        if not 0 < delta < 1:
            raise UnsumError(f"δ is a probability above 0 and below 1, not {delta}.")

        def excess(epsilon: float) -> float:
            away = epsilon / self.mu - self.mu / 2
            return normal_cdf(-away) - _tail(away, epsilon / self.mu + self.mu / 2) - delta

        if self.mu == 0 or excess(0.0) <= 0:
            return 0.0
        high = 1.0
        while excess(high) > 0:
            high *= 2
        return root(excess, 0.0, high, tolerance=1e-9)


def _tail(away: float, far: float) -> float:
    """e^ε Φ(−far) = e^(−away²/2) · e^(far²/2) Φ(−far), without a factor that overflows.

    Where Φ underflows, a lower bound stands for it (Abramowitz and Stegun 7.1.13), so that ε is
    rounded up.
    """
    if far < _FAR:
        scaled = math.exp(far * far / 2) * normal_cdf(-far)
    else:
        scaled = 2 / (math.sqrt(2 * math.pi) * (far + math.sqrt(far * far + 4)))
    return math.exp(-away * away / 2) * scaled


def distance_for(leakage: float, discrete: bool = False) -> float:
    """The μ at which the mechanism leaves this much of a bit.

    >>> round(WorstCase(distance_for(0.2), "").leakage, 6)
    0.2
    """
    return root(lambda mu: WorstCase(mu, "").cap(discrete) - leakage, 1e-6, 40.0, tolerance=1e-9)


def worst_case(
    defenses: Iterable[AnyDefense] | AnyDefense,
    samples: int,
    visits: int = 0,
    observer: Observer | None = None,
) -> WorstCase | None:
    """Of a chain that clips and then adds Gaussian noise; None where nothing bounds an update, or
    no noise follows.

    `visits` counts the epochs of a client of several local steps; 0 stands for a single step.
    DP-SGD bounds several steps only where it adds its noise in each of them. The noise of others
    then comes after all steps; it is left out.
    """
    played, noise = split_at_noise(defenses, samples)
    several = noise is not None and noise.every_step and visits > 0
    seen = noise if several else (observer or Observer()).sees(noise)
    if seen is None or seen.kind != "gaussian" or not played:
        return None
    *earlier, last = played
    if isinstance(last, DPSGD):
        apart = all(isinstance(part, SmoothLabels) for part in earlier)  # a mixup blends samples
        if not apart or (visits and not several):
            return None
        mu = 2 * last.clip / (samples * seen.scale) * math.sqrt(max(visits, 1))
        return WorstCase(mu, "one sample in the place of any other")
    if isinstance(last, Clip):
        return WorstCase(
            2 * last.strength / seen.scale, "any data of this client in the place of any other"
        )
    return None
