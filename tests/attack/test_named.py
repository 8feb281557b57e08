"""Label rules as attacks of their own, where no answer of samples is certain."""

from __future__ import annotations

import importlib
from collections import Counter

import pytest
import torch
from torch import nn

import unsum
from unsum.attack.named import LABELS_ALONE, label_rows
from unsum.data.batch import embedded_batch
from unsum.defend import Defense
from unsum.head import Head
from unsum.models import load_model

auto, named = (importlib.import_module(f"unsum.attack.{name}") for name in ("auto", "named"))


def hardswish_net(classes: int = 40) -> nn.Sequential:
    """Features may be negative, and dropout leaves columns of zeros."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(192, 96), nn.Hardswish(), nn.Dropout(0.2), nn.Linear(96, classes)
    )


def crowd(samples: int, classes: int = 30) -> tuple[nn.Linear, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    labels = torch.randint(classes, (samples,))
    return nn.Linear(80, classes), torch.randn(samples, 80).relu(), labels


def test_signs_that_are_never_zero_are_signs_and_their_labels_are_read() -> None:
    torch.manual_seed(3)
    labels = torch.tensor([1, 5, 9, 14, 20, 33])
    audit = unsum.audit(hardswish_net(), (torch.rand(6, 3, 8, 8), labels), defenses=unsum.Sign())
    assert audit.leak.residual < 10  # a grid of step 2 between −1 and 1 left 1e303 of the gradient
    assert any("only their signs were sent" in note for note in audit.leak.notes)
    assert audit.leak.named is not None
    assert audit.leak.named.tolist() == labels.tolist()
    assert [one.label_correct for one in audit.samples] == [1.0] * 6
    assert audit.labels is not None
    assert (audit.labels.right, audit.labels.total, audit.labels.given_away) == (6, 6, True)
    assert audit.verdict.state == "leaks"


def test_rules_are_asked_when_time_is_over() -> None:
    """They cost next to nothing, and a slow machine must not hide what they read."""
    torch.manual_seed(3)
    labels = torch.tensor([1, 5, 9, 14, 20, 33])
    data, limits = (torch.rand(6, 3, 8, 8), labels), unsum.AuditLimits(time_limit=0.01)
    audit = unsum.audit(hardswish_net(), data, defenses=unsum.Sign(), limits=limits)
    assert audit.leak.named is not None
    assert audit.leak.named.tolist() == labels.tolist()
    assert audit.verdict.state == "leaks"


def test_the_labels_of_a_crowd_are_counted_by_a_rule() -> None:
    model, features, labels = crowd(60)
    leak = unsum.attack(model, unsum.capture(model, features, labels), batch_size=60)
    assert leak.named is not None
    right = sum((Counter(leak.named.tolist()) & Counter(labels.tolist())).values())
    assert right >= 57
    alone = [one for one in leak.tried if one.labels is not None]
    assert {one.blind for one in alone} == {LABELS_ALONE}
    assert leak.undecided  # labels alone say nothing of samples


def test_a_certain_answer_needs_no_rule() -> None:
    model, features, labels = crowd(5)
    leak = unsum.attack(model, unsum.capture(model, features, labels))
    assert leak.exact
    assert leak.named is None
    assert not any(one.labels is not None for one in leak.tried)


@pytest.mark.parametrize("defense", [unsum.Noise(0.09), unsum.Sign()])
def test_row_sums_are_read_through_noise_and_signs(defense: Defense) -> None:
    """Of seven classes noise of 0.09 leaves six; nobody says how many there are."""
    batch = embedded_batch(8, image_size=128)
    model = load_model("default", classes=100).model
    update = unsum.capture(model, batch.images, batch.targets, defenses=[defense])
    found = unsum.labels(model, update, "row-sum").tolist()
    assert len(set(found) & set(batch.targets.tolist())) >= 6
    assert len(found) <= 7


def test_templates_are_asked_of_every_defense() -> None:
    """Four bits of a pooled network hide half of the labels from all other rules."""
    torch.manual_seed(3084)
    layers = [nn.Conv2d(3, 32, 3, 1, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(256, 5))
    torch.manual_seed(3085)
    labels = torch.randint(5, (4,))
    images = embedded_batch(16, image_size=16).images
    images = images[torch.randperm(16)[:4]]
    torch.manual_seed(3084)
    update = unsum.capture(model, images, labels, defenses=[unsum.QSGD(4)])
    leak = unsum.attack(model, update, time_limit=20)
    read = {one.method: sorted(one.labels.tolist()) for one in leak.tried if one.labels is not None}
    assert read.pop("labels by templates") == sorted(labels.tolist()) == [0, 1, 4, 4]
    assert [0, 1, 4, 4] not in read.values()


def test_faint_row_sums_below_zero_are_labels_where_noise_turns_none() -> None:
    """Sums of absent classes are 9.6; those of labels are −2.4 and less, three deviations of a
    noise of 0.8 below zero."""
    torch.manual_seed(4)
    model, labels = nn.Linear(192, 10), torch.tensor([0, 1, 1, 3, 4, 4, 7, 9])
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    update = unsum.Noise(0.058)(unsum.capture(model, torch.full((8, 192), 0.5), labels))
    assert unsum.labels(model, update, "row-sum").tolist() == [0, 1, 3, 4, 7, 9]


def test_row_sums_below_zero_are_labels_however_many_classes_occur() -> None:
    """Six of ten classes occur, so that no bulk is left: their sums are −n/B Σf and less, 8
    deviations of the noise below 0."""
    torch.manual_seed(4)
    model, labels = nn.Linear(192, 10), torch.tensor([0, 1, 1, 3, 4, 4, 7, 9])
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    features = torch.full((8, 192), 0.5)
    update = unsum.Noise(0.02)(unsum.capture(model, features, labels))
    # (1/10 − 1/8) · 96 = −2.4 with noise of 0.28
    pulls = update.gradients["weight"].sum(1)[[0, 3, 7, 9]]
    assert pulls.tolist() == pytest.approx([-2.4] * 4, abs=1.2)
    assert unsum.labels(model, update, "row-sum").tolist() == [0, 1, 3, 4, 7, 9]
    assert unsum.labels(model, update, "row-sum", batch_size=8).tolist() == labels.tolist()


def mobile(classes: int = 20) -> nn.Sequential:
    """As MobileNet ends: normalized maps, features that may be negative, dropout."""
    torch.manual_seed(5)
    below = [
        nn.Conv2d(3, 32, 3, 2, 1),
        nn.BatchNorm2d(32),
        nn.Hardswish(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
    ]
    return nn.Sequential(
        *below, nn.Linear(128, 96), nn.Hardswish(), nn.Dropout(0.2), nn.Linear(96, classes)
    )


def test_separators_are_asked_again_with_labels_that_a_rule_names() -> None:
    """Of signs no separator finds features by itself; with the labels of the bias gradient's signs
    one has part of four."""
    torch.manual_seed(6)
    labels = torch.randint(20, (8,))
    photos = embedded_batch(16, image_size=16).images[torch.randperm(16)[:8]]
    audit = unsum.audit(
        mobile(),
        (photos, labels),
        defenses=unsum.Sign(),
        seed=5,
        limits=unsum.AuditLimits(ceiling=False),
    )
    most = {one.attack: one.worst for one in audit.tried if one.leakages}
    asked = {name: worst for name, worst in most.items() if "labels by" in name}
    assert set(asked) == {
        f"{method}, labels by {rule}"
        for method in ("rows", "exact", "adaptive", "fgla")
        for rule in ("bias-sign", "templates")
    }
    assert most["exact"] < 0.01 < 0.2 < asked["exact, labels by bias-sign"]
    assert all(not one.exact and one.remark for one in audit.tried if one.attack in asked)
    assert audit.granted == ["The model's weights and one client update."]


def test_a_batch_of_one_that_nobody_declared_is_tried() -> None:
    torch.manual_seed(9530)
    model, features = nn.Linear(48, 2), torch.rand(1, 48)
    update = unsum.Noise(1.0)(unsum.capture(model, features, torch.tensor([0])))
    leaks = [unsum.attack(model, update, **known) for known in ({}, {"batch_size": 2})]
    asked = [
        {one.method: one.labels for one in leak.tried if one.labels is not None} for leak in leaks
    ]
    assert len(asked[0]["labels by idlg"]) == 1
    assert "labels by idlg" not in asked[1]


def test_no_separator_is_asked_again_where_an_answer_is_worth_something() -> None:
    model, features, labels = crowd(5)
    leak = unsum.attack(model, unsum.Noise(1e-3)(unsum.capture(model, features, labels)))
    assert leak.predicted_error < 0.3
    assert not any(", labels by" in one.method for one in leak.tried)


def test_labels_are_read_where_time_was_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules have a few seconds of their own; the solver had used up what there was."""
    torch.manual_seed(3)
    model, labels = hardswish_net(), torch.tensor([1, 5, 9, 14, 20, 33])
    update = unsum.Sign()(unsum.capture(model, torch.rand(6, 3, 8, 8), labels))
    monkeypatch.setattr(auto, "out_of_time", lambda _untried: True)
    leak = unsum.attack(model, update)
    assert leak.named is not None
    assert leak.named.tolist() == labels.tolist()
    assert leak.tried[0].method == "exact"
    assert all(one.method.startswith("labels by") for one in leak.tried[1:])


def test_rows_of_labels_are_features_up_to_a_factor() -> None:
    """One sample of class 1 with p = 1/4: its row is −3/4 f, the others' are f/4, so that row
    beside mean is −f."""
    model, features = nn.Linear(3, 4), torch.tensor([[1.0, 2.0, 4.0]])
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    update = unsum.capture(model, features, torch.tensor([1]), defenses=[unsum.DropBias()])
    leak = label_rows(Head.of(model, update), torch.tensor([1]))
    assert leak.features.tolist() == [pytest.approx([1.0, 2.0, 4.0])]
    assert (leak.labels.tolist(), leak.exact) == ([1], False)
