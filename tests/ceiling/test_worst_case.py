"""The mechanism's promise, against an accountant and against the published formulas; and the order
of the three figures."""

from __future__ import annotations

import itertools
import math
from statistics import NormalDist

import pytest
import torch
from opacus.accountants.analysis.gdp import delta_eps_mu
from torch import nn

import unsum
from unsum.audit.bounds import proven_chain
from unsum.ceiling import Effort, Simulation, prove
from unsum.ceiling.coin import normal_cdf
from unsum.ceiling.observer import Observer
from unsum.ceiling.worst_case import WorstCase, distance_for, worst_case
from unsum.data.table_schema import TableColumn, TableSchema
from unsum.defend.platforms import FlowerFixedClipping, FlowerLocalDP

PHI = NormalDist().cdf


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-8])
def test_epsilon_and_delta_are_those_of_opacus(mu: float, delta: float) -> None:
    epsilon = WorstCase(mu, "").epsilon(delta)
    assert float(delta_eps_mu(eps=epsilon, mu=mu)) == pytest.approx(delta, rel=1e-5)


def test_one_gaussian_release_costs_what_opacus_accounts_for() -> None:
    """Opacus' neighbors differ by a sample's presence, at a distance of one clip: half of ours,
    which replace it."""
    mechanism = worst_case(unsum.DPSGD(2.0, clip=0.7), samples=4)
    assert mechanism is not None
    assert mechanism.mu == pytest.approx(1.0)
    presence = WorstCase(mechanism.mu / 2, "").after(10)
    accounted = unsum.privacy_spent(2.0, steps=10, sampling_rate=1.0, delta=1e-5)
    assert presence.epsilon(1e-5) == pytest.approx(accounted, rel=2e-2)


@pytest.mark.parametrize("mu", [30.0, 100.0, 1000.0])
def test_hardly_any_noise_is_a_huge_epsilon_and_no_overflow(mu: float) -> None:
    assert WorstCase(mu, "").epsilon(1e-5) == pytest.approx(
        mu * mu / 2 + mu * NormalDist().inv_cdf(1 - 1e-5), rel=0.01
    )


def test_epsilon_is_never_below_the_exact_one() -> None:
    """The bound that stands in for a tail that underflows rounds up, and joins without a step."""
    found = [WorstCase(mu, "").epsilon(1e-5) for mu in (24.0, 24.5, 25.0, 25.5, 26.0, 26.5, 27.0)]
    steps = [b - a for a, b in itertools.pairwise(found)]
    assert all(later > earlier > 0 for earlier, later in itertools.pairwise(steps))


def test_no_guess_is_right_more_often_than_published() -> None:
    """Hayes et al. 2023 and Kaissis et al. 2023: Φ(Φ⁻¹(κ) + μ) from a prior chance of κ."""
    for mu, kappa, expected in (
        (1.0, 0.1, 0.3891),
        (2.0, 0.01, 0.3721),
        (0.0, 0.25, 0.25),
        (3.0, 0.5, 0.9987),
    ):
        assert WorstCase(mu, "").success(kappa) == pytest.approx(expected, abs=1e-4)
    assert WorstCase(2.0, "").success(0.5) == pytest.approx(PHI(2.0))
    assert (WorstCase(2.0, "").success(0.0), WorstCase(2.0, "").success(1.0)) == (0.0, 1.0)


def test_the_best_guess_among_ten_stays_below_it() -> None:
    """Ten candidates, each two clips from any other: the best attacker's success, simulated."""
    torch.manual_seed(0)
    mu, n = 2.0, 40_000
    # pairwise at a distance of μ
    candidates = torch.eye(10, dtype=torch.float64) * mu / math.sqrt(2)
    true = torch.randint(10, (n,))
    sent = candidates[true] + torch.randn(n, 10, dtype=torch.float64)
    right = float(((sent @ candidates.T).argmax(1) == true).double().mean())
    assert right <= WorstCase(mu, "").success(0.1) + 4 * 0.5 / math.sqrt(n)
    assert right > 0.3


@pytest.mark.parametrize("leakage", [0.05, 0.2, 0.9])
def test_the_distance_for_a_leakage(leakage: float) -> None:
    assert WorstCase(distance_for(leakage), "").leakage == pytest.approx(leakage, abs=1e-6)


