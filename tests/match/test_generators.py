"""Methods with a generator, a denoiser or photos of the attacker's own draw real pictures, defended
gradients included."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import unsum
from match.cases import convnet, crops, decibels, lenet
from match.plugs import Principal, denoiser, generator, own_photos
from support.long import long
from support.progress import Heard
from unsum import defend
from unsum.match import MATCHERS, lti, match


def owned() -> tuple[Tensor, Tensor]:
    return own_photos(), torch.zeros(len(own_photos()), dtype=torch.long)


def sent(net: nn.Module, batch: int = 1, defenses: tuple[Any, ...] = ()) -> unsum.Update:
    torch.manual_seed(1)  # some defenses draw
    return unsum.capture(
        net, crops(batch), torch.arange(batch) + 1, train=net.training, defenses=defenses
    )


def quality(
    net: nn.Module, update: unsum.Update, method: str, batch: int = 1, **options: Any
) -> float:
    leak = match(net, update, method, image_size=32, **options)
    assert leak.labels.tolist() == list(range(1, batch + 1))
    assert leak.images is not None
    assert 0 <= float(leak.images.min()) <= float(leak.images.max()) <= 1
    return float(decibels(leak.images, crops(batch)).min())


GGL = {"steps": 60, "population": 16}
LTI = {"steps": 300, "batches": 1000, "hidden": 256, "dimension": 2048}


@dataclass(frozen=True)
class Plugged:
    """A matcher, a network, a defense, what is plugged in, and the PSNR that noise, gray and an
    average photo miss."""

    method: str
    network: Callable[[], nn.Sequential]
    decibel: float
    options: dict[str, Any]
    defenses: tuple[Any, ...] = ()
    plugs: dict[str, Callable[[], Any]] = field(default_factory=dict)
    batch: int = 1

    def __str__(self) -> str:
        defense = self.defenses[0] if self.defenses else "open"
        return f"{self.method}-{self.network.__name__}-{defense}-{self.batch}"


GENERATOR = {"generator": lambda: generator(16)}
FINER = {"generator": lambda: generator(64)}
DENOISER = {"denoiser": denoiser}
PHOTOS = {"auxiliary": owned}
CASES = [
    Plugged("ggl", lenet, 17.5, GGL, (), GENERATOR),
    Plugged("rog", convnet, 22, {}, (), DENOISER),
    Plugged("rog", convnet, 20, {}, (defend.QSGD(64),), DENOISER),
    Plugged("rog", convnet, 18, {}, (defend.Sign(),), DENOISER),
    Plugged("rog", convnet, 17, {}, (defend.Prune(0.99),), DENOISER),
    Plugged("lti", lenet, 17.5, LTI, (defend.Prune(0.9),), PHOTOS),
]
FURTHER = [
    Plugged(
        "gias",
        convnet,
        16.5,
        {"steps": 120, "weight_steps": 120, "restarts": 1, "rate": 0.1},
        (),
        FINER,
        2,
    ),
    Plugged("hcgla", convnet, 17.5, {"steps": 200}, (defend.Prune(0.99),), DENOISER),
    Plugged("lti", lenet, 18, LTI, (), PHOTOS),
    Plugged("lti", lenet, 17, LTI, (defend.Sign(),), PHOTOS),
]


@pytest.mark.parametrize("case", [*CASES, *long(*FURTHER)], ids=str)
def test_pictures_are_recovered(case: Plugged) -> None:
    if case.method == "ggl":
        pytest.importorskip("nevergrad")
    net = case.network()
    plugs = {name: make() for name, make in case.plugs.items()}
    found = quality(
        net, sent(net, case.batch, case.defenses), case.method, case.batch, **plugs, **case.options
    )
    assert found > case.decibel
    torch.manual_seed(0)
    images = crops(case.batch)
    average = (
        own_photos().mean(0, keepdim=True).expand_as(images)
    )  # what a generator draws that has learned nothing of the update
    assert float(decibels(average, images).min()) < case.decibel - 1.5
    for nothing in (torch.full_like(images, 0.5), torch.rand_like(images)):
        assert float(decibels(nothing, images).min()) < case.decibel - 3.5


def test_the_table_has_every_method_and_the_list_says_what_each_needs() -> None:
    needs = {entry.name: entry.needs for entry in MATCHERS}
    assert (
        {case.method for case in [*CASES, *FURTHER]}
        == {"gias", "ggl", "hcgla", "rog", "lti"}
        <= set(needs)
    )
    for method in ("gias", "ggl"):
        assert "a generator" in needs[method]
    for method in ("hcgla", "rog"):
        assert "a denoiser" in needs[method]
    assert "auxiliary photos" in needs["lti"]


@pytest.mark.parametrize(
    ("network", "defense"),
    [(lenet, defend.Prune(0.9)), *long((lenet, defend.Clip(0.05)), (convnet, defend.Soteria(0.8)))],
    ids=["prune", "clip", "soteria"],
)
def test_ggl_that_adapts_to_the_defense_is_better(
    network: Callable[[], nn.Sequential], defense: Any
) -> None:
    pytest.importorskip("nevergrad")
    net = network()
    update = sent(net, 1, (defense,))
    adapted, plain = (
        quality(net, update, "ggl", generator=generator(16), adapt=adapt, **GGL)
        for adapt in (True, False)
    )
    assert adapted > 16
    assert adapted > plain + 2


def test_the_weights_reach_what_the_latent_cannot() -> None:
    """16 latents draw no picture as fine as the generator's weights do after them."""
    net = convnet()
    update = sent(net)
    short = {"generator": generator(16), "steps": 100, "restarts": 1, "rate": 0.1}
    first = quality(net, update, "gias", weight_steps=1, weight_rate=0.0, **short)
    both = quality(net, update, "gias", weight_steps=150, **short)
    bound = float(decibels(best_drawn(generator(16), crops(1)), crops(1)))
    assert first <= bound
    assert both > first + 1


