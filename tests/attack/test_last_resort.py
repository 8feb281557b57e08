"""Before an audit of small pictures calls an update safe, it has tried to match its gradient."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import unsum
from support.long import long
from unsum.attack.last_resort import MOST_SAMPLES, PROVES_NOTHING, SETTINGS, match_as_last_resort
from unsum.attack.options import AttackOptions
from unsum.audit.round import Sent, labels_read
from unsum.data.batch import embedded_batch
from unsum.defend import Defense
from unsum.score.pictures import picture_cosine

LABELS = torch.tensor([3, 7])


def lenet() -> nn.Sequential:
    """The network of the first papers on matching, for pictures of 16²."""
    torch.manual_seed(1)
    layers = [nn.Conv2d(3, 12, 5, 2, 2), nn.Sigmoid(), nn.Conv2d(12, 12, 5, 2, 2), nn.Sigmoid()]
    return nn.Sequential(
        *layers, nn.Conv2d(12, 12, 5, 1, 2), nn.Sigmoid(), nn.Flatten(), nn.Linear(192, 10)
    )


def pooled() -> nn.Sequential:
    torch.manual_seed(1)
    layers = [nn.Conv2d(3, 32, 3, 1, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(256, 10))


def photos() -> Tensor:
    order = torch.randperm(8, generator=torch.Generator().manual_seed(0))[:2]
    return embedded_batch(8, image_size=16).images[order]


@pytest.mark.parametrize(
    ("model", "defense", "least"),
    [(lenet(), unsum.Prune(0.9), 0.6), *long((pooled(), unsum.Soteria(0.8), 0.6))],
)
def test_what_equations_do_not_read_is_matched_before_it_is_called_low(
    model: nn.Module, defense: Defense, least: float
) -> None:
    audit = unsum.audit(model, (photos(), LABELS), defenses=defense)
    others = [one.worst for one in audit.tried if one.leakages and one.attack not in SETTINGS]
    assert max(others) < 0.2
    assert max(audit.leakages) > least
    assert set(audit.by) <= {"ig", "rog"}
    assert (audit.leak.method, audit.leak.images is not None) == ("ig", True)
    assert audit.gate(0.2).exit_code == 1


@pytest.mark.parametrize("model", [lenet(), *long(pooled())])
def test_signs_are_matched_with_fewer_pixels(model: nn.Module) -> None:
    """All pixels free, cosines with a vector of signs draw nothing: no picture has a gradient of
    entries of one size."""
    audit = unsum.audit(
        model, (photos(), LABELS), defenses=unsum.Sign(), limits=unsum.AuditLimits(ceiling=False)
    )
    most = {name: max(one.worst for one in audit.tried if one.attack == name) for name in SETTINGS}
    assert most["ig"] < 0.15 < 0.25 < most["rog"]
    assert "rog" in audit.by
    assert audit.gate(0.2).exit_code == 1
    # labels that a rule found are not granted
    assert audit.granted == ["The model's weights and one client update."]


@pytest.mark.long
def test_dropout_does_not_keep_pictures_from_being_matched() -> None:
    torch.manual_seed(1)
    below = [
        nn.Conv2d(3, 32, 3, 1, 1),
        nn.Tanh(),
        nn.Conv2d(32, 64, 3, 2, 1),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d(2),
    ]
    model = nn.Sequential(*below, nn.Flatten(), nn.Dropout(0.2), nn.Linear(256, 10)).train()
    update = unsum.capture(model, photos(), LABELS, defenses=[unsum.Sign()])
    attempts = match_as_last_resort(
        model, update, unsum.attack(model, update), AttackOptions(), (3, 16, 16)
    )
    assert [one.method for one in attempts][:2] == ["ig", "rog"]
    assert all(one.leak is not None for one in attempts)
    assert model[6].training


@pytest.mark.long
def test_labels_that_are_granted_are_tried_said_and_read_by_nobody() -> None:
    """An attacker that has the labels, or tries them all, needs no rule that finds them."""
    model, x = pooled(), photos()
    update = unsum.capture(model, x, LABELS, defenses=[unsum.Soteria(0.8)])
    others = nn.functional.one_hot(torch.tensor([0, 1]), 10).double()
    leak = replace(unsum.attack(model, update), targets=others, named=None, tried=[])
    attempts = match_as_last_resort(
        model, update, leak, AttackOptions(), (3, 16, 16), granted=LABELS.flip(0)
    )
    assert [one.method for one in attempts][:4] == [
        "ig",
        "rog",
        "ig, labels granted",
        "rog, labels granted",
    ]
    found, own = attempts[0].leak, attempts[2].leak
    assert found is not None
    assert own is not None
    assert (found.labels.tolist(), found.knowledge.labels) == ([0, 1], None)
    assert own.knowledge.labels is not None
    assert "The client's labels were granted" in own.notes[0]
    assert max(picture_cosine(image, photo) for image in own.images for photo in x) > 0.75
    sent = Sent(model, x, LABELS, update, train=True, seed=0)
    assert (labels_read(sent, attempts[2]).right, labels_read(sent, attempts[2]).named) == (0, 0)
    wrong = replace(attempts[2], leak=replace(own, knowledge=found.knowledge))
    assert labels_read(sent, wrong).right == 2  # the same labels, had a rule found them


def test_labels_that_a_rule_found_are_not_granted_again() -> None:
    model = pooled()
    update = unsum.capture(model, photos(), LABELS, defenses=[unsum.Noise(10.0)])
    leak = replace(unsum.attack(model, update), named=LABELS, tried=[])
    attempts = match_as_last_resort(
        model,
        update,
        leak,
        AttackOptions(batch_size=2, time_limit=leak.seconds + 3),
        (3, 16, 16),
        granted=LABELS,
    )
    assert not any("granted" in one.method for one in attempts)


def test_what_leaks_already_is_not_matched() -> None:
    audit = unsum.audit(pooled(), (photos(), LABELS))
    assert min(audit.leakages) > 0.9
    assert not any(one.attack == "ig" for one in audit.tried)


def test_what_is_not_tried_is_said() -> None:
    """Large pictures, many samples, and a time limit that is over: none of them is a failed
    attack."""
    model, x = pooled(), photos()
    update = unsum.capture(model, x, LABELS, defenses=[unsum.Noise(10.0)])
    leak = replace(unsum.attack(model, update), seconds=5.0, named=LABELS)
    cases = {
        "pictures of 128² take long": (AttackOptions(), (3, 128, 128)),
        f"{MOST_SAMPLES + 1} pictures take long": (
            AttackOptions(batch_size=MOST_SAMPLES + 1),
            (3, 16, 16),
        ),
        "of the time limit 0 s were left": (AttackOptions(time_limit=2.0), (3, 16, 16)),
        "it does not know the loss 'focal'": (AttackOptions(loss="focal"), (3, 16, 16)),
    }
    for reason, (options, shape) in cases.items():
        (attempt,) = match_as_last_resort(model, update, leak, options, shape)
        assert reason in attempt.refused
        assert attempt.leak is None
    assert match_as_last_resort(model, update, leak, AttackOptions(), (48,)) == []
    assert (
        match_as_last_resort(model, update, leak, AttackOptions(method="exact"), (3, 16, 16)) == []
    )


def test_a_search_that_finds_nothing_decides_nothing() -> None:
    model, x = pooled(), photos()
    update = unsum.capture(model, x, LABELS, defenses=[unsum.Noise(10.0)])
    leak = replace(unsum.attack(model, update), named=LABELS)
    attempts = match_as_last_resort(
        model, update, leak, AttackOptions(time_limit=leak.seconds + 1.5), (3, 16, 16)
    )
    assert all(PROVES_NOTHING in one.blind or "time was over" in one.blind for one in attempts)


def test_numbers_to_predict_are_matched_before_an_update_is_called_low() -> None:
    """The head reads one number, so that nothing but the convolutions' gradients holds the
    photo."""
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1), nn.ReLU(), nn.Conv2d(16, 1, 8), nn.Flatten(), nn.Linear(1, 1)
    )
    x = embedded_batch(8, image_size=8).images[[1]]
    update = unsum.capture(model, x, torch.tensor([2.0]), loss="mse", train=True)
    leak = unsum.attack(model, update, loss="mse")
    options = AttackOptions(loss="mse", batch_size=1, time_limit=leak.seconds + 30)
    (attempt,) = match_as_last_resort(model, update, leak, options, (3, 8, 8))
    assert attempt.leak is not None
    assert attempt.method == "matching"
    assert attempt.leak.images is not None
    off = (attempt.leak.images - x).square().sum() / (
        x - x.mean((2, 3), keepdim=True)
    ).square().sum()
    assert float(off) < 0.5
    assert attempt.leak.features.shape == (1, 1)
    assert attempt.leak.targets.shape == (1, 1)
