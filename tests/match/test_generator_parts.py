"""The parts behind generators and learners: hashing, traces of defenses, signs, many gradients,
what can be plugged in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from typer.testing import CliRunner

import unsum
from match.cases import convnet, crops, lenet
from match.plugs import Principal, generator, own_photos
from unsum import UnsumError, defend
from unsum.commands.main import app
from unsum.match import Problem, match
from unsum.match.lti import Sketch, matched_error
from unsum.match.many import Many
from unsum.match.objective import Signs
from unsum.match.problem import pose
from unsum.match.run import read_auxiliary
from unsum.match.traces import Traces


def posed(net: nn.Module, *defenses: Any, batch: int = 1) -> Problem:
    labels = torch.arange(batch) + 1
    update = unsum.capture(net, crops(batch), labels, train=net.training, defenses=defenses)
    targets = torch.eye(10)[labels]
    return pose(
        "ggl", net, update, batch_size=batch, shape=(3, 32, 32), targets=targets, separated=None
    )


def test_hashing_is_the_sparse_projection_it_says() -> None:
    sketch = Sketch(5000, 256, seed=3)
    matrix = torch.zeros(256, 5000)
    matrix[sketch.places, torch.arange(5000)] = sketch.signs
    assert torch.equal(matrix.abs().sum(0), torch.ones(5000))
    torch.manual_seed(0)
    vectors = torch.randn(4, 5000)
    hashed = sketch(vectors)
    assert hashed.shape == (4, 256)
    torch.testing.assert_close(hashed, vectors @ matrix.T, atol=1e-4, rtol=1e-4)
    # short enough already
    assert torch.equal(Sketch(100, 256, seed=3)(vectors[:, :100]), vectors[:, :100])


def test_hashing_keeps_inner_products_on_average() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(2, 2000)
    b = b + a
    found = torch.stack([Sketch(2000, 400, seed=seed)(torch.stack([a, b])) for seed in range(200)])
    products = (found[:, 0] * found[:, 1]).sum(1)
    exact = float(a @ b)
    # Var ≤ (‖a‖²‖b‖² + ⟨a, b⟩²) / d for one sketch; the mean of 200 lies within four of its
    # deviations.
    deviation = float(((a @ a) * (b @ b) + exact**2) / 400 / 200) ** 0.5
    assert abs(float(products.mean()) - exact) < 4 * deviation
    assert 0.5 < float(products.std()) / (deviation * 200**0.5) < 1.5


def test_alike_samples_are_assigned_and_others_are_not() -> None:
    images = torch.rand(3, 3, 3, 4, 4)
    swapped = images[:, [1, 0, 2]]
    first_two = torch.tensor([[1, 1, 0], [1, 1, 0], [0, 0, 1]]).bool()
    assert float(matched_error(swapped, images, first_two)) == 0
    nobody = torch.eye(3).bool()
    torch.testing.assert_close(
        matched_error(swapped, images, nobody), (swapped - images).square().mean()
    )
    rotated = images[:, [1, 2, 0]]
    assert float(matched_error(rotated, images, first_two)) > 0.01


def test_many_gradients_are_those_that_clients_send() -> None:
    net = convnet(batch_norm=True).train()
    problem = posed(net, batch=2)
    batches = torch.stack([crops(2), torch.rand(2, 3, 32, 32)])
    many = Many(problem)
    many.at_once = 1
    before = {name: buffer.clone() for name, buffer in net.named_buffers()}
    with many.ready():
        found = many(batches)
        many.at_once = 2
        together = many(batches)
    for place, batch in enumerate(batches):
        sent = unsum.capture(net, batch, torch.tensor([1, 2])).gradients
        for name, one, other in zip(problem.sent, found, together, strict=True):
            torch.testing.assert_close(one[place], sent[name], atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(one[place], other[place], atol=1e-5, rtol=1e-4)
    assert all(torch.equal(before[name], buffer) for name, buffer in net.named_buffers())


def lists(problem: Problem) -> list[Tensor]:
    return [g[None] for g in problem.sent.values()]


@pytest.mark.parametrize(
    ("defense", "kind"),
    [(defend.Clip(0.1), "none"), (defend.Prune(0.9), "pruned"), (defend.Sign(), "sign")],
    ids=["clip", "prune", "sign"],
)
@pytest.mark.parametrize("network", [lenet, convnet])
def test_the_true_gradient_defended_as_the_traces_say_is_the_one_received(
    network: Any, defense: Any, kind: str
) -> None:
    net = network()
    open_, defended = posed(net), posed(net, defense)
    traces = Traces.of(defended)
    assert traces.kind == kind
    for found, wanted in zip(
        traces.imitated(lists(open_)), traces.imitated(lists(defended)), strict=True
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)
    if kind != "sign":
        for found, wanted in zip(
            traces.clipped(traces.masked(lists(open_))), lists(defended), strict=True
        ):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


def test_columns_that_soteria_held_back_are_held_back_from_candidates() -> None:
    net = convnet()
    open_, defended = posed(net), posed(net, defend.Soteria(0.8))
    traces = Traces.of(defended)
    head = list(open_.sent).index("7.weight")
    held_back = ~defended.sent["7.weight"].any(0)
    assert 0.7 < float(held_back.float().mean()) < 0.9
    assert not bool(traces.masked(lists(open_))[head][0][:, held_back].any())
    assert all(mask is None for place, mask in enumerate(traces.masks) if place != head)


def test_the_derivative_of_signs() -> None:
    torch.manual_seed(0)
    sent = [torch.randn(3, 4).double(), torch.randn(5).double()]
    sent[0][0, 0] = 0
    found = [torch.randn(2, *tensor.shape).double().requires_grad_() for tensor in sent]
    values, pulls = Signs(sharpness=2.0).against(sent, 2)(found)
    total = torch.zeros(2).double()
    for tensor, signs in zip(found, sent, strict=True):
        size = tensor.detach().flatten(1).square().mean(1).sqrt().view(2, *[1] * signs.ndim) / 2
        total = total + ((tensor / size).tanh() * signs.sign()).flatten(1).sum(1) / 16
    torch.testing.assert_close(values, 1 - total.detach())
    for pull, wanted in zip(pulls, torch.autograd.grad((1 - total).sum(), found), strict=True):
        torch.testing.assert_close(pull, wanted)


class Wrong(nn.Module):
    latent_shape = (4,)

    def forward(self, latents: Tensor) -> Tensor:
        return latents[:, :, None, None].expand(-1, -1, 16, 16)


class Conditional(Principal):
    conditional = True

    def forward(self, latents: Tensor, targets: Tensor) -> Tensor:  # type: ignore[override]
        assert targets.argmax(1).tolist() == [1]
        return super().forward(latents)


REFUSALS: list[tuple[str, dict[str, Any], str]] = [
    ("gias", {},
    "'gias' needs a generator of pictures: give generator= a module or FILE.py:FACTORY"),
    ("ggl", {}, "'ggl' needs a generator of pictures"),
    ("gias", {"generator": "gan"},
    "A generator is a torch module, or FILE.py:FACTORY with its weights=FILE, not 'gan'"),
    ("gias", {"generator": "none.py:gan"}, "There is no file 'none.py'"),
    ("gias", {"generator": "inverse"},
    "There are no pictures for this model: the embedded inverse was trained for"),
    ("gias", {"generator": nn.Identity()}, "set its `latent_shape` to an int or a tuple, not None"),
    ("gias", {"generator": Wrong()},
    r"The generator draws pictures of \(1, 4, 16, 16\), and the model takes \(1, 3, 32, 32\)"),
    ("ggl", {"generator": Principal(4), "checkpoint": "a.safetensors"},
    "'ggl' keeps no checkpoint"),
    ("hcgla", {}, "'hcgla' needs a denoiser: .* or 'median' for a filter"),
    ("hcgla", {"denoiser": "median", "strength": 2.0}, "strength is at most 1"),
    ("hcgla", {"denoiser": nn.Linear(7, 7)}, "The denoiser fails on a batch of 1: RuntimeError"),
    ("rog", {"denoiser": "mean"}, "A denoiser is a torch module, or FILE.py:FACTORY"),
    ("lti", {},
    r"'lti' learns from photos of the attacker's own; give auxiliary=\(images, labels\)"),
    ("lti", {"auxiliary": (torch.rand(9, 3, 8, 8), torch.zeros(9).long())},
    r"at least 2 auxiliary photos of \(3, 32, 32\), not"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "wishes", "sentence"), REFUSALS)
def test_refused(method: str, wishes: dict[str, Any], sentence: str) -> None:
    net = lenet()
    update = unsum.capture(net, crops(1), torch.tensor([1]))
    with pytest.raises(UnsumError, match=sentence):
        match(net, update, method, image_size=32, **wishes)


def test_ggl_without_nevergrad_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "nevergrad", None)
    net = lenet()
    update = unsum.capture(net, crops(1), torch.tensor([1]))
    with pytest.raises(UnsumError, match=r"pip install 'unsum\[matching\]'"):
        match(net, update, "ggl", image_size=32, generator=generator(16), steps=1)


def test_a_conditional_generator_is_told_the_labels_found() -> None:
    net = lenet()
    update = unsum.capture(net, crops(1), torch.tensor([1]))
    found = match(
        net,
        update,
        "gias",
        generator=Conditional(4),
        steps=1,
        weight_steps=1,
        restarts=1,
        image_size=32,
    )
    assert found.images is not None


def test_a_generator_out_of_a_file_with_its_weights_on_the_command_line(tmp_path: Path) -> None:
    weights, file = tmp_path / "g.safetensors", tmp_path / "client.safetensors"
    save_file(generator(16).state_dict(), weights)
    (tmp_path / "net.py").write_text(
        "from match.cases import lenet\nfrom match.plugs import Principal\n"
        "def build():\n    return lenet()\ndef gan():\n    return Principal(16)\n"
    )
    unsum.capture(lenet(), crops(1), torch.tensor([3])).save(file)
    wish = (
        f"gias:generator={tmp_path / 'net.py'}:gan,weights={weights},"
        "steps=2,weight_steps=1,image_size=32"
    )
    arguments = [
        "attack",
        "--model",
        f"{tmp_path / 'net.py'}:build",
        "--update",
        str(file),
        "--json",
    ]
    result = CliRunner().invoke(
        app, [*arguments, "--attack", wish, "--out", str(tmp_path / "leak")]
    )
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "leak" / "leak.json").read_text("utf-8"))["method"] == "gias"
    save_file(generator(32).state_dict(), weights)
    result = CliRunner().invoke(
        app, [*arguments, "--attack", wish, "--out", str(tmp_path / "other")]
    )
    assert isinstance(result.exception, UnsumError)
    assert "do not fit the" in str(result.exception)


def test_photos_of_ones_own_out_of_a_file(tmp_path: Path) -> None:
    photos, file = tmp_path / "own.npz", tmp_path / "client.safetensors"
    whole = (own_photos()[:40] * 255).round().byte().numpy()
    np.savez(photos, images=whole, labels=np.zeros(40, dtype=np.int64))
    images, labels = read_auxiliary(photos)
    torch.testing.assert_close(images, own_photos()[:40], atol=0.003, rtol=0)
    assert labels.shape == (40,)
    np.savez(tmp_path / "else.npz", pictures=whole)
    with pytest.raises(UnsumError, match="must hold arrays called images and labels, not pictures"):
        read_auxiliary(tmp_path / "else.npz")
    net = lenet()
    update = unsum.capture(net, crops(1), torch.tensor([3]))
    update.save(file)
    leak = unsum.attack(
        net, update, f"lti:auxiliary={photos},steps=2,batches=4,hidden=8,dimension=64,image_size=32"
    )
    assert leak.images is not None
    assert "40 labeled samples of its own, of 1 classes." in leak.knowledge.granted()
    direct = unsum.attack(
        net,
        update,
        "lti:steps=2,batches=4,hidden=8,dimension=64,image_size=32",
        auxiliary=(images, labels),
    )
    torch.testing.assert_close(direct.images, leak.images)
