"""Reflections: closest points of bent lines and of flat sets, and where the walk between them
ends."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn

import unsum
from unsum.network.activations import activation_of
from unsum.network.chain import find_chain
from unsum.spans import reflect
from unsum.spans.basis import LayerSpan
from unsum.spans.roots import Condition, Further, descend, starts


def condition(
    B: int, *, bias: bool = True, further: bool = False
) -> tuple[Condition, torch.Tensor]:
    """Of B samples in a network 80-64-64-64-4, and the samples."""
    torch.manual_seed(0)
    layers = [(nn.Linear(n, m, bias=bias), nn.ReLU()) for n, m in ((80, 64), (64, 64), (64, 64))]
    model = nn.Sequential(*itertools.chain(*layers), nn.Linear(64, 4, bias=bias))
    x = torch.randn(B, 80)
    chain = find_chain(model, unsum.capture(model, x, torch.arange(B) % 4), torch.device("cpu"))
    here, following, above = (LayerSpan.of(step) for step in chain.steps[:3])
    more = Further(chain.steps[1], above) if further else None
    return Condition.of(chain.steps[0], here, following, more), x.double()


def test_a_span_of_nothing_but_noise_ends_every_start() -> None:
    """No misfit exceeds 1, however small the span's singular values are."""
    plain, _ = condition(3)
    usual = plain.least_misfit
    assert 0 < usual < 1e-3
    nothing = replace(plain.next, values=torch.zeros_like(plain.next.values), noise=1.0)
    drowned = replace(plain, next=nothing)
    assert drowned.least_misfit == 1
    points = starts(plain, 5, torch.Generator().manual_seed(0), rows=True)
    assert len(descend(drowned, points)) == 5


@pytest.mark.parametrize(
    ("module", "slopes"),
    [
        (nn.ReLU(), (0.0, 1.0)),
        (nn.LeakyReLU(0.25), (0.25, 1.0)),
        (nn.GELU(), None),
        (nn.Tanh(), None),
        (nn.ELU(), None),
    ],
)
def test_two_straight_lines_are_told_from_curves(
    module: nn.Module, slopes: tuple[float, float] | None
) -> None:
    activation = activation_of(module)
    assert activation is not None
    assert reflect.slopes(activation) == slopes


@pytest.mark.parametrize("lines", [(0.0, 1.0), (0.2, 1.0)])
def test_no_point_of_the_bent_line_is_closer(lines: tuple[float, float]) -> None:
    z, a = torch.randn(2, 200, generator=torch.Generator().manual_seed(0))
    line = torch.linspace(-5, 5, 20001)
    bent = torch.where(line > 0, lines[1] * line, lines[0] * line)
    least = ((line - z[:, None]) ** 2 + (bent - a[:, None]) ** 2).min(1).values
    x, y = reflect._onto_lines(z, a, list(lines))
    assert torch.equal(y, torch.where(x > 0, lines[1] * x, lines[0] * x))
    assert float(((x - z) ** 2 + (y - a) ** 2 - least).max()) < 1e-6


@pytest.mark.parametrize("bias", [True, False])
def test_every_start_ends_near_a_sample(bias: bool) -> None:
    """At a quarter of the width; without biases up to the sample's length, which nothing tells
    there."""
    given, x = condition(16, bias=bias)
    s = reflect.reflected(
        given, starts(given, 32, torch.Generator().manual_seed(0), rows=True), 2000
    )
    ends = given.inputs(s)
    alike = nn.functional.cosine_similarity(x[:, None], ends, dim=2)
    assert len(ends) > 28
    assert float(alike.amax(0).median()) > 0.99


@pytest.mark.parametrize("further", [True, False])
def test_samples_are_points_of_the_flat_sets(further: bool) -> None:
    given, x = condition(20, further=further)
    point = reflect.begin(given, given.unknowns_of(x))
    flats = reflect.flats(given)
    for flat, part in zip(flats, point.split([len(flat.origin) for flat in flats], 1), strict=True):
        assert float((flat.closest(part) - part).abs().max()) < 1e-4


@pytest.mark.parametrize("further", [True, False])
def test_derivatives_are_those_of_the_misfit(further: bool) -> None:
    given, x = condition(20, further=further)
    s = (
        given.unknowns_of(x)
        + 0.1 * torch.randn(20, given.unknowns, generator=torch.Generator().manual_seed(0)).double()
    )
    squares = torch.func.grad(lambda t: given.misfit(t).square().sum())(s)
    at = given.linearize(s)
    torch.testing.assert_close(at.cost, given.misfit(s).square())
    torch.testing.assert_close(2 * at.gradient, squares)
    assert float(torch.linalg.eigvalsh(at.matrix).min()) > 0
