"""What may be called exact of peeled inputs: one sample, all of them, and only what the gradient
shows apart."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import unsum
from unsum.network.chain import find_chain
from unsum.peel import Peeled, peel
from unsum.peel.replay import PlayedBatch, replay


def mlp(
    activation: nn.Module,
    *,
    inputs: int = 20,
    width: int = 30,
    classes: int = 12,
    bias: bool = True,
) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(inputs, width, bias=bias), activation, nn.Linear(width, classes, bias=bias)
    )


def siblings(x: Tensor, distance: float) -> Tensor:
    """x ± d, |d| = distance·|x|."""
    d = torch.randn_like(x)
    d = distance * x.norm(dim=1, keepdim=True) / d.norm(dim=1, keepdim=True) * d
    return torch.cat([x + d, x - d])


def nearest(found: Tensor, true: Tensor) -> Tensor:
    """(found,) relative distance of each input from the true one that is nearest."""
    true = true.flatten(1).double()
    return (torch.cdist(found.flatten(1).double(), true) / true.norm(dim=1)).amin(1)


def assert_no_false_claim(peeled: Peeled, true: Tensor) -> None:
    assert bool((nearest(peeled.inputs, true)[peeled.exact] < 1e-2).all()), peeled.notes


class TestPhongsRatio:
    def test_a_gradient_of_rank_one_by_two_classes_is_no_single_sample(self) -> None:
        """With C = 2 every row of G is a multiple of (1, −1): eight samples leave one direction."""
        torch.manual_seed(0)
        model, x = nn.Linear(20, 2), torch.rand(8, 20)
        update = unsum.capture(model, x, torch.arange(8) % 2)
        assert int(torch.linalg.matrix_rank(update.gradients["weight"])) == 1
        peeled = peel(model, update, method="phong-input")
        assert float(nearest(peeled.inputs, x)) > 0.05
        assert not bool(peeled.exact.any())
        assert any("batch of several samples" in note for note in peeled.notes)

    def test_the_batch_size_tells(self) -> None:
        torch.manual_seed(0)
        model, x = nn.Linear(20, 2), torch.rand(1, 20)
        update = unsum.capture(model, x, torch.tensor([1]))
        assert not bool(peel(model, update, method="phong-input").exact.any())
        told = peel(model, replace(update, batch_size=1), method="phong-input")
        assert bool(told.exact.all())
        assert float(nearest(told.inputs, x)) < 1e-5
        assert not bool(
            peel(model, replace(update, batch_size=2), method="phong-input").exact.any()
        )

    def test_a_hidden_layer_that_would_show_two_tells_as_well(self) -> None:
        model, x = mlp(nn.Tanh()), torch.rand(1, 20)
        peeled = peel(model, unsum.capture(model, x, torch.tensor([3])), method="phong-input")
        assert bool(peeled.exact.all()), peeled.notes
        assert peeled.errors.isfinite().all()

    def test_siblings_are_no_single_sample(self) -> None:
        model = mlp(nn.Sigmoid())
        for distance in (0.012, 0.02, 0.05):
            x = siblings(torch.rand(1, 20), distance)
            peeled = peel(
                model, unsum.capture(model, x, torch.tensor([3, 3])), method="phong-input"
            )
            assert_no_false_claim(peeled, x)

    def test_batch_norm_counts_nothing(self) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(20, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 9))
        update = unsum.capture(model, torch.rand(1, 20), torch.tensor([4]), train=False)
        before = {name: buffer.clone() for name, buffer in model.named_buffers()}
        peel(model.eval(), update, method="phong-input")
        peel(model.train(), update, method="phong-input")
        assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


@pytest.mark.parametrize("activation", [nn.Sigmoid, nn.Tanh, nn.ELU, nn.GELU, nn.ReLU])
@pytest.mark.parametrize("distance", [0.011, 0.02, 0.05, 0.15])
def test_siblings_are_never_claimed_as_one(activation: type[nn.Module], distance: float) -> None:
    model = mlp(activation())
    for n in (1, 2, 4):
        x = siblings(torch.rand(n, 20), distance)
        update = unsum.capture(model, x, torch.arange(n).repeat(2))
        leak = unsum.separate(model, update)
        if leak.predicted_error < 1:
            assert_no_false_claim(peel(model, update, leak), x)


def test_a_batch_whose_siblings_would_show_is_claimed_without_its_size() -> None:
    model, x = mlp(nn.Sigmoid()), torch.rand(2, 20)
    peeled = peel(model, unsum.capture(model, x, torch.tensor([0, 1])))
    assert bool(peeled.exact.all()), peeled.notes
    assert float(nearest(peeled.inputs, x).max()) < 1e-5


def test_coarse_gradients_are_not_claimed_where_fine_ones_are() -> None:
    model, x = mlp(nn.Sigmoid(), width=60), torch.rand(2, 20)
    fine = unsum.capture(model, x, torch.tensor([0, 1]))
    coarse = fine.map(lambda _name, g: (g * 2**14).round() / 2**14)
    for update, certain in ((fine, True), (coarse, False)):
        peeled = peel(model, update, unsum.separate(model, update))
        assert set(peeled.exact.tolist()) == {certain}, peeled.notes


def test_no_input_is_claimed_where_the_separation_is_not_unless_all_tensors_prove_it() -> None:
    """A leak that is not certified, with features that belong to no batch: the replay shows it."""
    model, x = mlp(nn.Tanh()), torch.rand(3, 20)
    update = unsum.capture(model, x, torch.arange(3))
    leak = unsum.separate(model, update, batch_size=3)
    sure = peel(model, update, replace(leak, exact=False))
    # every tensor is explained, and nothing else would explain it
    assert bool(sure.exact.all()), sure.notes
    soft = 0.97 * leak.targets + 0.03 / 12
    wrong = peel(model, update, replace(leak, exact=False, targets=soft))
    assert_no_false_claim(wrong, x)
    for exact in (True, False):  # whatever the leak says of itself
        lied = replace(leak, exact=exact, targets=leak.targets.roll(1, 1))
        assert not bool(peel(model, update, lied).exact.any())


def test_no_input_is_exact_that_is_the_mean_of_two() -> None:
    """Behind a sigmoid, features of siblings are nearer to each other than the siblings are: one of
    each pair is found."""
    model = mlp(nn.Sigmoid())
    torch.manual_seed(8)
    x = siblings(torch.rand(2, 20), 0.011)
    update = unsum.capture(model, x, torch.arange(2).repeat(2))
    leak = unsum.separate(model, update)
    peeled = peel(model, update, leak)
    assert leak.batch_size == 2
    # a true sample is that far from all that was found
    assert float(nearest(x, peeled.inputs).max()) > 1e-2
    assert not bool(peeled.exact.any())


def test_inputs_are_not_exact_where_neither_separation_nor_replay_knows_the_temperature() -> None:
    """Every tensor is explained by an input of half the length: rounds through the layers once
    vouched for it by themselves."""
    torch.manual_seed(603575842)
    model = nn.Sequential(nn.Linear(20, 20, bias=False), nn.ReLU(), nn.Linear(20, 12, bias=False))
    x = torch.rand(1, 20)
    nn.functional.cross_entropy(model(x) / 1.896, torch.tensor([0])).backward()
    update = unsum.Update(
        {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    )
    leak = unsum.separate(model, update)
    peeled = peel(model, update, leak)
    assert not leak.exact
    assert float(nearest(peeled.inputs, x)) > 0.4
    assert not bool(peeled.exact.any())


def test_without_a_bias_the_loss_must_be_declared() -> None:
    """A temperature would send the same gradient with inputs of another length."""
    model, x = mlp(nn.ReLU(), bias=False), torch.rand(2, 20)
    update = unsum.capture(model, x, torch.tensor([0, 1]))
    assert not bool(peel(model, update, unsum.separate(model, update)).exact.any())
    declared = peel(model, update, unsum.separate(model, update, loss="cross-entropy"))
    assert bool(declared.exact.all()), declared.notes
    assert float(nearest(declared.inputs, x).max()) < 1e-5


class TestReplay:
    def test_the_truth_leaves_rounding_and_anything_else_shows(self) -> None:
        model, x = mlp(nn.Tanh()), torch.rand(3, 20)
        labels = torch.arange(3)
        update = unsum.capture(model, x, labels)
        steps, Y = find_chain(model, update).steps, nn.functional.one_hot(labels, 12).double()
        errors = torch.full((3,), 1e-7, dtype=torch.float64)
        true = replay(PlayedBatch(steps, x.double(), Y, 1 / 3, [(20,), (30,)]), errors)
        assert true.replay.unexplained < 1e-6
        assert bool((true.contributions() > 1e4).all())
        assert bool((true.errors(temperature_open=True) < 1e-3).all())
        other = replay(PlayedBatch(steps, 1.001 * x.double(), Y, 1 / 3, [(20,), (30,)]), errors)
        assert other.replay.unexplained > 1e-4

    def test_what_two_samples_add_is_what_autograd_says(self) -> None:
        """The second singular value that siblings leave in ∇W is the one that is predicted for
        them."""
        model, x = mlp(nn.Tanh()), torch.rand(1, 20)
        pair, label = siblings(x, 0.01), torch.tensor([3])
        update = unsum.capture(model, pair, label.repeat(2))
        gradient = torch.cat(
            [update.gradients["0.weight"], update.gradients["0.bias"][:, None]], 1
        ).double()
        second = float(torch.linalg.svdvals(gradient)[1])
        Y = nn.functional.one_hot(label, 12).double()
        alone = unsum.capture(model, x, label)
        answer = replay(
            PlayedBatch(find_chain(model, alone).steps, x.double(), Y, 1.0, [(20,), (30,)]),
            torch.tensor([1e-7]),
        )
        predicted = float(answer.twins(0)) * answer.left[0]
        assert predicted < second < 10 * predicted  # the least of several directions


def test_published_peelers_determine_no_error() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 10))
    update = unsum.capture(model, torch.rand(2, 3, 4, 4), torch.tensor([0, 1]))
    peeled = peel(model, update, method="cocktail", batch_size=2)
    assert peeled.errors.tolist() == [torch.inf] * 2
    assert not bool(peeled.exact.any())
    assert peeled.layers[0].predicted_error == torch.inf
