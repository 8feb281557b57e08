"""Several local steps: samples found step by step, whatever the learning rate, momentum, weight
decay and epochs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import unsum
from support.local_client import Client
from support.long import long
from unsum import UnsumError, Update
from unsum.head import Head
from unsum.local_training import LocalTraining, mini_batches
from unsum.separate.local_steps import method
from unsum.separate.local_steps.counting import size_of_step
from unsum.separate.local_steps.movement import Schedule, observe_movement


def separated(
    client: Client, update: Update, features: Tensor, **known
) -> tuple[unsum.Leak, float]:
    leak = unsum.separate(client.model, update, "local-steps", **known)
    assert sorted(leak.labels.tolist()) == sorted(client.labels.tolist())
    return leak, unsum.score(leak, features=features, targets=client.labels)["worst_feature_error"]


@pytest.mark.parametrize(
    "training",
    [
        LocalTraining(0.05, 2),
        LocalTraining(0.03, 4, momentum=0.9, weight_decay=1e-2),
        *long(LocalTraining(0.05, 4), LocalTraining(0.03, 4, momentum=0.9)),
    ],
    ids=["two", "decay", "four", "momentum"],
)
def test_new_samples_in_every_step_come_back_exactly_with_an_honest_prediction(
    training: LocalTraining,
) -> None:
    client = Client()
    update, features = client.sends(training, 8 // training.steps, training.learning_rate)
    # the weights' own rounding would hide siblings
    leak, error = separated(client, update, features, batch_size=8)
    assert leak.exact
    assert error < 1e-4
    assert error < 2 * leak.predicted_error < 1e-3
    plain = unsum.score(
        unsum.separate(client.model, update), features=features, targets=client.labels
    )
    assert plain["worst_feature_error"] > 100 * error


def test_an_unknown_learning_rate_is_found() -> None:
    client = Client()
    update, features = client.sends(LocalTraining(None, 4), 2, 0.05)
    leak, error = separated(client, update, features)
    assert error < 1e-4
    assert leak.scale == pytest.approx(0.05, rel=1e-4)
    assert any("learning rate came out as 0.05" in note for note in leak.notes)


def test_epochs_over_one_batch_give_the_features_of_its_first_visit() -> None:
    client = Client()
    update, features = client.sends(LocalTraining(0.05, 2, epochs=2), 8, 0.05)
    leak, error = separated(client, update, features, batch_size=8)
    assert error < 1e-3
    assert error < 2 * leak.predicted_error


def test_one_step_is_the_plain_case() -> None:
    client = Client()
    update, features = client.sends(LocalTraining(0.1, 1), 8, 0.1)
    leak, error = separated(client, update, features, batch_size=8)
    assert leak.exact
    assert error < 1e-4


def test_a_head_without_bias_moves_as_well() -> None:
    client = Client(bias=False)
    update, features = client.sends(LocalTraining(0.05, 2), 4, 0.05)
    assert separated(client, update, features)[1] < 1e-3


def test_steps_that_may_hide_siblings_are_vouched_for_only_where_the_number_is_known() -> None:
    client = Client()
    update, features = client.sends(LocalTraining(0.01, 2), 4, 0.01)
    leak, error = separated(client, update, features)
    assert error < 1e-3
    assert math.isnan(leak.predicted_error)
    # two of one label, 1 % from their mean, leave less in the weights than float32 rounds off
    assert not leak.exact
    assert any("would look like one" in note for note in leak.notes)
    assert separated(client, update, features, batch_size=8)[0].exact


def test_an_answer_that_no_second_chain_confirms_is_not_vouched_for(monkeypatch) -> None:
    client = Client()
    update, features = client.sends(LocalTraining(0.05, 2), 4, 0.05)
    follow, calls = method.follow, []

    def first_only(*arguments, **options):
        calls.append(options.get("first_kind", 0))
        found = follow(*arguments, **options)
        return found if len(calls) == 1 else replace(found, misfit=1e9)

    monkeypatch.setattr(method, "follow", first_only)
    leak, error = separated(client, update, features)
    assert calls == [0, 2]  # the second from starts at random
    assert error < 1e-4
    assert not leak.exact
    assert "No second start led to this solution." in leak.notes


def test_steps_that_end_in_a_singular_matrix_are_solved_as_one_gradient(monkeypatch) -> None:
    client = Client()
    update, _ = client.sends(LocalTraining(0.05, 2), 4, 0.05)

    def singular(*_arguments, **_options):
        raise torch.linalg.LinAlgError("singular")

    monkeypatch.setattr(method, "follow", singular)
    leak = unsum.separate(client.model, update, "local-steps")
    assert not leak.exact
    assert leak.notes[0] == "Following the steps left nothing that could be inverted."


@pytest.mark.long
def test_more_directions_than_samples_were_told_are_not_vouched_for() -> None:
    client = Client()
    update, _ = client.sends(LocalTraining(0.05, 2), 4, 0.05)
    assert not unsum.separate(client.model, update, "local-steps", batch_size=6).exact
    assert unsum.separate(client.model, update, "local-steps", batch_size=8).exact


@pytest.mark.long
def test_a_momentum_that_nobody_declared_and_steps_that_weigh_otherwise_are_not_vouched_for() -> (
    None
):
    client = Client()
    update, features = client.sends(LocalTraining(0.05, 2), 4, 0.05)
    assert unsum.separate(client.model, update, "local-steps", batch_size=8).exact
    for gain in (1.02, 0.98):  # as if the rate had been another than was said
        other = update.map(lambda _name, gradient, gain=gain: gain * gradient)
        leak = unsum.separate(client.model, other, "local-steps", batch_size=8)
        error = unsum.score(leak, features=features, targets=client.labels)["worst_feature_error"]
        assert not leak.exact or error < 1e-2


@pytest.mark.long
@pytest.mark.parametrize("rate", [2.0, 0.3])
def test_accumulated_gradients_are_one_step_whatever_the_counters_say(rate: float) -> None:
    client = Client()
    update, features = client.sends(LocalTraining(rate, 1), 8, rate)
    counted = LocalTraining(rate, 4)  # BatchNorm saw four micro-batches
    update = Update.from_delta(
        {n: -rate * g for n, g in update.gradients.items()}, 4 * rate, training=counted
    )
    leak, error = separated(client, update, features)
    assert leak.exact
    assert error < 1e-4
    assert leak.notes[0].startswith("One step explains the movement")


@pytest.mark.long
def test_a_training_declared_wrongly_is_not_vouched_for() -> None:
    client = Client()
    update, _ = client.sends(LocalTraining(0.03, 4, momentum=0.9), 2, 0.03)
    wrong = Update(update.gradients, "delta", update.learning_rate, training=LocalTraining(0.03, 4))
    leak = unsum.separate(client.model, wrong, "local-steps", batch_size=8)
    assert not leak.exact
    assert unsum.separate(client.model, update, "local-steps", batch_size=8).exact


def test_the_automatic_choice_follows_the_steps_and_the_knowledge_says_so() -> None:
    client = Client()
    update, _ = client.sends(LocalTraining(0.05, 2), 4, 0.05)
    leak = unsum.attack(client.model, update, batch_size=8)
    assert leak.method == "local-steps"
    assert leak.exact
    assert (
        "How the client trains: 2 local steps of SGD at a learning rate of 0.05."
        in leak.knowledge.granted()
    )


def test_labels_that_are_known_are_the_only_ones_considered() -> None:
    client = Client()
    update, features = client.sends(LocalTraining(0.05, 2), 4, 0.05)
    assert separated(client, update, features, labels=client.labels)[1] < 1e-4


@pytest.mark.long
def test_too_many_samples_fall_back_to_the_sum_and_say_so() -> None:
    torch.manual_seed(0)
    client = Client()
    client.model[2] = nn.Linear(client.model[2].in_features, 12)
    client.labels = torch.arange(8)
    update, _ = client.sends(LocalTraining(0.01, 2), 4, 0.01)
    leak = unsum.separate(client.model, update, "local-steps")
    assert not leak.exact
    assert "too many for 12 classes" in leak.notes[0]


def test_what_cannot_be_followed_is_refused_in_a_sentence() -> None:
    client = Client()
    update, _ = client.sends(LocalTraining(0.05, 2), 4, 0.05)
    with pytest.raises(UnsumError, match="needs to know how the client trains"):
        unsum.separate(client.model, Update(update.gradients, "delta", 0.1), "local-steps")
    with pytest.raises(UnsumError, match="needs a change of weights"):
        unsum.separate(
            client.model, Update(update.gradients, training=LocalTraining(0.05, 2)), "local-steps"
        )
    with pytest.raises(UnsumError, match="8 samples cannot fill 9 steps"):
        unsum.separate(
            client.model,
            replace(update, training=LocalTraining(0.05, 9)),
            "local-steps",
            batch_size=8,
        )
    with pytest.raises(UnsumError, match="below 1"):
        LocalTraining(0.1, momentum=1.0)
    with pytest.raises(UnsumError, match="at least 1"):
        LocalTraining(0.1, epochs=0)
    with pytest.raises(UnsumError, match="5 steps are not 2 epochs"):
        LocalTraining(0.1, 5, epochs=2)


def test_the_training_travels_with_the_file(tmp_path) -> None:
    client = Client()
    update, _ = client.sends(LocalTraining(0.05, 2, momentum=0.5), 4, 0.05)
    update.save(tmp_path / "client.safetensors")
    assert Update.load(tmp_path / "client.safetensors").training == LocalTraining(
        0.05, 2, momentum=0.5
    )


@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.9, 0.0), (0.9, 0.1)])
def test_the_schedule_is_that_of_torchs_sgd(momentum: float, decay: float) -> None:
    torch.manual_seed(1)
    weight, gradients = torch.randn(5, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    moving = weight.clone().requires_grad_()
    optimizer = torch.optim.SGD([moving], lr=0.3, momentum=momentum, weight_decay=decay)
    schedule = Schedule.of(LocalTraining(0.3, 4, None, decay, momentum), (1, 1, 1, 1))
    for step in range(5):
        expected = schedule.kept[step] * weight - 0.3 * schedule.reach[step] @ gradients
        assert torch.allclose(moving.detach(), expected, atol=1e-12)
        if step < 4:
            moving.grad = gradients[step].clone()
            optimizer.step()


def test_batches_are_split_as_a_loader_does() -> None:
    assert mini_batches(8, 4) == (2, 2, 2, 2)
    assert mini_batches(7, 2) == (4, 3)
    assert mini_batches(5, 4) == (2, 1, 1, 1)


def test_a_false_rate_of_the_first_step_does_not_count_a_million_samples() -> None:
    client = Client()
    update, _ = client.sends(LocalTraining(0.05, 2), 4, 0.05)
    observation = observe_movement(Head.of(client.model, update), update.training, None)
    assert size_of_step(observation, 1e12, 2) <= 2 * observation.rank
