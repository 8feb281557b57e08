"""One bit in noise: how often anyone names it, and how much of it anyone knows on average.

Two worlds send updates that differ by δ before the noise. For Gaussian noise σ and d = ‖δ‖/σ,

    guess = Φ(d/2)                     the largest chance to name the world (Neyman and Pearson)
    known = 1 − mmse(d²/4)             the largest share of the bit's variance that is explained
    mmse(s) = 1 − E tanh(s + √s Z)     of a fair ±1 in Gaussian noise, signal-to-noise ratio s

For Laplace noise b the two densities have the affinity ρ = Π (1 + |δ_j|/2b) e^(−|δ_j|/2b), and for
any two densities

    guess ≤ (1 + √(1 − ρ²))/2                  known ≤ 1 − ρ²

Without noise the world is known unless both send the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from unsum.defend.added import AddedNoise

# [1] nodes of the quadrature of E tanh(s + √s Z): within 1e-9 of adaptive quadrature for every s
# (tests/ceiling/test_coin.py).
_NODES = 401
_REACH = 9.0  # [standard deviations] where the quadrature ends: 2e-19 of the mass lies beyond
_CERTAIN = 100.0  # [standard deviations] half a distance that leaves no doubt in float64
_BINS = 8  # [1/octave] of the histogram of |δ_j|: each is rounded up by at most 9 %
_LEAST, _MOST = -64, 64  # [octaves] smaller differences are taken for 2⁻⁶⁴, larger ones for 2⁶⁴


@dataclass(frozen=True)
class Separation:
    """How far the noise-free updates of two worlds lie apart.

    `squared` is ‖δ‖². `counts` is how many entries differ by each size, in bins of an eighth of an
    octave, upper ends counted; it is kept only where Laplace noise asks for it. `bare` says that
    a part of what is sent carries no noise and differs. `hidden` (2, r) is of other clients' sum:
    what of ‖δ‖² lies along each of its directions, and its variance there. `discrete`: what the
    worlds differ in is right or wrong.
    """

    squared: float
    bare: bool = False
    counts: NDArray[np.int64] | None = None
    hidden: NDArray[np.float64] | None = None
    discrete: bool = False

    @classmethod
    def of(
        cls, differences: Sequence[Tensor], *, by_size: bool = False, bare: bool = False
    ) -> Separation:
        squared = math.fsum(float(d.double().square().sum()) for d in differences)
        if not math.isfinite(squared):  # no noise hides an overflow
            return cls(0.0, True, _histogram([]) if by_size else None)
        found = cls(squared, bare, _histogram(differences) if by_size else None)
        underflow = not squared and any(bool(difference.any()) for difference in differences)
        return found.of_other_bits() if underflow else found

    def of_other_bits(self) -> Separation:
        """The same of updates that are not equal, though by no more than the sign of a zero."""
        return replace(self, squared=max(self.squared, math.ulp(0.0)))

    def __add__(self, other: Separation) -> Separation:
        """Of two updates together, each with noise of its own; other clients are granted."""
        counts = None if self.counts is None or other.counts is None else self.counts + other.counts
        squared, bare = self.squared + other.squared, self.bare or other.bare
        return Separation(squared, bare, counts, discrete=self.discrete)

    def repeated(self, times: int) -> Separation:
        """Of so many updates that lie as far apart as this one; other clients are granted."""
        if times == 1:
            return self
        counts = None if self.counts is None else self.counts * times
        return Separation(self.squared * times, self.bare, counts, discrete=self.discrete)

    @property
    def same(self) -> bool:
        """Whether both worlds send the same bits."""
        return self.squared == 0 and not self.bare

    def share(self, noise: AddedNoise | None, amplitude: float = 1.0) -> float:
        """What anyone reads of the secret beyond a guess, from 0 to 1: of its variance, of which
        1 − amplitude² is granted; or how much more often than every other time it is named.
        """
        if self.discrete:
            return 2 * self.guess(noise) - 1
        return 1 - amplitude**2 * (1 - self.known(noise))

    def known(self, noise: AddedNoise | None) -> float:
        """The largest share of the bit's variance that anyone can explain, from 0 to 1."""
        if self._unhidden(noise):
            return 0.0 if self.same else 1.0
        assert noise is not None
        if noise.kind == "laplace":
            return -math.expm1(2 * self._log_affinity(noise.scale))
        return _known(min(self._deviations(noise.scale) / 2, _CERTAIN))

    def guess(self, noise: AddedNoise | None) -> float:
        """The largest chance to name the world, from 1/2 to 1."""
        if self._unhidden(noise):
            return 0.5 if self.same else 1.0
        assert noise is not None
        if noise.kind == "laplace":
            return (1 + math.sqrt(-math.expm1(2 * self._log_affinity(noise.scale)))) / 2
        return normal_cdf(self._deviations(noise.scale) / 2)

    def _deviations(self, scale: float) -> float:
        """How many standard deviations of the noise the two worlds lie apart."""
        if self.hidden is None:
            return math.sqrt(self.squared) / scale
        along, variances = self.hidden
        rest = max(self.squared - float(along.sum()), 0.0)
        return math.sqrt(rest / scale**2 + float((along / (scale**2 + variances)).sum()))

    def _unhidden(self, noise: AddedNoise | None) -> bool:
        return noise is None or self.bare or self.squared == 0

    def _log_affinity(self, scale: float) -> float:
        """log ρ, from sizes rounded up: ρ falls with every |δ_j|, so that the bound stays one."""
        if self.counts is None:
            raise ValueError("the histogram of differences was not kept")
        half = _edges() / (2 * scale)
        return float((self.counts * (np.log1p(half) - half)).sum())


def normal_cdf(x: float) -> float:
    """Φ(x).

    >>> normal_cdf(0.0), round(normal_cdf(1.0), 4)
    (0.5, 0.8413)
    """
    return math.erfc(-x / math.sqrt(2)) / 2


@lru_cache(maxsize=1 << 16)
def _known(ratio: float) -> float:
    """Of one pair; limits are taken again after every further pair."""
    return float(known_in_gaussian(np.array([ratio**2]))[0])


def known_in_gaussian(s: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 − mmse(s) = E tanh(s + √s Z), for signal-to-noise ratios s ≥ 0.

    >>> known_in_gaussian(np.array([0.0, 1e6])).tolist()
    [0.0, 1.0]
    """
    z = np.linspace(-_REACH, _REACH, _NODES)
    weights = np.exp(-(z**2) / 2)
    weights /= weights.sum()
    values = np.tanh(s[:, None] + np.sqrt(s)[:, None] * z) @ weights
    return np.asarray(np.clip(values.round(12), 0.0, 1.0))


def _edges() -> NDArray[np.float64]:
    return np.exp2(np.arange(_LEAST * _BINS, _MOST * _BINS + 1) / _BINS)


def _histogram(differences: Sequence[Tensor]) -> NDArray[np.int64]:
    """Nonzero entries of every size."""
    counts = np.zeros((_MOST - _LEAST) * _BINS + 1, dtype=np.int64)
    for difference in differences:
        sizes = difference.double().abs().flatten()
        octaves = (sizes[sizes > 0].log2() * _BINS).ceil().clamp(_LEAST * _BINS, _MOST * _BINS)
        places = (octaves - _LEAST * _BINS).long()
        counts += np.bincount(places.cpu().numpy(), minlength=len(counts))
    return counts
