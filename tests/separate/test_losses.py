"""Losses other than cross-entropy: every sample exact where the gradient determines it, and no
claim where it does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

import unsum
from unsum.equation.equation import Equation, Linearized, Unknowns
from unsum.errors import UnsumError
from unsum.leak import Leak
from unsum.losses import (
    BinaryCrossEntropy,
    Focal,
    Loss,
    SquaredError,
    WeightedCrossEntropy,
    declared,
)
from unsum.separate.exact.regression import ClassLine
from unsum.separate.losses import softmax as softmax_starts

H, C = 96, 40
WEIGHT = torch.linspace(0.5, 4, C)
Value = Callable[[Tensor, Tensor], Tensor]


def focal(logits: Tensor, Y: Tensor) -> Tensor:
    p = (torch.softmax(logits, dim=1) * Y).sum(1)
    return (-((1 - p) ** 2) * p.log()).mean()


LOSSES: dict[str, tuple[Loss, Value]] = {
    "bce": (BinaryCrossEntropy(), nn.functional.binary_cross_entropy_with_logits),
    "mse": (SquaredError(), nn.functional.mse_loss),
    "focal": (Focal(2.0), focal),
    "weighted": (
        WeightedCrossEntropy(WEIGHT),
        lambda logits, Y: nn.functional.cross_entropy(logits, Y.argmax(1), WEIGHT.to(logits)),
    ),
    "smoothed": (
        WeightedCrossEntropy(WEIGHT, 0.1),
        lambda logits, Y: nn.functional.cross_entropy(
            logits, Y.argmax(1), WEIGHT.to(logits), label_smoothing=0.1
        ),
    ),
}


def rows(name: str, B: int, *, equal: int = 1) -> Tensor:
    """Targets: one label each, or for `bce` one of its own and one that two samples share."""
    labels = torch.randperm(C)[:B]
    labels[:equal] = labels[0].clone()
    Y = nn.functional.one_hot(labels, C).float()
    if name == "bce" and B > 1:
        shared = (labels.max() + 1) % C
        Y[0, shared] = Y[1, shared] = 1
    return Y


def client(
    name: str, B: int, *, bias: bool = True, equal: int = 1, scale: float = 1.0, seed: int = 0
):
    """A head, the update that the client sends, its features and its targets."""
    torch.manual_seed(seed)
    model, features, Y = (
        nn.Linear(H, C, bias=bias),
        torch.randn(B, H).relu(),
        rows(name, B, equal=equal),
    )
    gradients = torch.autograd.grad(LOSSES[name][1](model(features), Y), list(model.parameters()))
    named = zip(dict(model.named_parameters()), gradients, strict=True)
    return model, unsum.Update({key: scale * g for key, g in named}), features, Y


def assert_exact(leak: Leak, features: Tensor, Y: Tensor) -> None:
    assert leak.exact, leak.notes
    assert leak.batch_size == len(features)
    distances = (
        torch.cdist(features.double(), leak.features.double()) / features.norm(dim=1)[:, None]
    )
    true, found = linear_sum_assignment(distances)
    assert float(distances[true, found].max()) < 1e-4
    assert torch.equal(leak.targets[torch.as_tensor(found)].float(), Y)


@pytest.mark.parametrize("name", LOSSES)
def test_the_declared_gradient_is_the_one_that_autograd_takes(name: str) -> None:
    torch.manual_seed(1)
    loss, value = LOSSES[name]
    Y, logits = (
        rows(name, 4).double(),
        (2 * torch.randn(4, C, dtype=torch.float64)).requires_grad_(),
    )
    (expected,) = torch.autograd.grad(value(logits, Y), logits)
    found = loss.gradient(logits.detach(), Y) / loss.divisor(Y)
    assert torch.allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("name", LOSSES)
def test_the_normal_matrix_is_that_of_the_residual(name: str) -> None:
    torch.manual_seed(2)
    B, R = 3, 4
    K, b, U = (torch.randn(*shape, dtype=torch.float64) for shape in ((R, C), (C,), (C, R + 1)))
    weight, Y = torch.rand(C).double(), rows(name, B).double()
    equation = Equation(K, b, U, weight, 0.7, Y=Y, alpha_free=True, loss=LOSSES[name][0])
    zero = torch.zeros((), dtype=torch.float64)
    at = Unknowns(torch.randn(B, R, dtype=torch.float64), zero, zero[None] - 0.3)

    def residual(x: Tensor) -> Tensor:
        return equation.residual(Unknowns(x[:-1].view(B, R), zero, x[-1:])).flatten()

    x = torch.cat([at.T.flatten(), at.log_alpha])
    J, r, here = torch.func.jacrev(residual)(x), residual(x), Linearized(equation, at)
    free = torch.arange(B * R + 2) != B * R  # all but the floor
    assert torch.allclose(here.normal_matrix[free][:, free], J.T @ J, rtol=1e-9, atol=1e-9)
    assert torch.allclose(here.gradient[free], J.T @ r, rtol=1e-9, atol=1e-9)
    assert torch.allclose(here.normal_diagonal[free], (J.T @ J).diagonal(), rtol=1e-9, atol=1e-9)
    assert here.cost == pytest.approx(float(r.square().sum()))
    V = torch.randn(3, *equation.U.shape, dtype=torch.float64)
    assert torch.allclose(here.pull(V)[:, free], V.flatten(1) @ J, rtol=1e-9, atol=1e-9)
    steps = torch.randn(3, B * R + 2, dtype=torch.float64)
    assert torch.allclose(here.push(steps).flatten(1), steps[:, free] @ J.T, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize(("B", "bias"), [(1, True), (5, True), (5, False)])
def test_a_declared_loss_gives_every_sample(name: str, B: int, bias: bool) -> None:
    model, update, features, Y = client(name, B, bias=bias)
    leak = unsum.separate(model, update, loss=LOSSES[name][0])
    if name == "bce" and not bias:  # (f, y) and (−f, 1 − y) send the same
        assert not leak.exact
        assert any("its negative" in note for note in leak.notes)
        return
    assert_exact(leak, features, Y)
    assert leak.loss == LOSSES[name][0].name
    assert leak.scale == pytest.approx(1, abs=1e-3)
    assert any("loss" in sentence for sentence in leak.knowledge.granted())


@pytest.mark.parametrize("name", ["bce", "mse", "focal", "weighted"])
def test_a_scaled_gradient_tells_its_scale(name: str) -> None:
    model, update, features, Y = client(name, 4, scale=0.037)
    leak = unsum.separate(model, update, loss=LOSSES[name][0])
    assert_exact(leak, features, Y)
    assert leak.scale == pytest.approx(0.037, rel=1e-3)


@pytest.mark.parametrize("name", ["focal", "weighted", "smoothed"])
def test_softmax_separates_equal_labels(name: str) -> None:
    model, update, features, Y = client(name, 4, equal=2)
    assert_exact(unsum.separate(model, update, loss=LOSSES[name][0]), features, Y)


def test_the_squared_error_determines_two_of_equal_label() -> None:
    model, update, features, Y = client(
        "mse", 4, equal=2
    )  # only their exchange leaves sum and second moment as they are
    leak = unsum.separate(model, update, loss="mse")
    distances = torch.cdist(features, leak.features) / features.norm(dim=1)[:, None]
    assert float(distances.amin(1).max()) < 1e-4
    assert torch.equal(leak.labels.sort().values, Y.argmax(1).sort().values)
    # with other weights of the two, other features have the same sum and second moment
    assert not leak.exact
    assert any("weigh the same" in note for note in leak.notes)


def test_the_squared_error_gives_only_the_mean_of_three_equal_labels_and_says_so() -> None:
    model, update, features, _ = client("mse", 5, equal=3)
    leak = unsum.separate(model, update, loss="mse")
    assert not leak.exact
    assert any("cannot be told apart" in note for note in leak.notes)
    distances = torch.cdist(features, leak.features) / features.norm(dim=1)[:, None]
    assert float(distances[3:].amin(1).max()) < 1e-4  # those with labels of their own
    means = torch.cdist(features[:3].mean(0)[None], leak.features) / features[0].norm()
    assert int((means < 1e-4).sum()) == 3


@pytest.mark.parametrize("name", ["bce", "mse"])
def test_the_update_itself_tells_that_it_is_no_cross_entropy(name: str) -> None:
    model, update, features, Y = client(name, 5)
    leak = unsum.attack(model, update)
    assert_exact(leak, features, Y)
    assert leak.loss == name
    assert any("does not sum to zero" in note for note in leak.notes)
    assert leak.inputs is None  # peeling would take the errors for those of softmax


@pytest.mark.parametrize("name", LOSSES)
def test_a_gradient_taken_for_cross_entropy_is_not_certified(name: str) -> None:
    model, update, *_ = client(name, 5)
    assert not unsum.separate(model, update, loss="cross-entropy").exact
    assert unsum.separate(model, update, loss=LOSSES[name][0]).exact


def test_cross_entropy_is_left_to_its_own_solver() -> None:
    torch.manual_seed(0)
    model, features, labels = nn.Linear(H, C), torch.randn(4, H).relu(), torch.tensor([1, 5, 5, 9])
    leak = unsum.separate(model, unsum.capture(model, features, labels))
    assert leak.exact
    assert leak.loss == "cross-entropy"


def test_wrong_weights_are_not_certified() -> None:
    model, update, *_ = client("weighted", 5)
    assert not unsum.separate(model, update, loss=WeightedCrossEntropy(WEIGHT.flip(0))).exact
    assert unsum.separate(model, update, loss=WeightedCrossEntropy(WEIGHT)).exact


def test_names_of_losses_are_checked() -> None:
    model, update, *_ = client("bce", 2)
    assert declared("focal:1.5") == Focal(1.5)
    assert declared("cross-entropy") is None
    with pytest.raises(UnsumError, match="bce"):
        unsum.separate(model, update, loss="bec")
    with pytest.raises(UnsumError, match="focal:GAMMA"):
        declared("focal:two")
    with pytest.raises(UnsumError, match="inner products"):
        declared("infonce")
    with pytest.raises(UnsumError, match="assumes cross-entropy"):
        unsum.separate(model, update, "fgla", loss="bce")
    with pytest.raises(UnsumError, match="assumes cross-entropy"):
        unsum.attack(model, update, "dlg", loss="bce")
    with pytest.raises(UnsumError, match="Label rules assume"):
        unsum.attack(model, update, label_rule="idlg", loss="bce")
    with pytest.raises(UnsumError, match="gamma of at least 1"):
        Focal(0.5)
    with pytest.raises(UnsumError, match="positive numbers"):
        WeightedCrossEntropy(torch.tensor([1.0, -1.0]))
    with pytest.raises(UnsumError, match="class weights but"):
        unsum.separate(model, update, loss=WeightedCrossEntropy(torch.ones(3)))


def test_no_label_is_counted_a_negative_number_of_times() -> None:
    """Forged or noisy masses are negative, and far more samples than there are: each guess is still
    of B whole labels."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        mass = torch.randn(7, generator=generator, dtype=torch.float64) * 10 ** float(
            4 * torch.rand(1, generator=generator)
        )
        empty = torch.zeros(0, dtype=torch.float64)
        line = ClassLine(torch.rand(7, generator=generator) < 0.8, empty, empty, 1.0, mass, empty)
        guesses = list(softmax_starts._hypotheses(line, torch.ones(7, dtype=torch.float64), 3))
        assert all(bool((Y.sum(1) == 1).all()) and len(Y) >= 3 for Y in guesses)
        assert len(guesses) > 0 or not bool((mass[line.labeled] > 0).any())
