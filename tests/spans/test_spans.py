"""Samples out of two consecutive dense layers, held against the truth; and what is said where there
are none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import unsum
from support.dense import batch, network, partners
from unsum import UnsumError
from unsum.knowledge import Knowledge
from unsum.network.chain import find_chain
from unsum.peel.replay import PlayedBatch, replay
from unsum.spans.judge import doubt_mirror

ACTIVATIONS = [nn.ReLU, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.ELU, nn.Tanh]


def assert_all_found(leak: unsum.Leak, x: Tensor, y: Tensor, error: float = 1e-4) -> None:
    which, errors = partners(leak, x)
    assert leak.batch_size == len(x)
    assert sorted(which.tolist()) == list(range(len(x)))  # each sample once
    assert float(errors.max()) < error
    assert leak.labels[which].tolist() == y.tolist()


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("C", [2, 5])
def test_more_samples_than_classes(activation: type[nn.Module], C: int) -> None:
    model = network(40, 96, 96, C, activation=activation)
    x, y = batch(12, 40, C)
    leak = unsum.separate(model, unsum.capture(model, x, y), "spans", batch_size=12)
    assert_all_found(leak, x, y)
    assert leak.exact, leak.notes
    assert leak.scale == pytest.approx(1, rel=1e-3)
    assert leak.inputs is not None
    assert leak.features.shape == (12, 96)


def test_the_order_of_the_batch_does_not_matter() -> None:
    model = network(40, 96, 96, 3)
    x, y = batch(10, 40, 3)
    turned = torch.arange(9, -1, -1)
    for order in (torch.arange(10), turned):
        assert_all_found(
            unsum.separate(model, unsum.capture(model, x[order], y[order]), "spans"), x, y
        )


def test_other_names_of_the_classes_change_nothing_but_the_labels() -> None:
    model, renamed = network(40, 96, 96, 3), torch.tensor([2, 0, 1])
    x, y = batch(10, 40, 3)
    with torch.no_grad():
        for tensor in model[-1].parameters():
            tensor[renamed] = tensor.clone()
    leak = unsum.separate(model, unsum.capture(model, x, renamed[y]), "spans", batch_size=10)
    assert_all_found(leak, x, renamed[y])
    assert leak.exact, leak.notes


def test_a_table_whose_rows_are_shorter_than_the_batch_is_large() -> None:
    """With fewer columns than rows the first span is everything; the unknown is the row itself."""
    model = network(6, 96, 96, 2)
    x, y = batch(16, 6, 2)
    leak = unsum.separate(model, unsum.capture(model, x, y), "spans", batch_size=16)
    assert_all_found(leak, x, y)


def test_two_fifths_of_the_width_are_read() -> None:
    """More than descents reach; and no pair is chosen whose second layer is a head that all classes
    fill."""
    model = network(80, 64, 64, 5)
    x, y = batch(26, 80, 5)
    leak = unsum.separate(model, unsum.capture(model, x, y), "spans", batch_size=26)
    assert_all_found(leak, x, y)
    assert leak.exact, leak.notes


def test_a_third_layer_reads_half_the_width() -> None:
    """Two layers have as many equations as unknowns there; the span of the layer after them
    decides."""
    model = network(80, 64, 64, 64, 5)
    x, y = batch(30, 80, 5)
    leak = unsum.separate(model, unsum.capture(model, x, y), "spans", batch_size=30)
    assert_all_found(leak, x, y)
    assert leak.exact, leak.notes


def test_a_scaled_gradient_tells_its_scale() -> None:
    model = network(40, 96, 96, 4)
    x, y = batch(8, 40, 4)
    update = unsum.capture(model, x, y).map(lambda _name, gradient: 0.03 * gradient)
    leak = unsum.separate(model, update, "spans", batch_size=8)
    assert_all_found(leak, x, y)
    assert leak.scale == pytest.approx(0.03, rel=1e-3)


def test_a_sample_that_occurs_three_times_is_counted() -> None:
    model = network(40, 96, 96, 4)
    x, y = batch(6, 40, 4)
    x, y = torch.cat([x, x[:1], x[:1]]), torch.cat([y, y[:1], y[:1]])
    leak = unsum.separate(model, unsum.capture(model, x, y), "spans")
    which, errors = partners(leak, x)
    assert leak.batch_size == 8
    assert float(errors.max()) < 1e-4
    assert leak.labels[which].tolist() == y.tolist()


def test_one_logit_with_binary_cross_entropy() -> None:
    model = network(40, 96, 96, 1)
    x, y = batch(10, 40, 2)
    loss = nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y.float())
    gradients = dict(
        zip(
            dict(model.named_parameters()),
            torch.autograd.grad(loss, list(model.parameters())),
            strict=True,
        )
    )
    leak = unsum.separate(model, unsum.Update(gradients), "spans", loss="bce", batch_size=10)
    which, errors = partners(leak, x)
    assert float(errors.max()) < 1e-4
    assert (leak.targets[which, 0] > 0.5).long().tolist() == y.tolist()


def test_lenet_below_the_pooling_gives_what_its_dense_part_reads() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84),
        nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip
    x = nn.functional.interpolate(torch.randn(16, 3, 6, 6), 32, mode="bilinear")
    y = torch.randint(10, (16,))
    leak = unsum.separate(model, unsum.capture(model, x, y), "spans", batch_size=16)
    with torch.no_grad():
        read = model[:7](x)
    assert_all_found(leak, read, y, error=1e-3)
    assert list(leak.inner) == ["7"]
    assert leak.inputs is None  # the pooling below is not undone


@pytest.mark.parametrize(
    ("model", "B", "words"),
    [
        (network(40, 10), 4, "two consecutive dense layers"),
        (network(40, 12, 12, 3), 20, "takes all directions"),
    ],
)
def test_refusals_say_what_to_do(model: nn.Module, B: int, words: str) -> None:
    x, y = batch(B, 40, 3)
    with pytest.raises(UnsumError, match=words):
        unsum.separate(model, unsum.capture(model, x, y), "spans")


def test_a_nearly_linear_activation_gives_no_mixture_as_a_sample() -> None:
    model = network(40, 96, 96, 3, activation=nn.Sigmoid)
    x, y = batch(12, 40, 3)
    leak = unsum.separate(model, unsum.capture(model, x, y), "spans", time_limit=10)
    assert not leak.exact
    if leak.batch_size:
        found = next(iter(leak.inner.values())).double()
        apart = torch.cdist(found, x.double()).amin(1) / found.norm(dim=1)
        assert float(apart.max()) < 0.01


def test_noise_is_said_and_nothing_is_claimed() -> None:
    model = network(40, 96, 96, 3)
    x, y = batch(8, 40, 3)
    generator = torch.Generator().manual_seed(3)
    update = unsum.capture(model, x, y).map(
        lambda _name, g: g + 1e-3 * g.abs().max() * torch.randn(g.shape, generator=generator)
    )
    leak = unsum.separate(model, update, "spans", batch_size=8, time_limit=10)
    assert not leak.exact
    assert unsum.separate(model, unsum.capture(model, x, y), "spans", batch_size=8).exact


def lenet() -> nn.Sequential:
    """The network of the federated tutorials."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84),
        nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def test_the_tutorials_batch_of_32_is_read_whole_and_certified() -> None:
    """Features that differ by little: rows of the gradient as starts, families settled, and a last
    solve of all samples."""
    torch.manual_seed(0)
    model = lenet()
    x = nn.functional.interpolate(torch.randn(32, 3, 6, 6), 32, mode="bilinear")
    y = torch.randint(10, (32,))
    leak = unsum.separate(model, unsum.capture(model, x, y), "spans", batch_size=32)
    with torch.no_grad():
        assert_all_found(leak, model[:7](x), y, error=1e-4)
    assert leak.exact, leak.notes


