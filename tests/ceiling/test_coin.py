"""One bit in noise, against adaptive quadrature and against the best attacker, simulated."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad

from unsum.ceiling.coin import Separation, known_in_gaussian, normal_cdf
from unsum.defend.added import AddedNoise


def gaussian(scale: float) -> AddedNoise:
    return AddedNoise("gaussian", scale)


def laplace(scale: float) -> AddedNoise:
    return AddedNoise("laplace", scale)


@pytest.mark.parametrize("s", [1e-6, 1e-3, 0.05, 0.3, 1.0, 3.0, 10.0, 40.0, 200.0, 1e4])
def test_the_share_of_a_bit_in_gaussian_noise_is_the_integral(s: float) -> None:
    def density(z: float) -> float:
        return math.tanh(s + math.sqrt(s) * z) * math.exp(-z * z / 2) / math.sqrt(2 * math.pi)

    exact, _ = quad(
        density, -12, 12, points=[max(-math.sqrt(s), -11.9)], epsabs=1e-13, epsrel=1e-12, limit=500
    )
    assert float(known_in_gaussian(np.array([s]))[0]) == pytest.approx(exact, abs=1e-9)


def test_gaussian_noise_by_hand() -> None:
    one = Separation.of([torch.tensor([3.0, 0.0]), torch.tensor([[4.0]])])  # ‖δ‖ = 5
    assert one.squared == 25
    assert one.guess(gaussian(2.5)) == pytest.approx(normal_cdf(1.0))  # Φ(d/2), d = 2
    assert one.guess(gaussian(2.5)) == pytest.approx(0.8413447, abs=1e-7)
    assert one.known(gaussian(2.5)) == float(known_in_gaussian(np.array([1.0]))[0])  # s = d²/4


def test_the_best_attacker_on_gaussian_noise_reaches_the_bound_and_does_not_pass_it() -> None:
    """The likelihood ratio of y = ±δ/2 + σ z, with the posterior mean tanh(y δ / σ²)."""
    random, d, n = np.random.default_rng(0), 1.3, 400_000
    coin = random.choice([-1.0, 1.0], n)
    posterior = np.tanh((coin * d / 2 + random.standard_normal(n)) * d / 2)
    named, explained = (posterior * coin > 0).mean(), 1 - ((posterior - coin) ** 2).mean()
    bound = Separation(d**2)
    assert named == pytest.approx(bound.guess(gaussian(1.0)), abs=4 * 0.5 / math.sqrt(n))
    assert explained == pytest.approx(bound.known(gaussian(1.0)), abs=4 / math.sqrt(n))


@pytest.mark.parametrize(
    ("delta", "b"), [(0.01, 1.0), (0.5, 1.0), (2.0, 1.0), (3.0, 0.5), (12.0, 1.0)]
)
def test_laplace_bounds_lie_above_the_integrals(delta: float, b: float) -> None:
    def p(x: float) -> float:
        return math.exp(-abs(x) / b) / (2 * b)

    def q(x: float) -> float:
        return p(x - delta)

    def integral(f: object) -> float:
        return sum(
            quad(f, *ends, epsabs=1e-13, limit=300)[0]
            for ends in ((-40 * b, 0), (0, delta), (delta, delta + 40 * b))
        )

    affinity = integral(lambda x: math.sqrt(p(x) * q(x)))
    apart = integral(lambda x: abs(p(x) - q(x))) / 2
    explained = 1 - integral(lambda x: 2 * p(x) * q(x) / (p(x) + q(x)))
    found = Separation.of([torch.tensor([delta])], by_size=True)
    assert math.exp(found._log_affinity(b)) <= affinity + 1e-12  # sizes are rounded up
    assert math.exp(found._log_affinity(b)) == pytest.approx(
        affinity, rel=0.1 * (delta / b) ** 2 + 1e-9
    )
    assert (1 + apart) / 2 <= found.guess(laplace(b)) + 1e-12
    assert explained <= found.known(laplace(b)) + 1e-12


def test_the_affinity_of_laplace_noise_by_hand() -> None:
    """ρ = (1 + |δ|/2b) e^(−|δ|/2b) an entry, here at ends of bins: 1, 2 and 2."""
    found = Separation.of([torch.tensor([1.0, -2.0, 0.0]), torch.tensor([2.0])], by_size=True)
    rho = 1.5 * math.exp(-0.5) * (2 * math.exp(-1)) ** 2
    assert found.guess(laplace(1.0)) == pytest.approx((1 + math.sqrt(1 - rho**2)) / 2)
    assert found.known(laplace(1.0)) == pytest.approx(1 - rho**2)


@pytest.mark.parametrize(("dimensions", "size"), [(1, 1.0), (20, 0.3), (200, 0.1), (1000, 0.02)])
def test_no_attacker_on_laplace_noise_in_many_dimensions_passes_the_bound(
    dimensions: int, size: float
) -> None:
    random, n = np.random.default_rng(1), 8000
    delta = random.normal(scale=size, size=dimensions)
    coin = random.integers(0, 2, n)
    named, explained = 0.0, 0.0
    for part in np.array_split(coin, 20):
        y = random.laplace(size=(len(part), dimensions)) + part[:, None] * delta
        ratio = (np.abs(y) - np.abs(y - delta)).sum(1)  # log of the densities' ratio
        named += ((ratio > 0) == part).sum()
        explained += (np.tanh(ratio / 2) * (2 * part - 1)).sum()
    bound = Separation.of([torch.from_numpy(delta)], by_size=True)
    error = 4 / math.sqrt(n)
    assert named / n <= bound.guess(laplace(1.0)) + error / 2
    assert explained / n <= bound.known(laplace(1.0)) + error
    assert bound.guess(laplace(1.0)) < 0.999  # it says something


def test_without_noise_only_the_same_bits_hide_the_world() -> None:
    same, other = Separation.of([torch.zeros(3)]), Separation.of([torch.tensor([0.0, 1e-30])])
    assert (same.known(None), same.guess(None)) == (0.0, 0.5)
    assert (other.known(None), other.guess(None)) == (1.0, 1.0)
    bare = Separation.of([torch.zeros(3)], bare=True)
    assert (bare.known(gaussian(9.0)), bare.guess(gaussian(9.0))) == (1.0, 1.0)


@pytest.mark.parametrize("broken", [math.inf, math.nan])
def test_an_update_that_overflows_is_hidden_by_no_noise(broken: float) -> None:
    found = Separation.of([torch.tensor([broken, 1.0])], by_size=True)
    for noise in (gaussian(1.0), laplace(1.0), None):
        assert (found.known(noise), found.guess(noise)) == (1.0, 1.0)


def test_tiny_noise_and_huge_distances_stay_numbers() -> None:
    assert Separation(1e30).known(gaussian(1e-170)) == 1.0
    assert Separation(1e-30).known(gaussian(1e10)) == 0.0
    assert Separation(1e30).guess(gaussian(1e-170)) == 1.0


def test_several_updates_add_up() -> None:
    """R rounds at σ are one at σ/√R, of either noise where the entries are as many."""
    one = Separation.of([torch.tensor([0.5, 1.0])], by_size=True)
    nine = one.repeated(9)
    assert nine.known(gaussian(3.0)) == pytest.approx(one.known(gaussian(1.0)))
    assert (one + one + one).squared == pytest.approx(one.repeated(3).squared)
    two = (one + one).known(laplace(2.0))
    assert 1 - two == pytest.approx((1 - one.known(laplace(2.0))) ** 2)
    assert (one + Separation(0.0, bare=True)).bare


def test_a_step_of_less_than_a_deviation_proves_no_low_ceiling() -> None:
    """A step of a deviations grants 1 − a² of the variance; its limit is no lower up to a ceiling
    of 68 %."""
    strength = np.linspace(0.005, 1.5, 60)
    whole = known_in_gaussian(strength)
    assert whole[-1] == pytest.approx(0.68, abs=0.005)
    for a in (0.25, 0.5, 0.75, 0.9, 0.99):
        smaller = 1 - a**2 * (1 - known_in_gaussian(a**2 * strength))
        assert (smaller > whole).all()
        assert smaller.min() > 1 - a**2
    beyond = np.array([4.544])  # known to 95 %: the best smaller step leaves 89 %
    best = min(
        float(1 - a**2 * (1 - known_in_gaussian(a**2 * beyond))[0])
        for a in np.linspace(0.05, 1, 96)
    )
    assert float(known_in_gaussian(beyond)[0]) == pytest.approx(0.95, abs=1e-3)
    assert best == pytest.approx(0.894, abs=1e-3)
