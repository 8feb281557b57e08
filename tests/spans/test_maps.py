"""Every sample's map out of two convolutions, held against the truth; and what is said where there
are none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import unsum
from support.long import long
from support.maps import Norm, bottleneck, client, network
from unsum import UnsumError
from unsum.engine.descend import Descent
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.running.progress import Progress
from unsum.spans.maps import corner, gates, method, samples, solve, zeros
from unsum.spans.maps.asked import Asked
from unsum.spans.maps.condition import MapCondition
from unsum.spans.maps.judge import judge
from unsum.spans.maps.solve import FoundMaps


@pytest.mark.parametrize(
    ("train", "labels"),
    [(False, [1, 1, 1]), (True, [0, 1, 2]), *long((False, [0, 1, 2]), (True, [1, 1, 1]))],
)
def test_every_sample_is_certified(train: bool, labels: list[int]) -> None:
    """In train mode nobody sent statistics; labels may be equal."""
    sent = client(network(), labels, train=train)
    leak = unsum.separate(sent.model, sent.update, "spans", batch_size=len(sent.labels))
    assert float(sent.errors(leak).max()) < 5e-6
    assert leak.exact, leak.notes
    assert leak.predicted_error < 1e-4
    assert leak.scale == pytest.approx(1, rel=1e-4)
    assert unsum.score(leak, features=sent.features)["worst_feature_error"] < 1e-5


@pytest.mark.long
def test_more_samples_than_classes() -> None:
    sent = client(network(classes=2), [0, 1, 1, 0])
    leak = unsum.attack(sent.model, sent.update, batch_size=len(sent.labels))
    assert leak.method == "spans"
    assert float(sent.errors(leak).max()) < 5e-6
    assert leak.exact, leak.notes


def test_statistics_that_were_sent_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """No round is needed to find them; where they are wrong, rounds find better ones."""
    sent = client(network(), [0, 1, 2], buffers=True)
    told = sent.update.statistics
    wrong = replace(told, means={name: 1 + mean for name, mean in told.means.items()})
    leak = unsum.separate(sent.model, replace(sent.update, statistics=wrong), "spans")
    assert float(sent.errors(leak).max()) < 5e-6
    monkeypatch.delattr(samples, "solve_rounds")
    leak = unsum.separate(sent.model, sent.update, "spans", batch_size=len(sent.labels))
    assert float(sent.errors(leak).max()) < 5e-6
    assert leak.exact, leak.notes


@pytest.mark.parametrize("train", [False, True])
def test_one_sample(train: bool) -> None:
    sent = client(network(64), [3], train=train)
    leak = unsum.separate(sent.model, sent.update, "spans", batch_size=len(sent.labels))
    assert float(sent.errors(leak).max()) < 5e-6
    assert leak.exact, leak.notes


@pytest.mark.parametrize("train", [False, True])
def test_the_client_s_mode_is_told_by_its_gradient(train: bool) -> None:
    sent = client(network(), [0, 1, 2], train=train)
    leak = unsum.separate(sent.model.train(not train), sent.update, "spans")
    assert float(sent.errors(leak).max()) < 5e-6
    assert any(f"was in {'train' if train else 'eval'} mode" in note for note in leak.notes)


@pytest.mark.parametrize("train", [False, True])
def test_without_a_shortcut(train: bool) -> None:
    """In train mode the maps' common factor shows in BatchNorm's eps alone; features do not depend
    on it."""
    sent = client(network(plain=True), [0, 1, 2], train=train)
    leak = unsum.separate(sent.model, sent.update, "spans", batch_size=len(sent.labels))
    assert float(sent.errors(leak).max()) < (1e-2 if train else 5e-6)
    assert unsum.score(leak, features=sent.features)["worst_feature_error"] < 1e-5
    assert leak.exact, leak.notes


@pytest.mark.parametrize("activation", [nn.GELU, *long(nn.Tanh)])
def test_other_activations(activation: type[nn.Module]) -> None:
    sent = client(network(activation=activation), [0, 1, 2])
    leak = unsum.separate(sent.model, sent.update, "spans", batch_size=len(sent.labels))
    assert float(sent.errors(leak).max()) < 5e-6
    assert leak.exact, leak.notes


def test_biases_instead_of_norms() -> None:
    sent = client(network(norm=lambda _: nn.Identity(), bias=True), [0, 1, 2])
    leak = unsum.separate(sent.model, sent.update, "spans", batch_size=len(sent.labels))
    assert float(sent.errors(leak).max()) < 5e-6
    assert leak.exact, leak.notes


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("make", [network, bottleneck])
def test_a_mixture_is_never_certified(make: Callable[[], nn.Sequential], train: bool) -> None:
    """Maps of the same space, as good as any other for the first convolution, with one replaced by
    a mixture; of a bottleneck, what the block itself read."""
    sent = client(make(), [0, 1, 2], train=train)
    head = Head.of(sent.model, sent.update)
    known = Knowledge(batch_size=len(sent.labels))
    given = method.answer_of(head, known, sent.model, sent.update)
    assert judge(given, known, 0).exact
    for share in (0.5, 0.05, 0.01):
        maps = given.maps.clone()
        maps[0] = (1 - share) * maps[0] + share * maps[1]
        played = given.tail.play(maps, given.reading.Y, given.reading.weights, given.reading.loss)
        assert not judge(replace(given, maps=maps, played=played), known, 0).exact


def test_a_relu_that_rounding_decided_is_put_on_the_client_s_side() -> None:
    """Maps that are right to a millionth, with a relu on the wrong side: unexplained until the bias
    gradient has told."""
    sent = client(network(), [0, 1, 2])
    known = Knowledge(batch_size=len(sent.labels))
    asked = Asked(Head.of(sent.model, sent.update), known, sent.model, sent.update, None, 0)
    given = method.answer_of(asked.head, known, sent.model, sent.update)
    gate = given.tail.gates[0]
    values = given.played.read[gate.before]
    nearest = values.abs().flatten().argmin()
    wrong = torch.zeros_like(values).flatten()
    wrong[nearest] = -values.flatten()[nearest] - values.flatten()[nearest].sign() * 1e-7
    tail = replace(given.tail, moved={gate.before: wrong.view_as(values)})
    reading, played = tail.answer(asked, given.maps)
    assert played.replay.unexplained > 1e-4
    over = gates.moved_over(
        values + wrong.view_as(values),
        played.sent[gate.after],
        tail.gradients[gate.bias],
        torch.full((3,), 1e-5),
    )
    assert (over != 0).flatten().nonzero().tolist() == [[int(nearest)]]
    tail = replace(tail, moved={gate.before: wrong.view_as(values) + over})
    assert tail.play(given.maps, reading.Y, reading.weights, reading.loss).replay.unexplained < 1e-5


@pytest.mark.parametrize("train", [False, True])
def test_a_part_of_the_batch_is_returned_and_named(
    train: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where one sample is never found: the others are right, nothing is claimed, and who is
    missing is said."""

    def without_one(
        condition: MapCondition, samples: int, seed: int, progress: Progress
    ) -> FoundMaps:
        found = whole(condition, samples, seed, progress)
        return found[1:]

    name = "solve_rounds" if train else "solve_known"
    whole = getattr(samples, name)
    monkeypatch.setattr(samples, name, without_one)
    sent = client(network(), [0, 1, 2], train=train)
    leak = unsum.separate(sent.model, sent.update, "spans", batch_size=3)
    assert leak.batch_size == 2
    assert not leak.exact
    assert leak.notes[0].startswith("2 of 3 samples were told apart")
    assert "no sign" in leak.notes[0]
    found, true = (
        F.normalize(maps.double().flatten(1)) for maps in (leak.inner["1.conv1"], sent.maps)
    )
    errors, which = torch.cdist(found, true).min(1)
    # without the factor, BatchNorm's eps is left out
    assert float(errors.max()) < (1e-3 if train else 5e-6)
    assert len(set(which.tolist())) == 2