def test_lengths_without_biases_come_from_the_softmax() -> None:
    model = network(20, 64, 64, 5, bias=False)
    x, y = batch(6, 20, 5)
    leak = unsum.separate(
        model, unsum.capture(model, x, y), "spans", batch_size=6, loss="cross-entropy"
    )
    assert_all_found(leak, x, y)
    assert leak.exact, leak.notes


def test_without_biases_a_temperature_looks_like_longer_samples() -> None:
    model = network(20, 64, 64, 5, bias=False)
    x, y = batch(6, 20, 5)
    told = unsum.separate(
        model, unsum.capture(model, x, y), "spans", batch_size=6, loss="cross-entropy"
    )
    assert told.exact  # the loss that was declared has no temperature
    loss = nn.functional.cross_entropy(model(x) / 2, y)
    sent = torch.autograd.grad(loss, list(model.parameters()))
    update = unsum.Update(dict(zip(dict(model.named_parameters()), sent, strict=True)))
    leak = unsum.separate(model, update, "spans", batch_size=6)
    assert not leak.exact


def test_without_biases_two_classes_leave_lengths_open_and_nothing_is_made_up() -> None:
    model = network(20, 64, 64, 2, bias=False)
    x, y = batch(6, 20, 2)
    leak = unsum.separate(model, unsum.capture(model, x, y), "spans", batch_size=6)
    assert leak.batch_size == 0
    assert not leak.exact


