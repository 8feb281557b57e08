"""Pictures of what a dense layer reads: the spans find it, or the dense layers are peeled down to
it, and an inverse draws it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import unsum
from support.inverse_training import SIZE, photos
from unsum.invert.train import Training, train_inverse

CLASSES, LAYER = 4, "3"


@pytest.fixture(scope="module")
def model() -> nn.Sequential:
    """A LeNet of one convolution; pooling ends what can be peeled."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 1, 1), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(8 * 8 * 8, 64), nn.ReLU(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, CLASSES),
    )  # fmt: skip


@pytest.fixture(scope="module")
def inverses(model: nn.Sequential, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One that learned for a second, and one for another layer that learned nothing."""
    folders = {}
    for layer, steps in ((LAYER, 60), ("5", 1)):
        folders[layer] = tmp_path_factory.mktemp("inverse")
        training = Training(steps=steps, size=SIZE, batch=16, clients=(16,), rate=3e-3, layer=layer)
        train_inverse(
            model, photos(256), photos(16, 1), folders[layer], training, card={"photos": 256}
        )
    return folders


def client(model: nn.Module, B: int) -> tuple[Tensor, unsum.Update]:
    images = photos(B, seed=7) / 255
    return images, unsum.capture(model, images, torch.arange(B) % CLASSES)


def quality(leak: unsum.Leak, images: Tensor) -> float:
    return unsum.score(leak, images=images)["psnr"]


def test_every_sample_of_a_crowd_is_drawn(model: nn.Sequential, inverses: dict[str, Path]) -> None:
    """Three times as many samples as classes; zeros in the place of what the layer read lose the
    pictures."""
    images, update = client(model, 12)
    leak = unsum.attack(model, update, batch_size=12, inverse=inverses[LAYER])
    assert (leak.method, leak.exact, leak.batch_size) == ("spans", True, 12)
    assert sorted(leak.labels.tolist()) == sorted(i % CLASSES for i in range(12))
    assert leak.knowledge.auxiliary_photos == "256 of other origin, to train the inverse"
    gray = quality(replace(leak, images=torch.full_like(images, 0.5)), images)
    assert quality(leak, images) > gray + 3
    nothing = replace(leak, inner={LAYER: torch.zeros_like(leak.inner[LAYER])})
    blank = unsum.invert(model, nothing, inverse=inverses[LAYER])
    assert quality(replace(leak, images=blank), images) < gray + 1


def test_a_certain_answer_of_the_head_is_peeled_down_to_the_layer(
    model: nn.Sequential, inverses: dict[str, Path]
) -> None:
    images, update = client(model, 2)
    leak = unsum.attack(model, update, batch_size=2, inverse=inverses[LAYER])
    assert (leak.method, leak.exact) == ("exact", True)
    with torch.no_grad():
        read = model[:3](images)
    apart = torch.cdist(read, leak.inner[LAYER].float()).min(1).values / read.norm(dim=1)
    assert float(apart.max()) < 1e-3
    assert (
        quality(leak, images)
        > quality(replace(leak, images=torch.full_like(images, 0.5)), images) + 3
    )


def test_an_inverse_of_another_layer_is_named(
    model: nn.Sequential, inverses: dict[str, Path]
) -> None:
    _, update = client(model, 12)
    leak = unsum.attack(model, update, batch_size=12, inverse=inverses["5"])
    assert leak.images is None
    assert leak.notes[-1] == (
        "The inverse reads what '5' reads. The attack found what '3' reads; `unsum train-inverse "
        "--layer 3` makes an inverse for that."
    )
    _, few = client(model, 2)
    leak = unsum.attack(model, few, batch_size=2, inverse=inverses["5"])
    assert leak.notes[-1] == "The inverse reads what '5' reads, and peeling ends at '3'."


def test_an_answer_to_draw_is_preferred_to_one_that_is_no_more_certain(
    model: nn.Sequential, inverses: dict[str, Path]
) -> None:
    """Where nobody tells the batch size, neither the head's answer nor the spans' is certain."""
    images, update = client(model, 2)
    leak = unsum.attack(model, update, inverse=inverses[LAYER])
    assert (leak.method, leak.exact) == ("spans", False)
    assert {attempt.method for attempt in leak.tried} >= {"exact", "spans"}
    assert (
        quality(leak, images)
        > quality(replace(leak, images=torch.full_like(images, 0.5)), images) + 3
    )


def test_without_an_inverse_the_layer_to_train_one_for_is_named(model: nn.Sequential) -> None:
    _, update = client(model, 12)
    leak = unsum.attack(model, update, batch_size=12)
    assert "`unsum train-inverse --layer 3`" in leak.notes[-1]
