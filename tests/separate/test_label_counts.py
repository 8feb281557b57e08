"""Labels after many local steps: counts, intervals that hold them, and refusals where the client
trains otherwise."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import unsum
from unsum.attack.counts import _too_many_steps
from unsum.attack.options import AttackOptions
from unsum.errors import UnsumError
from unsum.head import Head
from unsum.local_training import LocalTraining
from unsum.separate.local_steps import label_counts
from unsum.separate.local_steps.label_counts import Guess, count_labels, reach

RATE, EPOCHS, BATCH = 0.02, 4, 8


def client(
    seed: int,
    rate: float = RATE,
    classes: int = 8,
    samples: int = 64,
    optimizer: type[torch.optim.Optimizer] = torch.optim.SGD,
    momentum: float = 0.0,
) -> tuple[nn.Module, dict[str, Tensor], Tensor]:
    """Model, change of weights and true counts of a client that shuffles its samples anew in every
    epoch."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, classes))
    shares = torch.distributions.Dirichlet(torch.full((classes,), 0.5)).sample()
    labels, centers = torch.multinomial(shares, samples, replacement=True), torch.randn(classes, 12)
    inputs = 0.5 * centers[labels] + torch.randn(samples, 12)
    local = copy.deepcopy(model)
    how = {"momentum": momentum} if momentum else {}
    steps = optimizer(local.parameters(), lr=rate, **how)  # type: ignore[call-arg]
    for _ in range(EPOCHS):
        for some in torch.randperm(samples).split(BATCH):
            steps.zero_grad()
            nn.functional.cross_entropy(local(inputs[some]), labels[some]).backward()
            steps.step()
    start = dict(model.named_parameters())
    delta = {name: (p - start[name]).detach() for name, p in local.named_parameters()}
    return model, delta, torch.bincount(labels, minlength=classes).double()


def declared(
    delta: dict[str, Tensor], model: nn.Module, samples: int = 64, rate: float = RATE, **how: float
) -> unsum.Update:
    steps = EPOCHS * -(-samples // BATCH)
    training = LocalTraining(rate, steps, BATCH, epochs=EPOCHS, **how)  # type: ignore[arg-type]
    start = {name: p.detach() for name, p in model.named_parameters()}
    return unsum.Update.from_delta(delta, rate, num_examples=samples).of_training(training, start)


@pytest.mark.parametrize(("rate", "widest", "better"), [(RATE, 16, 0.3), (0.3, 48, 1.0)])
def test_intervals_hold_the_true_counts_as_often_as_they_say_and_are_not_the_whole_range(
    rate: float, widest: float, better: float
) -> None:
    """Also where the model was trained so far that both guesses err."""
    held, widths, off, alike = [], [], [], []
    for seed in range(12):
        model, delta, true = client(seed, rate)
        found = count_labels(model, declared(delta, model, rate=rate))
        assert found.samples == 64 == int(found.counts.sum())
        assert bool((true >= found.sure).all())
        held += ((true >= found.low) & (true <= found.high)).tolist()
        widths.append(float((found.high - found.low).mean()))
        off.append(float((found.counts - true).abs().mean()))
        alike.append(float((true - 8).abs().mean()))
    assert sum(held) >= 0.9 * len(held)
    assert sum(widths) / len(widths) < widest  # of 64
    assert sum(off) < better * sum(alike)  # than who takes all classes to be alike


def test_steps_that_count_unequally_scatter_as_a_loader_draws_them() -> None:
    training = LocalTraining(0.1, 6, 8, momentum=0.5, epochs=2)
    shares, labels = (
        torch.tensor([0.25, 0.75], dtype=torch.float64),
        torch.tensor([0.0] * 5 + [1.0] * 15).double(),
    )
    assert label_counts._chance(shares, LocalTraining(0.1, 6, 10, epochs=3), 20).tolist() == [
        0.0,
        0.0,
    ]
    generator, drawn = torch.Generator().manual_seed(0), []
    weights = reach(training) / reach(training).sum()
    for _ in range(3000):
        steps = [
            part for _ in range(2) for part in torch.randperm(20, generator=generator).split(8)
        ]
        drawn.append(
            sum(
                float(w) * float(labels[part].mean())
                for w, part in zip(weights, steps, strict=True)
            )
        )
    scatter = float(torch.tensor(drawn).var())
    assert float(label_counts._chance(shares, training, 20)[1]) == pytest.approx(scatter, rel=0.15)


def test_shares_are_the_nearest_that_are_possible() -> None:
    low = torch.tensor([0.2, 0.0, 0.0], dtype=torch.float64)
    possible = label_counts._possible(torch.tensor([0.1, 1.1, -0.5], dtype=torch.float64), low)
    assert possible.tolist() == pytest.approx([0.2, 0.8, 0.0])
    inside = torch.tensor([0.3, 0.3, 0.4], dtype=torch.float64)
    assert label_counts._possible(inside, low).tolist() == pytest.approx(inside.tolist())


def test_a_long_way_widens_intervals_even_where_both_guesses_agree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, delta, _ = client(2)
    agreed = Guess(torch.full((8,), 1 / 8, dtype=torch.float64), 3.0)
    monkeypatch.setattr(label_counts, "_guesses", lambda *_: (agreed, agreed))
    found = count_labels(model, declared(delta, model))
    G = label_counts._mean_gradient(*_evidence(model, delta))[0]
    least = 64 * 0.33 * 2 * G.abs()  # on either side; and whole numbers may be half a one off
    assert bool((found.high - found.counts >= (least - 1).clamp_min(0)).any())
    assert float((found.high - found.low).max()) >= float(least.max())


def _evidence(
    model: nn.Module, delta: dict[str, Tensor]
) -> tuple[Head, unsum.Update, LocalTraining]:
    update = declared(delta, model)
    assert update.training is not None
    return Head.of(model, update), update, update.training


def test_small_steps_give_the_counts_themselves() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 20))
    labels = torch.tensor([3] * 5 + [7] * 2 + [11])
    inputs, local = torch.randn(8, 12), copy.deepcopy(model)
    optimizer = torch.optim.SGD(local.parameters(), lr=1e-3)
    for _ in range(10):
        for some in torch.randperm(8).split(2):
            optimizer.zero_grad()
            nn.functional.cross_entropy(local(inputs[some]), labels[some]).backward()
            optimizer.step()
    start = {name: p.detach() for name, p in model.named_parameters()}
    delta = {name: p.detach() - start[name] for name, p in local.named_parameters()}
    update = unsum.Update.from_delta(delta, 1e-3).of_training(
        LocalTraining(1e-3, 40, 2, epochs=10), start
    )
    found = count_labels(model, update)
    assert found.counts.tolist() == torch.bincount(labels, minlength=20).tolist()
    assert float((found.high - found.low).max()) <= 1
    shares = count_labels(
        model,
        unsum.Update.from_delta(delta, 1e-3).of_training(LocalTraining(1e-3, 40, epochs=10), start),
    )
    assert shares.samples is None
    assert float(shares.counts[3]) == pytest.approx(5 / 8, abs=0.02)


