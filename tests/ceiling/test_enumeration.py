"""Every world of small networks, and the best possible attacker: never above the ceiling, and above
each broken one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from support.long import long
from support.worlds import DRAWS, ERRORS, Setup, Worlds, above
from unsum.ceiling import Effort, Simulation, bound, components, prove
from unsum.ceiling.client import World
from unsum.ceiling.coin import Separation
from unsum.defend import Clip, ClipLayers, Noise, Sign
from unsum.defend.added import AddedNoise
from unsum.local_training import LocalTraining

CLASSES, SIDE = 3, 4
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "relu": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(SIDE**2, 6), nn.ReLU(), nn.Linear(6, CLASSES)
    ),
    "tanh": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(SIDE**2, 5), nn.Tanh(), nn.Linear(5, CLASSES)
    ),
    "maxpool": lambda: nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8, CLASSES),
    ),
    "batch norm": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(SIDE**2, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, CLASSES)
    ),
}
TRAININGS = {
    "one step": None,
    "two steps": LocalTraining(learning_rate=0.3, steps=2),
    "two epochs, momentum": LocalTraining(learning_rate=0.3, steps=2, momentum=0.9, epochs=2),
}
DEFENSES = {
    "none": (),
    "clip": (Clip(0.3),),
    "clip layers": (ClipLayers(0.2),),
    "sign": (Sign(scaled=True),),
}


def setup(
    network: str = "relu",
    *,
    samples: int = 2,
    moved: int = 6,
    relabeled: int = 1,
    loss: str | None = None,
    training: str = "one step",
    defense: str = "none",
    size: float = 0.5,
    seed: int = 0,
) -> Setup:
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    model = NETWORKS[network]()
    inputs = torch.rand(samples, 1, SIDE, SIDE)
    targets = torch.randint(CLASSES, (samples,))
    entries = random.permutation(samples * SIDE**2)[:moved]
    coins = [
        (int(e) // SIDE**2, int(e) % SIDE**2, size * float(random.uniform(0.5, 2))) for e in entries
    ]
    labels = [(i, int(targets[i] + 1) % CLASSES) for i in range(min(relabeled, samples))]
    rows = nn.functional.one_hot(targets, CLASSES).float() if loss in ("bce", "mse") else targets
    if loss in ("bce", "mse"):
        labels = []
    return Setup(
        model,
        World(inputs, rows),
        coins,
        labels,
        loss,
        TRAININGS[training],
        True,
        DEFENSES[defense],
    )


def total(worlds: Worlds, per_coin: np.ndarray) -> float:
    """The leakage: the share of all variance."""
    moved = len(worlds.setup.moved)
    return float(np.average(per_coin[:moved, 0], weights=worlds.setup.weights))


@settings(max_examples=10)
@given(
    network=st.sampled_from(sorted(NETWORKS)),
    samples=st.integers(2, 4),
    moved=st.integers(5, 6),
    loss=st.sampled_from([None, "bce", "mse", "focal:2"]),
    training=st.sampled_from(sorted(TRAININGS)),
    defense=st.sampled_from(sorted(DEFENSES)),
    size=st.sampled_from([0.05, 0.5, 3.0]),
    relative=st.sampled_from([0.15, 0.4, 1.0, 3.0]),
    seed=st.integers(0, 10**6),
)
def test_the_best_attacker_stays_below_the_ceiling(
    network: str, samples: int, moved: int, loss: str | None, training: str, defense: str,
    size: float, relative: float, seed: int,
) -> None:  # fmt: skip
    if network == "batch norm" and training != "one step":
        samples = 4  # batch norm needs two samples a step
    case = setup(
        network,
        samples=samples,
        moved=moved,
        loss=loss,
        training=training,
        defense=defense,
        size=size,
        seed=seed,
    )
    worlds = Worlds.of(case)
    noise = AddedNoise("gaussian", relative * (worlds.typical or 1.0))
    ceilings = worlds.ceilings(noise)
    assert above(worlds, ceilings, noise).max() <= ERRORS
    found, error = worlds.best_attack(noise, seed=1)
    assert total(worlds, found) <= total(worlds, ceilings) + ERRORS * max(
        float(error[: len(case.moved), 0].max()), 1 / DRAWS
    )


def test_a_thousand_worlds() -> None:
    case = setup("maxpool", samples=3, moved=9, seed=4)
    worlds = Worlds.of(case)
    assert len(worlds.signs) == 1024
    for relative in (0.5,):
        noise = AddedNoise("gaussian", relative * worlds.typical)
        ceilings = worlds.ceilings(noise)
        assert above(worlds, ceilings, noise).max() <= ERRORS
        assert 0.02 < total(worlds, ceilings) < 0.99  # something is hidden, and something is not


def test_with_one_coin_the_ceiling_is_what_the_best_attacker_has() -> None:
    worlds = Worlds.of(setup(moved=1, relabeled=0))
    noise = AddedNoise("gaussian", worlds.typical)
    found, error = worlds.best_attack(noise)
    assert np.abs(found - worlds.ceilings(noise)).max() <= ERRORS * error.max()


def test_coins_of_the_same_world_are_not_told_apart() -> None:
    """A dead network sends the same of every picture; the label alone is in its bias."""
    case = setup(moved=3, relabeled=1)
    with torch.no_grad():
        case.model[1].weight.zero_()
        case.model[1].bias.fill_(-1)
    worlds = Worlds.of(case)
    ceilings = worlds.ceilings(AddedNoise("gaussian", 0.1))
    assert ceilings[:3].tolist() == [[0.0, 0.5]] * 3
    assert ceilings[3, 1] > 0.9


MUTATIONS: dict[str, Callable[[Separation], Separation]] = {
    "half the distance": lambda one: replace(one, squared=one.squared / 4),
    "a norm that is not squared twice over": lambda one: replace(one, squared=one.squared / 2),
}


@pytest.mark.parametrize("network", sorted(NETWORKS))
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_distance_that_is_too_small_is_caught(network: str, mutation: str) -> None:
    worlds = Worlds.of(setup(network, samples=4))
    noise = AddedNoise("gaussian", 0.7 * worlds.typical)
    assert above(worlds, worlds.ceilings(noise), noise).max() <= ERRORS
    assert above(worlds, worlds.ceilings(noise, MUTATIONS[mutation]), noise).max() > 2 * ERRORS


@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_noise_that_is_counted_twice_is_caught(network: str) -> None:
    worlds = Worlds.of(setup(network, samples=4))
    noise = AddedNoise("gaussian", 0.7 * worlds.typical)
    double = AddedNoise("gaussian", 2 * noise.scale)
    assert above(worlds, worlds.ceilings(double), noise).max() > 2 * ERRORS


def test_one_secret_that_is_counted_twice_is_caught() -> None:
    """The least known coin stands for the best known one as well."""
    worlds = Worlds.of(setup("relu", relabeled=0))
    noise = AddedNoise("gaussian", 0.7 * worlds.typical)
    ceilings = worlds.ceilings(noise)
    best, least = ceilings[:, 0].argmax(), ceilings[:, 0].argmin()
    twice = ceilings.copy()
    twice[best] = ceilings[least]
    assert above(worlds, twice, noise).max() > 2 * ERRORS


def test_clipping_after_the_bound_instead_of_before_is_caught() -> None:
    """A mutation: distances of updates that are clipped to almost nothing do not bound those that
    are sent whole."""
    clipped, whole = (Worlds.of(setup("relu", defense=name)) for name in ("clip", "none"))
    noise = AddedNoise("gaussian", whole.typical)
    assert clipped.typical < 0.9 * whole.typical
    assert above(whole, clipped.ceilings(noise), noise).max() > 2 * ERRORS


# The product's own figure, on networks that are blind to each single step from the client's own
# samples and send nearly all of them from elsewhere.


class Gated(nn.Module):
    """Units that open once two entries or more have left their own values."""

    def __init__(self, own: torch.Tensor, steps: torch.Tensor) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(len(own), 6), nn.Linear(6, 3, bias=False)
        with torch.no_grad():
            counted = (1 / steps / len(own)).where(steps.abs() > 0.1, 0)  # dull entries are not
            self.first.weight.copy_(counted.expand(6, -1))
            self.first.bias.fill_(-1.5 / len(own) - float((own * counted).sum()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.first(x)))


class Thresholded(nn.Module):
    """Reads whether sums of entries are positive; of the client's own sample all sums are large."""

    def __init__(self, entries: int) -> None:
        super().__init__()
        signs = torch.ones(entries, entries)
        signs[torch.arange(entries), torch.arange(entries)] = -1
        signs[torch.arange(entries), (torch.arange(entries) + 1) % entries] = -1
        self.register_buffer("signs", signs)
        self.first, self.head = nn.Linear(entries, 6), nn.Linear(6, 3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.first((x @ self.signs > 0).float())))