def test_which_chains_promise_something() -> None:
    assert worst_case([unsum.Clip(0.5), unsum.Noise(2.0)], 4).mu == pytest.approx(0.5)  # type: ignore[union-attr]
    assert worst_case(
        [FlowerFixedClipping(clipping_norm=3.0), unsum.Noise(2.0)], 4
    ).mu == pytest.approx(3.0)  # type: ignore[union-attr]
    local = FlowerLocalDP(clipping_norm=2.0)
    assert worst_case(local, 4).mu == pytest.approx(4.0 / local.deviation)  # type: ignore[union-attr]
    central = Observer("outsider", clients=10, noise=0.3)
    assert worst_case(unsum.Clip(1.5), 4, observer=central).mu == pytest.approx(1.0)  # type: ignore[union-attr]
    for promises_nothing in (
        [unsum.Noise(2.0)],
        [unsum.Clip(1.0)],
        [unsum.Noise(2.0), unsum.Clip(1.0)],
        [unsum.Clip(1.0), unsum.Laplace(2.0)],
        [unsum.Mixup(0.5), unsum.DPSGD(1.0)],  # one sample is in two of the blends
    ):
        assert worst_case(promises_nothing, 4) is None
    assert worst_case([unsum.SmoothLabels(0.1), unsum.DPSGD(1.0)], 4) is not None


def test_dp_sgd_over_several_steps() -> None:
    """Only its own noise in every step bounds them; other noise comes after the weights have
    moved."""
    chain = unsum.DPSGD(3.0)
    assert worst_case(chain, 8, visits=4).mu == pytest.approx(2 / 3 * 2)  # type: ignore[union-attr]
    assert worst_case([unsum.DPSGD(0.0), unsum.Noise(1.0)], 8, visits=1) is None
    others = Observer("aggregate", clients=100)
    assert worst_case(chain, 8, visits=4, observer=others) == worst_case(chain, 8, visits=4)
    assert worst_case(chain, 8, observer=others).mu == pytest.approx(2 / 3 / 10)  # type: ignore[union-attr]


def test_found_ceiling_and_worst_case_stand_in_this_order() -> None:
    """An attacker that is told all but one label, 4000 times; the two worlds; the clip."""
    torch.manual_seed(0)
    model, sigma, clip = nn.Linear(5, 3), 0.4, 0.5
    x, y = torch.randn(2, 5), torch.tensor([0, 1])
    chain = [unsum.Clip(clip), unsum.Noise(sigma)]
    found = unsum.ceiling(model, (x, y), defenses=chain, pairs=64)
    assert found.worst is not None
    assert found.worst.mu == pytest.approx(2 * clip / sigma)
    with torch.no_grad():
        other = int(model(x)[0].index_fill(0, torch.tensor([0]), -torch.inf).argmax())
    worlds = []
    for label in (0, other):
        clean = unsum.capture(model, x, torch.tensor([label, 1]), defenses=unsum.Clip(clip))
        worlds.append(torch.cat([g.flatten() for g in clean.gradients.values()]).double())
    n, right = 4000, 0
    for _ in range(n // 2):
        for truth in (0, 1):
            sent = worlds[truth] + sigma * torch.randn_like(worlds[0])
            right += int((sent - worlds[1 - truth]).norm() > (sent - worlds[truth]).norm())
    ceiling, worst = float(found.labels[0]), found.worst.guess
    assert right / n <= ceiling + 4 * 0.5 / math.sqrt(n)
    assert right / n == pytest.approx(ceiling, abs=0.04)
    assert ceiling < worst
    assert float(found.samples.max()) <= found.worst.leakage


@pytest.mark.parametrize(
    ("call", "says"),
    [(lambda w: w.success(1.5), "between 0 and 1"), (lambda w: w.epsilon(0.0), "above 0")],
)
def test_what_is_no_probability_is_refused(call: object, says: str) -> None:
    with pytest.raises(unsum.UnsumError, match=says):
        call(WorstCase(1.0, ""))  # type: ignore[operator]


def test_what_is_right_or_wrong_is_capped_by_how_often_it_is_named() -> None:
    """One category that is named by chance 2 Φ(μ/2) − 1 more often: at μ = 0.95 that is 37 %, where
    the share of a squared error is 19 %."""
    columns = (TableColumn("c", "category", values=tuple("abcde")),)
    schema = TableSchema(columns, "y", ("n", "y"))
    torch.manual_seed(0)
    case = Simulation(
        torch.nn.Linear(5, 2, bias=False),
        torch.nn.functional.one_hot(torch.tensor([0]), 5).float(),
        torch.tensor([0]),
        schema=schema,
    )
    chain = [unsum.Clip(0.01), unsum.Noise(2 * 0.01 / 0.95)]
    found = prove(case, chain, effort=Effort(pairs=8))
    assert found.worst is not None
    assert found.cap == pytest.approx(2 * normal_cdf(0.475) - 1)
    assert found.decided(0.2) != "below"
    apart = [2 * one.guess(found.noise) - 1 for one in found.distances.found[0]]  # type: ignore[union-attr]
    assert float(found.samples[0]) >= sum(apart) / len(apart) > found.worst.leakage
    assert float(found.guesses[0]) <= found.worst.guess
    assert found.to_dict()["worst_case"]["leakage"] == found.cap
    assert float(found.after(4)[0]) <= found.worst.after(4).cap(discrete=True)
    clip, noise = proven_chain(1.0, 0.2, discrete=True)
    assert 0.1 < worst_case([clip, noise], 1).cap(discrete=True) < 0.2  # type: ignore[union-attr]
