"""A ceiling is in the unit of the leakage, for this sample: the best attacker's answers, scored as
reports score them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

from unsum.ceiling import Effort, Simulation, prove
from unsum.ceiling.bound import Distances
from unsum.ceiling.client import SimulatedClient
from unsum.ceiling.components import Components, moved
from unsum.defend import Noise
from unsum.defend.added import AddedNoise
from unsum.photos import coefficients, component
from unsum.score.reference import distance, guess, public_picture

SIDE, DRAWS = 4, 3000
SHAPE = (1, SIDE, SIDE)


@dataclass(frozen=True)
class Case:
    """Two small pictures, of which the first is read."""

    model: nn.Module
    inputs: Tensor
    targets: Tensor

    @classmethod
    def of(cls, seed: int, contrast: float, activation: Callable[[], nn.Module] = nn.ReLU) -> Case:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 6), activation(), nn.Linear(6, 3))
        inputs = 0.5 + contrast * (torch.rand(2, *SHAPE) - 0.5)
        return cls(model, inputs, torch.tensor([0, 2]))

    @property
    def simulation(self) -> Simulation:
        return Simulation(self.model, self.inputs, self.targets)

    @property
    def guess(self) -> Tensor:
        return self.simulation._guess[0].view(SHAPE)

    def leakage(self, sigma: float) -> float:
        """1 − E‖x̂ − x‖² / ‖guess − x‖² of an attacker that knows all but one sign, summed over the
        components, in the mean over both signs; x̂ is its posterior mean."""
        client, case, unread = SimulatedClient(self.model), self.simulation, 0.0
        draw = torch.Generator().manual_seed(0)
        off = coefficients((self.inputs[0].double() - self.guess)[None]).flatten()
        whole = float(distance(self.guess[None], self.inputs[:1]))
        for place, size in enumerate(off.tolist()):
            unit = component(SHAPE, place)
            pair = moved(case.world, 0, -2 * size * unit, place)
            clean = torch.stack(
                [
                    torch.cat([g.flatten() for g in client(w).noisy.values()]).double()
                    for w in (pair.one, pair.other)
                ]
            )
            coin = torch.randint(2, (DRAWS,), generator=draw)
            sent = clean[coin] + sigma * torch.randn(
                DRAWS, clean.shape[1], dtype=torch.float64, generator=draw
            )
            ratio = ((sent - clean[0]).square().sum(1) - (sent - clean[1]).square().sum(1)) / (
                2 * sigma**2
            )
            truth = torch.stack([pair.one.inputs[0], pair.other.inputs[0]]).double()
            chance = ratio.sigmoid()[:, None, None, None]
            answers = (1 - chance) * truth[0] + chance * truth[1]
            unread += float(distance(answers, truth[coin]).mean())
        return 1 - unread / whole


def limits(case: Case, sigma: float, secret: Components | None = None) -> tuple[float, float]:
    secret = secret or case.simulation.secrets()[0]  # type: ignore[assignment]
    distances = Distances(SimulatedClient(case.model), case.simulation.world, [secret])  # type: ignore[list-item]
    while distances.pairs < 256:
        distances.cycle(0, "own")
    found = distances.known(0, AddedNoise("gaussian", sigma), "own")
    return found.lower, found.upper


@pytest.mark.parametrize("contrast", [0.1, 1.0])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_best_attacker_reaches_the_ceiling_in_the_unit_of_reports_and_does_not_pass_it(
    seed: int, contrast: float
) -> None:
    case = Case.of(seed, contrast)
    sigma = 0.06 * contrast
    found = case.leakage(sigma)
    lower, upper = limits(case, sigma)
    assert 0.1 < found < 0.99
    assert lower - 0.02 < found < upper + 0.02
    assert upper - lower < 0.25
    audited = prove(case.simulation, [Noise(sigma)], effort=Effort(pairs=64))
    assert found < float(audited.samples[0]) + 0.02


def test_the_guess_is_that_of_the_report() -> None:
    case = Case.of(0, 1.0)
    color = public_picture(case.inputs)
    expected = guess(case.inputs, color, torch.tensor([True, True]))
    assert torch.equal(case.simulation._guess, expected)
    assert not torch.equal(expected[0], torch.zeros(SIDE**2))


def test_steps_that_are_those_of_other_photos_are_caught() -> None:
    """A mutation: each component a tenth as large as this picture's, as a dull spectrum would have
    it; and a mirror at black."""
    case = Case.of(0, 1.0, nn.Tanh)  # of a ReLU a small step may flip the gate as well
    sigma = 0.06
    found = case.leakage(sigma)
    own = case.simulation.secrets()[0]
    assert isinstance(own, Components)
    dull = replace(own, guess=(case.inputs[0] + 0.1 * (case.guess - case.inputs[0])).flatten())
    assert limits(case, sigma, dull)[1] < found - 0.05
    black = replace(own, guess=torch.zeros(SIDE**2, dtype=torch.float64))
    assert limits(case, sigma, black)[0] > found + 0.05
