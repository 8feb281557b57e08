"""Bounds of what is determined of one sample: values by hand, and never beyond the whole
equations."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from unsum.certify.doubts.mixing import mixed_at_most
from unsum.certify.further import FurtherUnknown, all_others, further_unknowns, lengths, temperature
from unsum.certify.information import sample_information
from unsum.equation.equation import Equation, Linearized, Unknowns
from unsum.losses import SquaredError

ALPHA = 0.5


def numbers(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def squared(T: Tensor, K: Tensor, G: Tensor) -> Linearized:
    """The equation of a squared error, at a point where its derivative by the logits is G."""
    C = K.shape[1]
    b = torch.zeros(C, dtype=torch.float64)
    U = torch.zeros(C, T.shape[1], dtype=torch.float64)
    equation = Equation(K, b, U, torch.ones_like(b), Y=T @ K - G, loss=SquaredError())
    return Linearized(equation, Unknowns.of(T, ALPHA))


def test_one_sample_by_hand() -> None:
    """K = (3, 4, 5) without its part along G = (0, 0, 1) has the length 5, times α."""
    here = squared(numbers([1.0]), numbers([3.0, 4.0, 5.0]), numbers([0.0, 0.0, 1.0]))
    further = numbers([4.0, -3.0, 7.0], [6.0, 8.0, -1.0]).unsqueeze(1)  # beside K and G; along them
    found = sample_information(here, further)
    assert found.variance.tolist() == pytest.approx([1 / (ALPHA * 5) ** 2])
    assert found.beside[:, 0].tolist() == pytest.approx([(ALPHA * 5) ** 2, 0.0], abs=1e-9)
    assert found.moves[:, 0].tolist() == pytest.approx([0.0, 4.0], abs=1e-9)
    # A unit of the second moves T by 2; as nothing shows it, it is as uncertain as its prior: 1.
    assert found.variance_with(1, 3.0).tolist() == pytest.approx([9 / 6.25 + 9 * 4 / 9])


def test_other_samples_only_blur() -> None:
    """T = diag(2, 4): what shows of each sample is multiplied by its own length."""
    K = numbers([1.0, 0.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0, 0.0])
    G = numbers([0.0, 0.0, 1.0, 0.0, 0.0], [0.0, 0.6, 0.8, 0.0, 0.0])
    here = squared(torch.diag(torch.tensor([2.0, 4.0], dtype=torch.float64)), K, G)
    # G spans the second and the third class, so that nothing is left of the second direction.
    unsure = sample_information(here, torch.zeros(0, 2, 5, dtype=torch.float64))
    assert bool(unsure.variance.isinf().all())
    here = squared(here.at.T, K, numbers([0.0, 0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.6, 0.8, 0.0]))
    found = sample_information(here, torch.zeros(0, 2, 5, dtype=torch.float64))
    assert found.variance.tolist() == pytest.approx([2 / (2 * ALPHA) ** 2, 2 / (4 * ALPHA) ** 2])


def test_no_bound_without_room_or_independent_samples() -> None:
    K, G = numbers([1.0, 2.0, 4.0], [1.0, -1.0, 3.0]), numbers([1.0, 0.0, 1.0], [0.0, 1.0, 1.0])
    nothing = torch.zeros(0, 2, 3, dtype=torch.float64)
    assert bool(
        sample_information(squared(torch.eye(2).double(), K, G), nothing).variance.isinf().all()
    )
    wide = torch.cat([K, K + 0.5 * K.square()], dim=1), torch.cat([G, -G], dim=1)
    nothing = torch.zeros(0, 2, 6, dtype=torch.float64)
    dependent = squared(numbers([1.0, 2.0], [2.0, 4.0]), *wide)
    assert bool(sample_information(dependent, nothing).variance.isinf().all())
    independent = squared(numbers([1.0, 2.0], [2.0, 5.0]), *wide)
    assert bool(sample_information(independent, nothing).variance.isfinite().all())


@pytest.mark.parametrize("floor_free", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_never_beyond_the_whole_equations(seed: int, floor_free: bool) -> None:
    """With every weight free the exact variance is below the bound, and what shows above it."""
    generator = torch.Generator().manual_seed(seed)
    B, C = 4, 30
    noise = torch.randn(B, B, generator=generator, dtype=torch.float64)
    T = 1 + 2 * torch.eye(B) + 0.2 * noise
    K = 0.3 * torch.randn(B, C, generator=generator, dtype=torch.float64)
    labels = torch.tensor([3, 3, 7, 11])
    Y = torch.nn.functional.one_hot(labels, C).double()
    weight = 1e3 * (0.5 + torch.rand(C, generator=generator, dtype=torch.float64))
    U = torch.zeros(C, B + 1, dtype=torch.float64)
    b = 0.3 * torch.randn(C, generator=generator, dtype=torch.float64)
    equation = Equation(K, b, U, weight, 2.0, Y, floor_free=floor_free)
    here = Linearized(equation, Unknowns.of(T, 1 / B, 0.001))
    found = sample_information(here, further_unknowns(here, all_others(here)))
    size = T.numel()
    J = here.push(torch.eye(size + 2, dtype=torch.float64))
    J = J[: size + floor_free].flatten(1)
    D = (weight[:, None] / B * torch.einsum("ic,ik->ick", here.G, here.T)).flatten(1)
    information = torch.cat([J, D]) @ torch.cat([J, D]).T
    exact = torch.linalg.inv(information).diagonal()[:size].view(B, B).sum(1)
    assert bool((exact < found.variance).all())
    assert float((found.variance / exact).max()) < 1e4  # a bound that decides something
    tempered = here.sent(temperature(here)).flatten()[None]
    information = torch.cat([J, D, tempered]) @ torch.cat([J, D, tempered]).T
    information[-1, -1] += 1
    exact = torch.linalg.inv(information).diagonal()[:size].view(B, B).sum(1)
    assert bool((exact < found.variance_with(FurtherUnknown.TEMPERATURE, 1.0)).all())
    first, second = lengths(here)
    for i in range(B):
        column = 0.5 * torch.einsum("c,k->ck", second[i], here.T[i])
        column[:, :B] += torch.einsum("c,k->ck", first[i], T[i])
        column = (weight[:, None] / B * column).flatten()
        left = column - J.T @ torch.linalg.lstsq(J.T, column[:, None]).solution[:, 0]
        bound = float(found.beside[FurtherUnknown.LENGTHS, i])
        assert 1e-4 * float(left.square().sum()) < bound < float(left.square().sum())


def test_an_exchange_of_labels_by_hand() -> None:
    """e_0 − e_1 shows with both its parts where neither K nor G reaches those classes: √2 α times
    its sample's length."""
    K = numbers([0.0, 0.0, 1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0, 0.0, 0.0])
    T, C = torch.diag(torch.tensor([2.0, 4.0], dtype=torch.float64)), 6
    Y = torch.nn.functional.one_hot(torch.tensor([0, 1]), C).double()
    b = torch.zeros(C, dtype=torch.float64)
    G = numbers([0.0, 0.0, 0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0, 1.0])
    equation = Equation(
        K, b, torch.zeros(C, 2).double(), torch.ones_like(b), Y=Y, loss=SquaredError()
    )
    here = Linearized(equation, Unknowns.of(T, ALPHA))
    here.G = G
    found = sample_information(
        here, further_unknowns(here, all_others(here))[FurtherUnknown.EXCHANGED :]
    )
    shown = [[0.0, 2 * (4 * ALPHA) ** 2], [2 * (2 * ALPHA) ** 2, 0.0]]
    assert torch.allclose(found.beside, numbers(*shown), atol=1e-9)
    here.cost = torch.tensor(9.0, dtype=torch.float64)
    bounds = replace(
        found, beside=torch.cat([torch.zeros(FurtherUnknown.EXCHANGED, 2).double(), found.beside])
    )
    labels, misfit = torch.tensor([0, 1]), torch.tensor(2.0, dtype=torch.float64)
    most = mixed_at_most(bounds, here, labels, misfit)
    assert float(most) == pytest.approx((3 + 4 * 2) / (0.5 * 2 * (2 * ALPHA) ** 2 + 4) ** 0.5)
    assert float(mixed_at_most(bounds, here, torch.zeros_like(labels), misfit)) == 0.0
