"""Soft-label recovery on heads whose probabilities, label and features are known in closed form."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import unsum
from support.head_cases import NOTHING, Case, backbone_features, case, one_hot
from unsum import UnsumError
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.separate.soft import recovery, soft
from unsum.separate.soft.ray import find_ray
from unsum.separate.soft.search import CLEAN, NOISY, SUCCESS, Spread, bottom, descend

FEATURES = backbone_features(18, train=False)


def label(kind: str, classes: int) -> Tensor:
    return {
        "hard": one_hot([2], classes),
        "smoothing": one_hot([2], classes) * 0.7 + 0.3 / classes,
        "mixup": one_hot([2], classes) * 0.35 + one_hot([5], classes) * 0.65,
    }[kind]


def one_sample(
    kind: str, classes: int = 20, *, bias: bool = True, sample: int = 0, seed: int = 1
) -> Case:
    torch.manual_seed(seed)
    return case(
        FEATURES[sample : sample + 1], nn.Linear(512, classes, bias=bias), label(kind, classes)
    )


def search(head: Head, **options: Any) -> Leak:
    return soft(head, NOTHING, seed=0, **options)


def assert_recovered(leak: Leak, truth: Case, tolerance: float = 1e-4) -> None:
    assert leak.targets.shape == truth.targets.shape
    assert float((leak.targets - truth.targets).abs().max()) < tolerance
    assert float((leak.features - truth.features).norm() / truth.features.norm()) < tolerance
    logits = truth.features @ truth.head.W.T + (0 if truth.head.b is None else truth.head.b)
    torch.testing.assert_close(leak.logits.float(), logits, rtol=1e-3, atol=10 * tolerance)
    assert not leak.exact
    assert math.isnan(leak.predicted_error)  # no certificate, and no claim of failure either


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize(
    ("kind", "said"),
    [("hard", "Hard label, class 2"), ("smoothing", "ε = 0.3000"), ("mixup", "Mixed")],
)
def test_every_kind_of_label_comes_back_and_is_named(kind: str, said: str, bias: bool) -> None:
    truth = one_sample(kind, bias=bias)
    leak = search(truth.head)
    assert_recovered(leak, truth)
    assert leak.residual < 1e-5
    assert said in leak.notes[0]
    assert "L-BFGS from λ = -1" in leak.notes[0]


@pytest.mark.parametrize("kind", ["smoothing", "mixup"])
def test_a_thousand_classes(kind: str) -> None:
    truth = one_sample(kind, 1000)
    assert_recovered(search(truth.head, kind=kind), truth)


def test_closed_form() -> None:
    """p, y and f chosen by hand; λ* = κ/(p_r − y_r) with r the row of the label."""
    p, y, f = (
        torch.tensor(row, dtype=torch.float64)
        for row in ([0.1, 0.2, 0.4, 0.3], [0.1, 0.1, 0.7, 0.1], [1.0, -2.0, 0.5])
    )
    W = torch.outer(p.log(), f) / (f @ f)  # softmax(W f) = p
    head = Head("fc", W, None, torch.outer(p - y, f), None)
    leak = search(head, kind="smoothing", coefficient=2.0)
    torch.testing.assert_close(leak.targets[0], y, rtol=0, atol=1e-9)
    torch.testing.assert_close(leak.logits[0], p.log(), rtol=0, atol=1e-8)
    torch.testing.assert_close(leak.features[0], f, rtol=0, atol=1e-8)
    assert f"λ = {2 / (0.4 - 0.7):.6g}" in leak.notes[0]
    ray = find_ray(head, None, 2.0)
    torch.testing.assert_close(ray.v, head.grad_W[2] / 2)
    lengths = torch.tensor([0.3, -5.0, 40.0]).double()
    published = torch.softmax(lengths[:, None] * ray.v @ W.T, 1) - head.grad_W[:, 0] / (
        lengths[:, None] * ray.v[0]
    )
    torch.testing.assert_close(ray.labels(lengths), published)
    # normalization cannot choose λ
    torch.testing.assert_close(published.sum(1), torch.ones(3).double())


@pytest.mark.parametrize("kind", ["smoothing", "mixup"])
@pytest.mark.parametrize("length", [-7.0, -0.8, 1.3, 30.0])
def test_the_loss_and_its_slope(kind: str, length: float) -> None:
    """1000 times the population variance of the smallest entries; the slope against autograd."""
    loss = Spread(find_ray(one_sample("smoothing").head, None, 1.0), kind)
    at = torch.tensor([length], dtype=torch.float64, requires_grad=True)
    entries = loss.ray.labels(at)[0].sort().values[: 19 if kind == "smoothing" else 18]
    expected = 1000 * (entries - entries.mean()).square().mean()
    (slope,) = torch.autograd.grad(expected, at)
    assert loss.with_slope(length) == pytest.approx(
        (float(expected.detach()), float(slope)), rel=1e-9
    )
    assert loss.at(length) == pytest.approx(float(expected.detach()))


def test_the_saturated_softmax_is_no_root() -> None:
    """A peaked head: far out the loss is exactly zero, lower than at the truth; the truth is found
    all the same."""
    torch.manual_seed(0)
    linear = nn.Linear(512, 20, bias=False)
    linear.weight.data *= 8
    truth = case(FEATURES[:1], linear, label("smoothing", 20))
    loss = Spread(find_ray(truth.head, None, 1.0), "smoothing")
    leak = search(truth.head)
    assert_recovered(leak, truth)
    found = float((leak.features[0].double() @ loss.ray.v) / loss.ray.v.square().sum())
    lengths = torch.logspace(-1, 12, 400, dtype=torch.float64)
    lengths = torch.cat([lengths, -lengths])
    lowest = float(lengths[loss(lengths).argmin()])
    assert loss.at(lowest) < loss.at(found)  # the naive global minimum
    assert abs(lowest) > 1e3 * abs(found)
    assert loss.at(math.copysign(1e7, lowest)) < SUCCESS
    assert bottom(loss, math.copysign(90.0, lowest)) is None  # the way down leads outward


def test_of_two_roots_the_nearer_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    truth = one_sample("smoothing")
    roots = {1.0: 9.0, -1.0: find_ray(truth.head, None, 1.0).bias_length}
    monkeypatch.setattr(recovery, "descend", lambda _loss, side: roots[side])
    monkeypatch.setattr(recovery, "bottom", lambda _loss, start: start)
    assert_recovered(search(truth.head), truth)
    roots[1.0] = 1.25
    assert "λ = 1.25," in search(truth.head).notes[0]


def stubborn() -> Case:
    """Unequal parts of two classes among ten: with κ = 1 the descent overshoots the root on both
    sides."""
    torch.manual_seed(1)
    targets = one_hot([2], 10) * 0.91 + one_hot([5], 10) * 0.09
    return case(FEATURES[12:13], nn.Linear(512, 10), targets)


def test_particles_find_what_descent_does_not() -> None:
    truth = stubborn()
    loss = Spread(find_ray(truth.head, None, 1.0), "mixup")
    assert descend(loss, 1.0) is None
    assert descend(loss, -1.0) is None
    leak = search(truth.head, kind="mixup", coefficient=1.0)
    assert_recovered(leak, truth)
    assert "particle swarm" in leak.notes[0]
    again = search(truth.head, kind="mixup", coefficient=1.0, search="swarm")
    assert torch.equal(leak.targets, again.targets)  # the seed fixes the particles
    alone = search(truth.head, kind="mixup", coefficient=1.0, search="lbfgs")
    assert alone.notes[0].startswith("Not recovered")


def test_intervals_lead_outward() -> None:
    assert list(CLEAN.intervals())[:4] == [(0.7, 6.0), (-6.3, -1.0), (5.7, 10.0), (-10.3, -6.0)]
    assert list(CLEAN.intervals())[-1] == (-70.3, -50.0)
    assert list(NOISY.intervals())[-1] == (-10.3, -5.0)


def test_what_no_kind_explains_is_not_passed_off_as_found() -> None:
    torch.manual_seed(3)
    truth = case(FEATURES[:1], nn.Linear(512, 8), torch.rand(1, 8).double().softmax(1))
    leak = search(truth.head)
    assert leak.predicted_error == math.inf
    assert leak.notes[0].startswith("Not recovered")
    assert leak.residual > 1e-3


@pytest.mark.parametrize("kind", ["smoothing", "mixup"])
def test_noise_is_seen_and_survived(kind: str) -> None:
    truth = one_sample(kind)
    generator = torch.Generator().manual_seed(0)
    noise = 1e-4 * torch.randn(truth.head.grad_W.shape, generator=generator)
    head = dataclasses.replace(truth.head, grad_W=truth.head.grad_W + noise)
    assert find_ray(head, None, 1.0).noisy
    assert not find_ray(truth.head, None, 1.0).noisy
    leak = search(head)
    assert_recovered(leak, truth, 2e-3)
    assert float((leak.targets - truth.targets).abs().max()) > 1e-7  # noise leaves its mark
    assert ("Smoothed" if kind == "smoothing" else "Mixed") in leak.notes[0]


@pytest.mark.parametrize("factor", [0.01, 100.0])
def test_units_of_features_do_not_matter(factor: float) -> None:
    """W/c with c f is the same model: label and logits stay, features come back c times as
    large."""
    truth = one_sample("mixup")
    head = dataclasses.replace(
        truth.head, W=truth.head.W / factor, grad_W=truth.head.grad_W * factor
    )
    leak = search(head)
    assert_recovered(dataclasses.replace(leak, features=leak.features / factor), truth)


def test_order_of_classes_a_common_bias_and_the_coefficient_do_not_matter() -> None:
    truth = one_sample("smoothing")
    order = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    assert truth.head.b is not None
    head = Head("fc", truth.head.W[order], truth.head.b[order] + 3, truth.head.grad_W[order], None)
    leak = search(head, coefficient=2.0)
    assert float((leak.targets - truth.targets[:, order]).abs().max()) < 1e-4


def test_the_published_search_never_looks_at_the_bias_gradient() -> None:
    truth = one_sample("mixup")
    assert truth.head.grad_b is not None
    forged = dataclasses.replace(truth.head, grad_b=truth.head.grad_b.flip(0))
    assert_recovered(search(forged), truth)
    assert torch.equal(search(forged).targets, search(truth.head).targets)


def test_the_bias_gradient_tells_any_label_at_once_where_it_is_asked_for() -> None:
    torch.manual_seed(3)
    truth = case(FEATURES[:1], nn.Linear(512, 8), torch.rand(1, 8).double().softmax(1))
    leak = search(truth.head, bias_gradient=True)
    assert float((leak.targets - truth.targets).abs().max()) < 1e-6
    assert float((leak.features - truth.features).norm() / truth.features.norm()) < 1e-5
    assert "neither smoothed nor mixed" in leak.notes[0]
    smoothed = one_sample("smoothing")
    leak = search(smoothed.head, bias_gradient=True)
    assert_recovered(leak, smoothed, 1e-5)
    assert "read off the bias gradient" in leak.notes[0]


def test_through_the_public_door() -> None:
    torch.manual_seed(0)
    model, features = nn.Linear(512, 30), FEATURES[:1]
    targets = unsum.smooth_labels(one_hot([7], 30).float(), 0.2, 30)
    leak = unsum.separate(model, unsum.capture(model, features, targets), "soft")
    assert leak.method == "soft"
    assert leak.labels.tolist() == [7]
    torch.testing.assert_close(leak.targets.float(), targets, rtol=0, atol=1e-5)


def test_a_batch_is_refused_with_the_way_out() -> None:
    torch.manual_seed(0)
    two = case(FEATURES[:2], nn.Linear(512, 20), one_hot([1, 2], 20))
    with pytest.raises(
        UnsumError, match="more than one sample and 'soft' recovers only one; use 'exact'"
    ):
        soft(two.head, NOTHING, seed=0)
    with pytest.raises(UnsumError, match="batch of 2 samples was declared"):
        soft(one_sample("hard").head, Knowledge(batch_size=2), seed=0)


def test_bad_input_is_refused_in_one_sentence() -> None:
    head = one_sample("hard").head
    with pytest.raises(UnsumError, match="gradient is zero"):
        search(dataclasses.replace(head, grad_W=torch.zeros_like(head.grad_W)))
    with pytest.raises(UnsumError, match="NaN or Inf"):
        search(dataclasses.replace(head, grad_W=head.grad_W * math.nan))
    with pytest.raises(UnsumError, match="no search 'swarms'; did you mean 'swarm'"):
        search(head, search="swarms")
    with pytest.raises(UnsumError, match="no kind of soft label 'mixed'; did you mean 'mixup'"):
        search(head, kind="mixed")
    binary = case(FEATURES[:1], nn.Linear(512, 2), one_hot([1], 2))
    with pytest.raises(UnsumError, match="at least 3 classes, not 2"):
        search(binary.head)
    three = case(FEATURES[:1], nn.Linear(512, 3), one_hot([1], 3))
    with pytest.raises(UnsumError, match="at least 4 classes, not 3"):
        search(three.head, kind="mixup")
    model = nn.Linear(4, 3)
    with pytest.raises(UnsumError, match="lacks 'weight'"):
        unsum.separate(model, unsum.Update({"bias": torch.ones(3)}), "soft")