def test_samples_that_become_one_on_the_way_are_named_as_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As twins do once the batch's factor is known."""
    whole = samples.settled

    def fewer(condition: MapCondition, ends: Tensor, chosen: Tensor) -> FoundMaps:
        found = whole(condition, ends, chosen)
        return found[1:]

    monkeypatch.setattr(samples, "settled", fewer)
    sent = client(network(), [0, 1, 2])
    leak = unsum.separate(sent.model, sent.update, "spans", batch_size=3)
    assert leak.batch_size < 3
    assert not leak.exact
    assert leak.notes[0].startswith(f"{leak.batch_size} of 3 samples were told apart")


def test_zeros_tell_samples_and_statistics_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sample that is far from all others makes the batch's statistics: rounds that guess them
    do not come near."""
    monkeypatch.delattr(solve, "_rounds")
    sent = client(network(), [0, 1, 2], first=30.0)
    leak = unsum.separate(sent.model, sent.update, "spans", batch_size=3)
    assert float(sent.errors(leak).max()) < 2e-5
    assert leak.exact, leak.notes


def test_zeros_lead_to_samples_that_no_start_came_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """All starts are one and the same: it leads to one sample at most, and relu's zeros to all of
    them."""
    drawn = solve._starts

    def one(condition: MapCondition, number: int, generator: torch.Generator) -> Tensor:
        return drawn(condition, 1, torch.Generator().manual_seed(0)).expand(number, -1)

    monkeypatch.setattr(solve, "_starts", one)
    monkeypatch.setattr(solve, "beside", lambda found, number, _: found[:1].expand(number, -1))
    sent = client(network(), [0, 1, 2], train=False)
    leak = unsum.separate(sent.model, sent.update, "spans", batch_size=3)
    assert float(sent.errors(leak).max()) < 5e-6
    monkeypatch.setattr(solve, "has_zeros", lambda *_: False)
    assert unsum.separate(sent.model, sent.update, "spans", batch_size=3).batch_size < 3


def test_zeros_confirm_what_one_start_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """They lead to the same samples without the norm and the first layer; where they lead
    elsewhere, nothing is claimed."""
    finished, sparsest = solve._finished, solve.sparsest

    def once(condition: MapCondition, ends: Descent, number: int) -> FoundMaps:
        found = finished(condition, ends, number)
        return replace(found, hits=torch.ones_like(found.hits))

    def elsewhere(rows: Tensor, number: int, generator: torch.Generator) -> zeros.SparseMaps:
        found = sparsest(rows, number, generator)
        return found._replace(y=found.y + 0.1 * found.y.roll(1, 0))

    monkeypatch.setattr(solve, "_finished", once)
    sent = client(network(), [0, 1, 2], train=False)
    assert unsum.separate(sent.model, sent.update, "spans", batch_size=3).exact
    monkeypatch.setattr(solve, "sparsest", elsewhere)
    assert not unsum.separate(sent.model, sent.update, "spans", batch_size=3).exact


@pytest.mark.parametrize(
    ("train", "kind"),
    [(True, torch.bfloat16), *long((False, torch.float16))],
)
def test_half_precision_hides_nothing_and_is_predicted(train: bool, kind: torch.dtype) -> None:
    with torch.autocast("cpu", kind):
        sent = client(network(), [0, 1, 2], train=train)
    leak = unsum.separate(sent.model, sent.update, "spans", batch_size=3)
    assert not leak.exact
    errors = (
        float(sent.errors(leak).max()),
        unsum.score(leak, features=sent.features)["worst_feature_error"],
    )
    assert max(errors) < min(2e-2, leak.estimate)
    assert leak.estimate < 50 * max(errors)


def test_maps_grow_from_the_corner() -> None:
    """The space holds the batch's maps and nothing else, and knows their size."""
    sent = client(network(), [0, 1, 2], train=False)
    batch = method.read_batch(sent.model, sent.update, torch.device("cpu"))
    assert (batch.space.samples, batch.space.sides, batch.train) == (3, (4, 4), False)
    rows = corner.orthonormal_rows(batch.space.every.flatten(1))
    maps = sent.maps.double().flatten(1)
    assert float((maps - (maps @ rows.T) @ rows).norm() / maps.norm()) < 1e-5


