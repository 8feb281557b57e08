"""What else explains this gradient? Cases in which something else does, and which were claimed
before that was asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import unsum
from support.long import long
from unsum.leak import Leak
from unsum.losses import Focal, WeightedCrossEntropy

H, C = 64, 10


def head(
    weights: float = 1.0, bias: str = "usual", classes: int = C, inputs: int = H, seed: int = 0
) -> nn.Linear:
    torch.manual_seed(seed)
    linear = nn.Linear(inputs, classes, bias=bias != "none")
    with torch.no_grad():
        linear.weight *= weights
        if bias == "zero":
            linear.bias.zero_()
    return linear


def siblings(
    pairs: int, apart: float, copies: int = 2, inputs: int = H, seed: int = 1
) -> tuple[Tensor, Tensor]:
    """Every sample with others of its own label, each this far from the first, relatively."""
    torch.manual_seed(seed)
    first = torch.randn(pairs, inputs).relu()
    steps = torch.randn(copies - 1, pairs, inputs)
    steps = apart * first.norm(dim=1, keepdim=True) * steps / steps.norm(dim=-1, keepdim=True)
    return torch.cat([first, *(first + step for step in steps)]), torch.arange(pairs).repeat(copies)


def farthest(leak: Leak, features: Tensor) -> float:
    """How far the worst true sample is from all that was found, relatively."""
    return float((torch.cdist(features, leak.features).amin(1) / features.norm(dim=1)).max())


def assert_honest(leak: Leak, features: Tensor) -> None:
    assert not leak.exact or farthest(leak, features) < 0.01


@pytest.mark.parametrize(
    ("copies", "defense", "apart"),
    [
        *((copies, unsum.BFloat16(), 0.05) for copies in (2, 3)),
        *((copies, unsum.Float16(), 0.05) for copies in (2, 3)),
        *long((3, unsum.Float16(), 0.03), (2, unsum.BFloat16(), 0.1)),
    ],
)
def test_siblings_behind_coarse_rounding(copies: int, defense: unsum.Float16, apart: float) -> None:
    features, labels = siblings(3, apart, copies)
    update = unsum.capture(head(), features, labels, defenses=defense)
    assert_honest(unsum.attack(head(), update), features)


@pytest.mark.parametrize(
    ("copies", "bias", "weights"),
    [
        *((copies, bias, 1e-5) for copies in (2, 4) for bias in ("usual", "zero", "none")),
        *long((2, "none", 1e-1), (4, "usual", 1e-1), (2, "zero", 1e-3), (4, "none", 1e-3)),
    ],
)
def test_siblings_behind_flat_heads(weights: float, bias: str, copies: int) -> None:
    features, labels = siblings(4, 0.1, copies)
    model = head(weights, bias)
    leak = unsum.separate(model, unsum.capture(model, features, labels), loss="cross-entropy")
    assert_honest(leak, features)


@pytest.mark.parametrize(
    ("classes", "inputs", "weights", "apart"),
    [
        (30, H, 1e-4, 0.3),
        (30, H, 1e-2, 0.05),
        (1000, 768, 1e-5, 0.45),
        *long((100, 128, 1e-3, 0.1), (1000, 768, 1e-5, 0.05)),
    ],
)
def test_siblings_behind_flat_heads_of_many_classes(
    classes: int, inputs: int, weights: float, apart: float
) -> None:
    features, labels = siblings(5, apart, inputs=inputs)
    model = head(weights, classes=classes, inputs=inputs)
    assert_honest(unsum.separate(model, unsum.capture(model, features, labels)), features)


def test_the_number_of_samples_settles_it() -> None:
    features, labels = siblings(4, 0.1)
    model = head(classes=30)
    leak = unsum.separate(model, unsum.capture(model, features, labels), batch_size=8)
    assert leak.exact
    assert farthest(leak, features) < 1e-4


def test_siblings_far_enough_apart_are_found_and_certified() -> None:
    features, labels = siblings(3, 0.3)
    leak = unsum.separate(head(), unsum.capture(head(), features, labels))
    assert leak.batch_size == 6
    assert leak.exact


def declared(model: nn.Linear, features: Tensor, value: Callable[[Tensor], Tensor]) -> unsum.Update:
    model.zero_grad()
    value(model(features)).backward()
    return unsum.Update(
        {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    )


def focal(logits: Tensor, labels: Tensor) -> Tensor:
    log_p = torch.log_softmax(logits, 1)[torch.arange(len(labels)), labels]
    return -((1 - log_p.exp()) ** 2 * log_p).mean()


@pytest.mark.parametrize("weights", [0.0, 1e-5, 1e-2])
@pytest.mark.parametrize("name", ["focal", "weighted"])
def test_declared_losses_behind_flat_heads(weights: float, name: str) -> None:
    features, labels = siblings(4, 0.2)
    model, w = head(weights), torch.linspace(0.5, 2, C)
    if name == "focal":
        update = declared(model, features, lambda logits: focal(logits, labels))
        leak = unsum.separate(model, update, loss=Focal(2.0))
    else:
        update = declared(
            model, features, lambda logits: nn.functional.cross_entropy(logits, labels, w)
        )
        leak = unsum.separate(model, update, loss=WeightedCrossEntropy(w))
    assert_honest(leak, features)


@pytest.mark.parametrize("size", [0.5, 2.0, 3.0])
def test_squared_errors_of_other_targets(size: float) -> None:
    """Targets of s instead of 1 send what features of 1/s send at another scale."""
    torch.manual_seed(2)
    features, labels, model = (
        torch.randn(4, H).relu(),
        torch.tensor([0, 1, 2, 3]),
        head(bias="none", classes=20),
    )
    Y = size * nn.functional.one_hot(labels, 20).float()
    update = declared(model, features, lambda logits: nn.functional.mse_loss(logits, Y))
    assert_honest(unsum.separate(model, update, loss="mse"), features)


def test_half_sum_and_half_difference_under_squared_error() -> None:
    torch.manual_seed(3)
    features, model = torch.randn(2, H).relu(), head(bias="none", classes=20)
    Y = nn.functional.one_hot(torch.tensor([5, 5]), 20).float()
    update = declared(model, features, lambda logits: nn.functional.mse_loss(logits, Y))
    assert_honest(unsum.separate(model, update, loss="mse"), features)


def test_most_labels_set_without_a_bias() -> None:
    torch.manual_seed(4)
    features, model = torch.randn(3, H).relu(), head(bias="none", classes=30)
    Y = (torch.rand(3, 30) < 0.8).float()
    update = declared(
        model, features, lambda logits: nn.functional.binary_cross_entropy_with_logits(logits, Y)
    )
    assert_honest(unsum.separate(model, update, loss="bce"), features)


@pytest.mark.parametrize(("weights", "seed"), [(1e-3, 0), (1e-2, 1), *long((1e-3, 3), (1e-2, 2))])
def test_small_logits_of_one_loss_look_like_another(weights: float, seed: int) -> None:
    torch.manual_seed(seed)
    features, model = torch.randn(3, H).relu(), head(weights, classes=30, seed=seed)
    Y = (torch.rand(3, 30) < 0.2).float()
    update = declared(
        model, features, lambda logits: nn.functional.binary_cross_entropy_with_logits(logits, Y)
    )
    assert_honest(unsum.separate(model, update), features)


@pytest.mark.parametrize(
    ("seed", "classes", "inputs", "weights", "share"),
    [(120693, 20, 16, 3.43e-3, 0.7), (141118, 60, 64, 6.9e-3, 0.5)],
)
def test_a_loss_that_was_recognized_by_small_logits_tells_no_sign(
    seed: int, classes: int, inputs: int, weights: float, share: float
) -> None:
    """Nobody declares the loss, and without a bias the negative with inverted labels sends almost
    the same."""
    torch.manual_seed(seed)
    features = torch.randn(1, inputs)
    features = features.relu() if seed % 2 else features
    model = nn.Linear(inputs, classes, bias=False)
    with torch.no_grad():
        model.weight *= weights
    Y = (torch.rand(1, classes) < share).float()
    update = declared(
        model, features, lambda logits: nn.functional.binary_cross_entropy_with_logits(logits, Y)
    )
    assert_honest(unsum.separate(model, update), features)


@pytest.mark.parametrize(
    ("bias", "heat", "kept"),
    [
        ("none", 2.0, False),
        *long(("usual", 2.0, False), ("usual", 0.5, True), ("zero", 5.0, True)),
        *long(("none", 5.0, False), ("zero", 0.5, False)),
    ],
)
def test_a_temperature_that_nobody_declared(bias: str, heat: float, kept: bool) -> None:
    torch.manual_seed(5)
    features, labels, model = (
        torch.randn(4, H).relu(),
        torch.tensor([0, 1, 2, 2]),
        head(bias=bias, classes=30),
    )
    update = declared(
        model, features, lambda logits: nn.functional.cross_entropy(logits / heat, labels)
    )
    if not kept:
        update = replace(update, gradients={"weight": update.gradients["weight"]})
    assert_honest(unsum.separate(model, update), features)
    assert_honest(unsum.attack(model, update), features)


def test_a_declared_loss_excludes_the_temperature_and_is_named() -> None:
    torch.manual_seed(5)
    features, labels, model = (
        torch.randn(4, H).relu(),
        torch.tensor([0, 1, 2, 2]),
        head(bias="none", classes=30),
    )
    update = unsum.capture(model, features, labels)
    assert not unsum.separate(model, update).exact
    leak = unsum.separate(model, update, loss="cross-entropy")
    assert leak.exact
    assert farthest(leak, features) < 1e-4
    assert any("declared loss" in note for note in leak.notes)


@pytest.mark.parametrize("decay", [1e-4, 5e-4, 1e-2])
@pytest.mark.parametrize("spared", [True, False])
def test_weight_decay_is_found_and_taken_off(decay: float, spared: bool) -> None:
    torch.manual_seed(6)
    features, labels, model = (
        torch.randn(6, H).relu(),
        torch.tensor([0, 0, 1, 2, 3, 4]),
        head(classes=30),
    )
    weights = dict(model.named_parameters())
    plain = unsum.capture(model, features, labels)
    update = replace(
        plain,
        gradients={
            name: g if spared and name == "bias" else g + decay * weights[name].detach()
            for name, g in plain.gradients.items()
        },
    )
    leak = unsum.separate(model, update)
    assert leak.exact
    assert farthest(leak, features) < 1e-4
    assert any("decayed its weights" in note for note in leak.notes)


def test_half_precision_that_came_back_as_float32_is_taken_for_what_it_is() -> None:
    torch.manual_seed(7)
    features, labels, model = torch.randn(6, H).relu(), torch.arange(6), head(classes=30)
    plain = unsum.capture(model, features, labels)
    update = replace(
        plain, gradients={name: g.bfloat16().float() for name, g in plain.gradients.items()}
    )
    leak = unsum.separate(model, update, batch_size=6)
    assert farthest(leak, features) < 3 * leak.predicted_error < 0.05
    assert not any("Noise of" in note for note in leak.notes)


def test_uneven_weights_are_not_taken_for_even_ones() -> None:
    torch.manual_seed(8)
    features, labels, model = (
        torch.randn(5, H).relu(),
        torch.tensor([0, 0, 1, 1, 2]),
        head(classes=30),
    )
    weights = torch.tensor([3.0, 3.0, 3.0, 1.0, 1.0])
    update = declared(
        model,
        features,
        lambda logits: (
            (weights * nn.functional.cross_entropy(logits, labels, reduction="none")).sum()
            / weights.sum()
        ),
    )
    assert_honest(unsum.separate(model, update), features)