class Nearby(nn.Module):
    """Units that are open at the client's own values and after one step, and shut elsewhere."""

    def __init__(self, own: torch.Tensor, steps: torch.Tensor) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(len(own), 6), nn.Linear(6, 3, bias=False)
        with torch.no_grad():
            self.first.weight.copy_((-1 / steps / len(own)).expand(6, -1))
            self.first.bias.fill_(1.5 / len(own) + float((own / steps / len(own)).sum()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.first(x)))


def blind(
    kind: str, samples: int = 1, entries: int = 8, *, dull: int = 0
) -> tuple[Simulation, Setup]:
    """A client, and all worlds of its coins; so many of the entries hardly differ."""
    torch.manual_seed(0)
    targets = torch.arange(samples)
    if kind == "thresholded":
        case = Simulation(Thresholded(entries), torch.ones(samples, entries), targets)
        steps = torch.full((entries,), -2.0, dtype=torch.float64)  # mirrored at 0
    else:
        inputs = torch.rand(1, entries).repeat(samples, 1)
        spread = torch.full((entries,), 0.5)
        spread[entries - dull :] = 0.01
        case = Simulation(nn.Linear(entries, 3), inputs, targets, spread=spread)
        steps = case.secrets()[0]._steps  # type: ignore[attr-defined]
        network = Gated if kind == "gated" else Nearby
        case = replace(case, model=network(inputs[0], steps.float()))
    moved = [(i, k, float(steps[k]) / 2) for i in range(samples) for k in range(entries)]
    return case, Setup(case.model, World(case.inputs, case.targets), moved)