def test_a_batch_beyond_the_channels_is_refused() -> None:
    sent = client(network(), [0, 1, 2, 3, 4, 0, 1], train=False)
    with pytest.raises(UnsumError, match=r"take all 96 channels.*smaller batches.*'ig'\) remains"):
        unsum.separate(sent.model, sent.update, "spans", batch_size=len(sent.labels))


@pytest.mark.parametrize("frozen", [False, True])
def test_missing_tensors_are_named_and_the_head_is_still_read(frozen: bool) -> None:
    """Not sent, or frozen and so without a gradient: nothing else is lost."""
    model = network()
    model[1].conv2.requires_grad_(not frozen)
    sent = client(model, [0, 1, 2])
    update = replace(
        sent.update,
        gradients={n: g for n, g in sent.update.gradients.items() if n != "1.conv2.weight"},
    )
    with pytest.raises(
        UnsumError, match=r"lacks '1\.conv2\.weight'.* use 'exact' for the head alone"
    ):
        unsum.separate(sent.model, update, "spans")
    leak = unsum.attack(sent.model, update, batch_size=3)
    assert leak.exact, leak.notes
    assert unsum.score(leak, features=sent.features)["worst_feature_error"] < 1e-5


@pytest.mark.parametrize("train", [True, *long(False)])
def test_norms_that_are_frozen_hide_nothing(train: bool) -> None:
    model = network()
    for norm in (model[1].norm1, model[1].norm2):
        norm.requires_grad_(False)
    sent = client(model, [0, 1, 2], train=train)
    leak = unsum.separate(sent.model, sent.update, "spans", batch_size=3)
    assert float(sent.errors(leak).max()) < 5e-6
    assert leak.exact, leak.notes