def test_a_momentum_weighs_steps_and_widens_the_intervals() -> None:
    assert reach(LocalTraining(0.1, 3, momentum=0.5)).tolist() == [1.75, 1.5, 1.0]
    model, delta, true = client(3, momentum=0.9)
    found = count_labels(model, declared(delta, model, momentum=0.9))
    assert float(((true >= found.low) & (true <= found.high)).double().mean()) >= 0.75
    with pytest.raises(
        UnsumError, match="farther than the declared rate"
    ):  # undeclared, ten times as far as plain SGD goes
        count_labels(model, declared(delta, model))


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW])
def test_another_optimizer_is_refused(optimizer: type[torch.optim.Optimizer]) -> None:
    model, delta, _ = client(0, optimizer=optimizer)
    with pytest.raises(UnsumError, match=r"does not sum to zero|farther than the declared"):
        count_labels(model, declared(delta, model))


def test_what_is_missing_is_said_in_a_sentence() -> None:
    model, delta, _ = client(0)
    update = declared(delta, model)
    weights = {name: g for name, g in update.gradients.items() if name != "2.bias"}
    with pytest.raises(UnsumError, match="by the head's bias"):
        count_labels(
            model, unsum.Update(weights, "delta", update.learning_rate, training=update.training)
        )
    with pytest.raises(UnsumError, match="learning rate and the number of steps are declared"):
        count_labels(model, unsum.Update.from_delta(delta, RATE))
    still = {name: torch.zeros_like(g) for name, g in delta.items()}
    with pytest.raises(UnsumError, match="did not move"):
        count_labels(model, declared(still, model))


def test_the_attack_counts_labels_and_says_how_few_steps_would_be_read() -> None:
    model, delta, true = client(5)
    leak = unsum.attack(model, declared(delta, model), time_limit=1)
    assert not leak.exact
    assert leak.label_counts is not None
    assert float((leak.label_counts.counts - true).abs().mean()) < 2
    said = " ".join(leak.notes)
    assert "Of 64 samples by class" in said
    # Two dense layers of 32 units follow 6 visits here (8 classes, less two), fewer than one step
    # of 8.
    assert "this model's layers follow at most 6 in all, and one step has 8" in said
    many = declared(delta, model)
    assert many.training is not None
    untold = replace(many, training=replace(many.training, batch_size=None), num_examples=None)
    few = replace(many.training, batch_size=None, steps=4, epochs=1)
    options = AttackOptions()
    assert _too_many_steps(model, untold, options).endswith("in all, fewer than one a step.")
    told = _too_many_steps(model, replace(untold, training=few), options)
    assert "follow at most 6 in all, which is 1 a step." in told
    assert "too many" not in told
    assert leak.label_counts.to_dict()["counts"] == leak.label_counts.counts.tolist()