def found_of(worlds: Worlds, noise: AddedNoise, samples: int) -> tuple[np.ndarray, float]:
    """(B,) leakage of each sample for the best attacker over all worlds, and its error."""
    found, error = worlds.best_attack(noise)
    weights = worlds.setup.weights.reshape(samples, -1)
    each = np.average(found[:, 0].reshape(samples, -1), axis=1, weights=weights)
    return each, float(error[:, 0].max())


PAIRS = 256  # [pairs of worlds] of each kind: limits within five points of the mean


@pytest.mark.parametrize("kind", ["gated", "thresholded"])
@pytest.mark.parametrize("relative", [0.4, *long(0.1)])
def test_the_product_bounds_the_best_attacker_of_a_network_that_is_blind_around_its_sample(
    kind: str, relative: float
) -> None:
    case, setup = blind(kind)
    worlds = Worlds.of(setup)
    own = case.client([])(case.world).noisy
    for place in range(8):  # no single step changes what is sent
        there = case.client([])(_stepped(setup, place)).noisy
        assert all(torch.equal(own[name], there[name]) for name in own)
    middle = [worlds._pair(k, 2**6 + 11) for k in range(8)]
    typical = float(np.mean([(worlds.updates[a] - worlds.updates[b]).norm() for a, b in middle]))
    noise = AddedNoise("gaussian", relative * typical)
    found, error = found_of(worlds, noise, 1)
    assert found[0] > 0.2
    bound_ = prove(case, [Noise(noise.scale)], effort=Effort(pairs=PAIRS, most=PAIRS))
    assert found[0] <= float(bound_.samples[0]) + ERRORS * error
    exact = total(worlds, worlds.ceilings(noise))
    assert float(bound_.lower[0]) <= exact <= float(bound_.samples[0])
    assert float(bound_.samples[0]) < exact + 0.15  # and it is a limit that says something
    assert prove(case, []).decided(0.2) == "above"  # without noise as well


def _stepped(setup: Setup, place: int) -> World:
    i, entry, size = setup.moved[place]
    inputs = setup.world.inputs.clone()
    inputs[i, entry] += 2 * size
    return setup.world._replace(inputs=inputs)


@pytest.mark.long
def test_four_thousand_worlds_of_two_samples_that_are_gated() -> None:
    case, setup = blind("gated", samples=2, entries=6)
    worlds = Worlds.of(setup)
    assert len(worlds.signs) == 2**12
    noise = AddedNoise("gaussian", 0.02)
    found, error = found_of(worlds, noise, 2)
    assert found.min() > 0.2
    figure = prove(case, [Noise(noise.scale)], effort=Effort(pairs=128, most=128))
    assert bool((found <= figure.samples.numpy() + ERRORS * error).all())
    assert figure.decided(0.2) == "above"


def test_a_network_that_is_open_around_its_sample_alone_is_bounded_there() -> None:
    """Around worlds at random hardly anything is read; who knows all signs but one reads it."""
    case, setup = blind("nearby", entries=8)
    worlds = Worlds.of(setup)
    noise = AddedNoise("gaussian", 1e-4)
    assert total(worlds, worlds.ceilings(noise)) < 0.2
    figure = prove(case, [Noise(noise.scale)], effort=Effort(pairs=64, most=64))
    assert float(figure.lower[0]) > 0.8


def _halved(one: Separation) -> Separation:
    return replace(one, squared=one.squared / 4)


@pytest.mark.parametrize(
    "mutation", ["half the distance", *long("double the noise", "one secret twice")]
)
def test_mutations_of_the_product_are_caught(
    mutation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gated client of eight entries and a dull one, of which the best attacker reads almost all
    that the bound allows."""
    case, setup = blind("gated", entries=9, dull=1)
    worlds = Worlds.of(setup)
    noise = AddedNoise("gaussian", 0.2)
    found, error = found_of(worlds, noise, 1)
    effort = Effort(pairs=PAIRS, most=PAIRS)
    whole = prove(case, [Noise(noise.scale)], effort=effort)
    assert found[0] <= float(whole.samples[0]) + ERRORS * error
    if mutation == "half the distance":
        true = bound.separated
        monkeypatch.setattr(bound, "separated", lambda a, b, **how: _halved(true(a, b, **how)))
    if mutation == "one secret twice":
        monkeypatch.setattr(components, "drawn", lambda mass, _share: len(mass) - 1)  # the dull one
    scale = noise.scale * (2 if mutation == "double the noise" else 1)
    broken = prove(case, [Noise(scale)], effort=effort)
    assert found[0] > float(broken.samples[0]) + ERRORS * error