def best_drawn(network: Any, images: Tensor) -> Tensor:
    with torch.no_grad():
        rows = images.flatten(1) - network.layer.bias
        latents = torch.linalg.lstsq(network.layer.weight, rows.T).solution.T
        return network(latents)


@pytest.mark.long
def test_the_denoiser_is_what_heavily_pruned_gradients_need() -> None:
    net = convnet()
    update = sent(net, 1, (defend.Prune(0.99),))
    without, filtered, learned = (
        quality(net, update, "hcgla", steps=200, denoiser=plug, strength=strength)
        for plug, strength in (("median", 0.0), ("median", 1.0), (denoiser(), 1.0))
    )
    assert filtered > without + 5
    assert learned > without + 5


@pytest.mark.long
def test_lti_learns_from_defended_gradients() -> None:
    """A network that learned from whole gradients reads pruned ones worse than one that learned
    from pruned ones."""
    net, short = lenet(), {**LTI, "steps": 150, "batches": 400}
    update = sent(net, 1, (defend.Prune(0.97),))
    whole = quality(net, update, "lti", auxiliary=owned(), defend=lambda update: update, **short)
    named = quality(net, update, "lti", auxiliary=owned(), defend=defend.Prune(0.97), **short)
    recognized = quality(net, update, "lti", auxiliary=owned(), **short)
    assert min(named, recognized) > whole + 4
    assert abs(named - recognized) < 1.5


def test_restarts_are_chosen_by_the_attackers_own_loss() -> None:
    net = lenet()
    leak = match(
        net,
        sent(net),
        "gias",
        image_size=32,
        generator=generator(16),
        steps=5,
        weight_steps=1,
        restarts=3,
    )
    assert "the lowest of 3 restarts" in leak.notes[-1]
    assert "Public photos: crops of embedded photos." in leak.knowledge.granted()


@pytest.mark.long
def test_the_embedded_inverse_is_a_generator_and_a_beginning() -> None:
    batch = unsum.data.embedded_batch(2, image_size=128)
    model = unsum.models.load_model("default", classes=100).model
    update = unsum.capture(model, batch.images, batch.targets, defenses=(defend.Prune(0.99),))
    leak = match(model, update, "hcgla", denoiser="median", steps=1, strength=0.0)
    assert (
        "Pictures began where the model's inverse drew them from the update's features."
        in leak.notes
    )
    assert any("to train the inverse" in sentence for sentence in leak.knowledge.granted())
    assert leak.images is not None
    in_place = (
        -10
        * (leak.images[leak.labels.argsort()] - batch.images[batch.targets.argsort()])
        .square()
        .mean((1, 2, 3))
        .log10()
    )
    assert float(in_place.min()) > 13  # each beginning stands at its own label
    short = match(
        model,
        update,
        "gias",
        generator="inverse",
        labels=batch.targets,
        steps=1,
        weight_steps=1,
        restarts=1,
    )
    assert short.images is not None
    assert short.images.shape == batch.images.shape


def test_a_run_goes_on_from_its_checkpoints_and_from_no_other_generators(tmp_path: Path) -> None:
    net = lenet()
    update, file = sent(net), tmp_path / "run.safetensors"
    short = {"image_size": 32, "steps": 20, "weight_steps": 10, "restarts": 2, "checkpoint": file}
    first = match(net, update, "gias", generator=generator(16), **short)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "run-latent.safetensors",
        "run-weights.safetensors",
    ]
    heard = Heard()
    again = match(net, update, "gias", generator=generator(16), progress=heard, **short)
    assert not heard.steps  # both stages had been finished
    assert torch.equal(first.images, again.images)
    with pytest.raises(unsum.UnsumError, match="belongs to a run with another unknown"):
        match(net, update, "gias", generator=Principal(16), **short)


@pytest.mark.long
def test_samples_of_one_label_are_told_apart_by_assignment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Places 0 and 1 of a batch of one label are nobody's: without assignment both learn to draw
    the mean of the two pictures.

    Photos held back are scored with assignment either way; only what is learned from differs.
    """
    net, labels = lenet(), torch.tensor([1, 1])
    update = unsum.capture(net, crops(2), labels)

    def held_out_error() -> float:
        short = {**LTI, "steps": 120, "batches": 400}
        leak = match(net, update, "lti", labels=labels, image_size=32, auxiliary=owned(), **short)
        return float(leak.history["loss"].min())

    def unassigned_lessons(found: Tensor, images: Tensor, alike: Tensor) -> Tensor:
        return (
            (found - images).square().mean()
            if found.requires_grad
            else assigned(found, images, alike)
        )

    error, assigned = held_out_error(), lti.matched_error
    monkeypatch.setattr(lti, "matched_error", unassigned_lessons)
    plain = held_out_error()
    assert error < 0.9 * plain
