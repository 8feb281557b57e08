"""Samples that count unequally: every one comes back with its weight, and none of it is claimed."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import unsum
from support.long import long
from unsum.equation.equation import Linearized, Unknowns
from unsum.equation.observation import observe
from unsum.head import Head

CASES = [
    ([0, 0, 1, 1, 2], [3.0, 3, 3, 1, 1]),  # two clients' batches, averaged 3:1, labels shared
    ([0, 1, 2, 3], [1.0, 1, 3, 3]),
    ([0, 0, 2, 3], [1.0, 1.7, 0.6, 2.2]),  # no whole numbers: copies of samples explain nothing
    ([7, 7, 7, 7], [1.0, 1, 3, 3]),
]


def weighted(
    labels: list[int],
    weights: list[float],
    *,
    classes: int = 30,
    inputs: int = 64,
    bias: bool = True,
    seed: int = 0,
) -> tuple[nn.Linear, unsum.Update, Tensor, Tensor]:
    """A head, the gradient of a weighted mean, the features, and the weights with a mean of 1."""
    torch.manual_seed(seed)
    features, model, w = (
        torch.randn(len(labels), inputs).relu(),
        nn.Linear(inputs, classes, bias=bias),
        torch.tensor(weights),
    )
    losses = nn.functional.cross_entropy(model(features), torch.tensor(labels), reduction="none")
    ((w * losses).sum() / w.sum()).backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return model, unsum.Update(gradients), features, w / w.mean()


def assert_recovered(leak: unsum.Leak, features: Tensor, labels: Tensor, weights: Tensor) -> None:
    assert not leak.exact
    assert leak.weights is not None
    distances = torch.cdist(features, leak.features.float()) / features.norm(dim=1, keepdim=True)
    nearest, place = distances.min(1)
    assert sorted(place.tolist()) == list(range(len(features)))  # nobody twice, nobody made up
    assert float(nearest.max()) < 1e-3
    assert math.isnan(leak.predicted_error)  # nobody asked what else would send this
    assert leak.labels[place].tolist() == labels.tolist()
    assert leak.weights[place].tolist() == pytest.approx(weights.tolist(), rel=1e-3)


@pytest.mark.parametrize(
    ("labels", "weights", "classes", "inputs"),
    [
        *((*case, 30, 64) for case in CASES),
        *long(*((*case, 100, 128) for case in CASES[::2])),
        *long(*((*case, 1000, 768) for case in CASES[1::2])),
    ],
)
def test_every_sample_comes_back_with_its_weight(
    labels: list[int], weights: list[float], classes: int, inputs: int
) -> None:
    model, update, features, w = weighted(labels, weights, classes=classes, inputs=inputs)
    leak = unsum.separate(model, update, "uneven")
    assert_recovered(leak, features, torch.tensor(labels), w)
    assert leak.scale == pytest.approx(1, rel=1e-4)


@pytest.mark.parametrize(("labels", "weights"), [CASES[0], *long(CASES[2])])
def test_auto_finds_them_where_equal_weights_explain_nothing(
    labels: list[int], weights: list[float]
) -> None:
    model, update, features, w = weighted(labels, weights)
    assert not unsum.separate(model, update).exact
    leak = unsum.attack(model, update)
    assert leak.method == "uneven"
    assert (
        leak.notes[0]
        == "Samples of equal weights do not explain the gradient, samples of unequal ones do."
    )
    assert_recovered(leak, features, torch.tensor(labels), w)


def test_micro_batches_of_unequal_size() -> None:
    """Mean losses of micro-batches of four and two, accumulated: who is in the smaller one counts
    twice."""
    torch.manual_seed(1)
    model, features, labels = (
        nn.Linear(64, 40),
        torch.randn(6, 64).relu(),
        torch.tensor([0, 1, 2, 2, 3, 3]),
    )
    for part in (slice(0, 4), slice(4, 6)):
        (nn.functional.cross_entropy(model(features[part]), labels[part]) / 2).backward()
    update = unsum.Update(
        {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    )
    leak = unsum.separate(model, update, "uneven")
    assert_recovered(leak, features, labels, torch.tensor([0.75, 0.75, 0.75, 0.75, 1.5, 1.5]))


def test_class_weights_that_nobody_declared() -> None:
    torch.manual_seed(2)
    model, features, labels = (
        nn.Linear(64, 30),
        torch.randn(4, 64).relu(),
        torch.tensor([3, 3, 8, 20]),
    )
    by_class = torch.linspace(0.5, 2, 30)
    nn.functional.cross_entropy(model(features), labels, by_class).backward()
    update = unsum.Update(
        {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    )
    w = by_class[labels] / by_class[labels].mean()
    assert_recovered(unsum.separate(model, update, "uneven"), features, labels, w)


def test_equal_weights_are_found_to_be_equal() -> None:
    model, update, features, w = weighted([0, 0, 1, 2], [1.0] * 4)
    leak = unsum.separate(model, update, "uneven")
    assert_recovered(leak, features, torch.tensor([0, 0, 1, 2]), w)
    assert leak.notes[0].startswith("Samples count alike")


def test_siblings_pass_as_one_that_counts_twice_and_nothing_is_claimed() -> None:
    """Why no answer of this kind is claimed: two samples 1 % apart send what one of twice the
    weight sends."""
    torch.manual_seed(3)
    model, features = nn.Linear(64, 30), torch.randn(3, 64).relu()
    with torch.no_grad():
        model.weight *= 0.01
    near = features[:1] + 0.02 * features[:1].norm() * nn.functional.normalize(
        torch.randn(1, 64), dim=1
    )
    update = unsum.capture(model, torch.cat([features, near]), torch.tensor([0, 1, 2, 0]))
    leak = unsum.separate(model, update, "uneven")
    assert not leak.exact
    assert leak.batch_size == 3
    assert sorted(leak.weights.tolist()) == pytest.approx([0.75, 0.75, 1.5], rel=1e-2)  # type: ignore[union-attr]


def test_a_gradient_that_no_samples_explain_is_not_expected_to_be_explained() -> None:
    torch.manual_seed(4)
    U = torch.randn(30, 5)
    U = U - U.mean(0)
    update = unsum.Update({"weight": U @ torch.randn(5, 64).relu(), "bias": U.sum(1)})
    leak = unsum.separate(nn.Linear(64, 30), update, "uneven")
    assert not leak.exact
    assert leak.predicted_error == float("inf")


def test_too_many_samples_are_refused_in_one_sentence() -> None:
    torch.manual_seed(5)
    model = nn.Linear(256, 1000)
    update = unsum.capture(model, torch.randn(40, 256), torch.arange(40))
    with pytest.raises(unsum.UnsumError, match="sought for fewer samples than 40 of 1000 classes"):
        unsum.separate(model, update, "uneven")
    few = nn.Linear(64, 5)
    told = unsum.separate(
        few, unsum.capture(copy.deepcopy(few), torch.randn(4, 64), torch.arange(4)), "uneven"
    )
    assert told.notes == [
        "4 directions are too many for 5 classes, where every sample has a weight of its own."
    ]


@pytest.mark.parametrize("bias", [True, False])
def test_the_jacobian_is_the_derivative(bias: bool) -> None:
    torch.manual_seed(0)
    model = nn.Linear(40, 12)
    head = Head.of(model, unsum.capture(model, torch.randn(3, 40).relu(), torch.tensor([1, 2, 2])))
    observation = observe(head if bias else replace(head, grad_b=None), None)
    Y = torch.nn.functional.one_hot(torch.tensor([1, 2, 2]), 12).double()
    equation = replace(observation.equation(), Y=Y, alpha_free=True)
    at, R = torch.randn(3 * observation.rank + 4, dtype=torch.float64), observation.rank

    def residual(s: Tensor) -> Tensor:
        return equation.residual(Unknowns.of_vector(s, 3, R)).flatten()

    expected, here = (
        torch.func.jacfwd(residual)(at),
        Linearized(equation, Unknowns.of_vector(at, 3, R)),
    )
    expected[:, 3 * R] = 0.0  # the floor is not free
    jacobian = here.push(torch.eye(len(at), dtype=torch.float64)).flatten(1).T
    rounding = 1e-12 * float(expected.abs().max())
    assert torch.allclose(jacobian, expected, rtol=1e-9, atol=rounding)
    normal = expected.T @ expected
    normal[3 * R, 3 * R] = 1.0
    assert torch.allclose(
        here.normal_matrix, normal, rtol=1e-9, atol=rounding * float(expected.abs().max())
    )
    assert torch.allclose(here.normal_diagonal, normal.diagonal(), rtol=1e-9)
    assert torch.allclose(here.gradient, expected.T @ here.residual.flatten(), rtol=1e-9)