def test_an_odd_network_has_mirrored_roots_and_only_the_samples_are_given() -> None:
    model = network(14, 74, 74, 5, activation=nn.Tanh, bias=False)
    x, y = batch(8, 14, 5)
    leak = unsum.separate(model, unsum.capture(model, x, y), "spans", batch_size=8)
    assert_all_found(leak, x, y)


def test_two_that_are_alike_are_not_claimed_as_one_that_occurs_twice() -> None:
    """Two samples of one label whose units are all on send what their mean sends twice, however far
    they are apart."""
    model = network(25, 63, 63, 2, activation=nn.LeakyReLU, seed=3)
    x, y = 0.05 * batch(3, 25, 2)[0], torch.tensor([0, 0, 1])
    apart = unsum.separate(model, unsum.capture(model, x, y), "spans", batch_size=3)
    assert_all_found(apart, x, y)
    assert apart.exact, apart.notes
    with torch.no_grad():
        for layer in (model[0], model[2]):
            layer.weight *= 0.05  # the biases decide every state
    leak = unsum.separate(model, unsum.capture(model, x, y), "spans", batch_size=3)
    assert not leak.exact


@pytest.mark.parametrize("kind", ["smooth", "mixup", "mse"])
def test_soft_labels_and_other_losses_are_found_without_being_declared(kind: str) -> None:
    model = network(40, 96, 96, 5)
    x, y = batch(12, 40, 5)
    Y = nn.functional.one_hot(y, 5).float()
    Y = {"smooth": 0.9 * Y + 0.02, "mixup": 0.7 * Y + 0.3 * Y.roll(1, 0), "mse": Y}[kind]
    loss = (
        nn.functional.mse_loss(model(x), Y)
        if kind == "mse"
        else nn.functional.cross_entropy(model(x), Y)
    )
    sent = torch.autograd.grad(loss, list(model.parameters()))
    update = unsum.Update(dict(zip(dict(model.named_parameters()), sent, strict=True)))
    leak = unsum.separate(model, update, "spans", batch_size=12)
    which, errors = partners(leak, x)
    assert leak.batch_size == 12
    assert float(errors.max()) < 1e-4
    assert float((leak.targets[which] - Y).abs().max()) < 1e-3
    assert leak.loss == ("mse" if kind == "mse" else "cross-entropy")


@pytest.mark.parametrize(
    ("bias", "C", "open_signs"), [(False, 2, True), (True, 2, False), (False, 3, False)]
)
def test_two_answers_without_biases_leave_signs_open(bias: bool, C: int, open_signs: bool) -> None:
    """Bred: a tanh network of two classes without biases sends the same for −x with the other
    label."""
    model = network(20, 64, 64, C, activation=nn.Tanh, bias=bias)
    x, y = batch(6, 20, C)
    steps = find_chain(model, unsum.capture(model, x, y)).steps
    Y = nn.functional.one_hot(y, C).double()
    played = replay(
        PlayedBatch(steps, x.double(), Y, 1 / 6, [(20,), (64,), (64,)]),
        torch.full((6,), 1e-7).double(),
    )
    assert played.replay.unexplained < 1e-5
    doubts = doubt_mirror(played, torch.full((6,), 1e-7).double(), 1e-5, Knowledge())
    assert bool(doubts) is open_signs