@pytest.mark.parametrize(("train", "noise"), [(True, 1e-4), *long((False, 1e-3))])
def test_noise_is_predicted(train: bool, noise: float) -> None:
    """Never below the error, and near it: relus that noise put on the wrong side are set right
    before anything is predicted."""
    sent = client(network(), [0, 1, 2], train=train)
    torch.manual_seed(0)
    noisy = sent.update.map(
        lambda _, g: g + noise * g.norm() / g.numel() ** 0.5 * torch.randn_like(g)
    )
    leak = unsum.separate(sent.model, noisy, "spans", batch_size=3)
    assert not leak.exact
    error = float(sent.errors(leak).max())
    assert 0.3 * noise < error < 3 * noise
    assert error < leak.estimate < 20 * error


@pytest.mark.parametrize(
    ("make", "train", "twins"),
    [
        *((make, train, 0.0) for make in (bottleneck, network) for train in (False, True)),
        *long((bottleneck, True, 1e-3), (network, False, 1e-3)),
        *long((bottleneck, False, 1e-2), (network, True, 1e-2)),
    ],
)
def test_twins_leave_no_false_claim(
    make: Callable[[], nn.Sequential], train: bool, twins: float
) -> None:
    """Two of one label look like one that counts twice; equal ones are named twice, or nothing is
    claimed."""
    sent = client(make(), [0, 1, 0], train=train, twins=twins)
    leak = unsum.separate(sent.model, sent.update, "spans", batch_size=len(sent.labels))
    assert leak.exact == (twins == 0 and not train), leak.notes
    if leak.exact:
        assert leak.batch_size == 3
        assert unsum.score(leak, features=sent.features)["worst_feature_error"] < 1e-5
        assert sorted(leak.labels.tolist()) == [0, 0, 1]


def test_a_twin_that_weighs_next_to_nothing_is_told_by_the_number_alone() -> None:
    """Without the batch size nothing is claimed; with it, one sample is missing."""
    model, x, y = (
        network(64).eval(),
        torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(1)),
        torch.tensor([3]),
    )
    one, twin = (unsum.capture(model, some, y, train=False) for some in (x, x + 0.03 * x.flip(3)))
    faint = one.map(lambda name, g: g + 1e-4 * twin.gradients[name])
    leak = unsum.separate(model, faint, "spans")
    assert leak.batch_size == 1
    assert not leak.exact
    assert any("say the batch size" in note for note in leak.notes)
    assert not unsum.separate(model, faint, "spans", batch_size=2).exact


def _layer_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(1, channels)


def _group_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(4, channels)


def _no_norm(_: int) -> nn.Module:
    return nn.Identity()


@pytest.mark.parametrize(
    ("norm", "classes", "labels"),
    [
        (_no_norm, 5, [0, 1, 2]),
        (_group_norm, 2, [0, 1, 1]),
        *long((_no_norm, 5, [1, 1, 1]), (_layer_norm, 5, [0, 1, 2])),
    ],
)
def test_lengths_that_no_bias_tells(norm: Norm, classes: int, labels: list[int]) -> None:
    """The head's gradient tells them: its rows are mixtures of features, and its softmax has one
    length that fits."""
    sent = client(network(classes=classes, norm=norm), labels)
    leak = unsum.separate(sent.model, sent.update, "spans", batch_size=3)
    assert float(sent.errors(leak).max()) < 1e-5
    assert leak.exact, leak.notes
    assert leak.predicted_error < 1e-4


def test_maps_whose_lengths_are_open_are_not_returned() -> None:
    """Without any norm or bias, two classes tell no length."""
    sent = client(network(classes=2, norm=_no_norm), [0, 1, 1])
    leak = unsum.separate(sent.model, sent.update, "spans", batch_size=3)
    assert leak.batch_size == 0
    assert "lengths of its maps open" in leak.notes[0]


@pytest.mark.parametrize("affine", [False, True])
def test_instance_norm_is_refused_in_a_sentence(affine: bool) -> None:
    sent = client(
        network(classes=5, norm=lambda channels: nn.InstanceNorm2d(channels, affine=affine)),
        [0, 1, 2],
    )
    with pytest.raises(
        UnsumError, match=r"InstanceNorm.*use 'exact' for the head.*no sign that nothing leaks"
    ):
        unsum.separate(sent.model, sent.update, "spans", batch_size=3)
    leak = unsum.separate(sent.model, sent.update, "exact", batch_size=3)
    assert sorted(leak.labels.tolist()) == [0, 1, 2]
    assert leak.exact, leak.notes
