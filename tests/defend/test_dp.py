"""DP-SGD through Opacus: what is clipped, how much noise there is, what it costs."""

from __future__ import annotations

import math
import sys
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import nn

from support.material import pictures, small_net
from unsum import DPSGD, Clip, SmoothLabels, UnsumError, capture, privacy_spent, smooth_labels
from unsum.defend import replace_batch_norm

# Looked for and not imported, which takes seconds: every process collects this file, and only one
# runs it.
pytestmark = pytest.mark.skipif(find_spec("opacus") is None, reason="Opacus is not installed")

LABELS = torch.tensor([3, 3, 7, 11])


def test_without_noise_it_is_the_mean_of_clipped_gradients() -> None:
    """Each sample's gradient by a loop over batches of one, clipped by hand; some are clipped and
    some are not."""
    net, images = small_net(batch_norm=False), pictures(4)
    singles = [capture(net, images[i : i + 1], LABELS[i : i + 1]).gradients for i in range(4)]
    norms = [float(torch.stack([g.norm() for g in one.values()]).norm()) for one in singles]
    bound = sorted(norms)[1] * 1.001
    sent = capture(net, images, LABELS, defenses=DPSGD(0, clip=bound)).gradients
    for name, gradient in sent.items():
        expected = (
            sum(one[name] * min(1, bound / norm) for one, norm in zip(singles, norms, strict=True))
            / 4
        )
        torch.testing.assert_close(gradient, expected, atol=1e-6, rtol=1e-4)


def test_a_generous_bound_and_no_noise_change_nothing() -> None:
    net = small_net(batch_norm=False)
    plain = capture(net, pictures(4), smooth_labels(LABELS, 0.1, 40))
    private = capture(net, pictures(4), LABELS, defenses=SmoothLabels(0.1) | DPSGD(0, clip=1e3))
    for name, gradient in plain.gradients.items():
        torch.testing.assert_close(private.gradients[name], gradient, atol=1e-6, rtol=1e-4)


def test_the_noise_is_sigma_times_clip_over_batch() -> None:
    torch.manual_seed(0)
    net, batch = small_net(batch_norm=False, classes=400), (pictures(4), LABELS)
    difference = torch.cat(
        [
            (noisy - clean).flatten()
            for noisy, clean in zip(
                capture(net, *batch, defenses=DPSGD(1.5, clip=0.2)).gradients.values(),
                capture(net, *batch, defenses=DPSGD(0, clip=0.2)).gradients.values(),
                strict=True,
            )
        ]
    )
    assert len(difference) > 50_000
    assert float(difference.std()) == pytest.approx(1.5 * 0.2 / 4, rel=0.015)
    assert float(difference.mean()) == pytest.approx(0, abs=0.002)


@pytest.mark.filterwarnings("ignore:Full backward hook:UserWarning")
def test_it_is_what_opacus_makes_of_its_own_hooks() -> None:
    """The same seed draws the same noise, so the whole private gradient must agree, not only its
    distribution."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    net = small_net(batch_norm=False)
    torch.manual_seed(7)
    sent = capture(net, pictures(4), LABELS, defenses=DPSGD(0.7, clip=0.3)).gradients
    reference = GradSampleModule(small_net(batch_norm=False).train())
    optimizer = DPOptimizer(
        torch.optim.SGD(reference.parameters()),
        noise_multiplier=0.7,
        max_grad_norm=0.3,
        expected_batch_size=4,
    )
    nn.functional.cross_entropy(reference(pictures(4)), LABELS).backward()
    torch.manual_seed(7)
    optimizer.pre_step()
    for name, parameter in reference._module.named_parameters():
        torch.testing.assert_close(sent[name], parameter.grad, atol=1e-6, rtol=1e-4)


def test_batch_norm_is_refused_with_a_way_out(net: nn.Sequential) -> None:
    with pytest.raises(
        UnsumError, match=r"'1', a BatchNorm2d .*replace_batch_norm\(model\), or use eval mode"
    ):
        capture(net, pictures(4), LABELS, defenses=DPSGD(1))
    fixed = replace_batch_norm(net)
    assert isinstance(fixed[1], nn.GroupNorm)  # type: ignore[index]
    assert isinstance(net[1], nn.BatchNorm2d)
    sent = capture(fixed, pictures(4), LABELS, defenses=DPSGD(0, clip=1e3))
    clean = capture(fixed, pictures(4), LABELS)
    assert sent.gradients.keys() == clean.gradients.keys()
    torch.testing.assert_close(
        sent.gradients["1.weight"], clean.gradients["1.weight"], atol=1e-6, rtol=1e-4
    )


def test_eval_mode_batch_norm_is_an_affine_map_per_sample(net: nn.Sequential) -> None:
    clean = capture(net, pictures(4), LABELS, train=False)
    sent = capture(net, pictures(4), LABELS, train=False, defenses=DPSGD(0, clip=1e3) | Clip(100))
    for name, gradient in clean.gradients.items():
        torch.testing.assert_close(sent.gradients[name], gradient, atol=1e-6, rtol=1e-4)


def test_frozen_layers_are_neither_clipped_nor_sent() -> None:
    net = small_net(batch_norm=False)
    net[0].requires_grad_(False)
    assert list(capture(net, pictures(4), LABELS, defenses=DPSGD(1)).gradients) == [
        "5.weight",
        "5.bias",
    ]


# Opacus' own, at a sampling rate of 1
@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning")
def test_epsilon_of_the_plain_gaussian_mechanism() -> None:
    """Without subsampling Rényi accounting has a closed form, and the exact ε solves the Gaussian's
    own δ(ε)."""
    sigma, steps, delta = 2.0, 10, 1e-5

    def converted(order: float) -> float:
        renyi = steps * order / (2 * sigma**2)
        return renyi + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)

    best = min(converted(1 + k / 1000) for k in range(50, 60_000))
    renyi = privacy_spent(sigma, steps=steps, sampling_rate=1, delta=delta, accountant="rdp")
    assert renyi == pytest.approx(best, rel=2e-3)

    mu = math.sqrt(steps) / sigma

    def true_delta(epsilon: float) -> float:
        def phi(x: float) -> float:
            return 0.5 * math.erfc(-x / math.sqrt(2))

        return phi(mu / 2 - epsilon / mu) - math.exp(epsilon) * phi(-mu / 2 - epsilon / mu)

    exact = privacy_spent(sigma, steps=steps, sampling_rate=1, delta=delta)
    assert true_delta(exact) == pytest.approx(delta, rel=0.1)
    assert exact < renyi


def test_epsilon_falls_with_noise_and_sampling() -> None:
    often = privacy_spent(1, steps=100, sampling_rate=0.1, delta=1e-5, accountant="rdp")
    seldom = privacy_spent(1, steps=100, sampling_rate=0.01, delta=1e-5, accountant="rdp")
    quiet = privacy_spent(2, steps=100, sampling_rate=0.1, delta=1e-5, accountant="rdp")
    assert seldom < often
    assert quiet < often


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"noise": 0}, "positive multiplier"),
        ({"steps": 0}, "at least one step"),
        ({"sampling_rate": 1.5}, "sampling rate above 0 and up to 1"),
        ({"delta": 0}, "delta between 0 and 1"),
        ({"accountant": "rpd"}, "no privacy accountant 'rpd'; did you mean 'rdp'"),
    ],
)
def test_bad_accounts_are_refused(change: dict[str, Any], sentence: str) -> None:
    arguments: dict[str, Any] = {"noise": 1.0, "steps": 1, "sampling_rate": 0.5, "delta": 1e-5}
    with pytest.raises(UnsumError, match=sentence):
        privacy_spent(**arguments | change)


def test_bad_strengths_are_refused() -> None:
    with pytest.raises(UnsumError, match="noise multiplier"):
        DPSGD(float("nan"))
    with pytest.raises(UnsumError, match="positive norm"):
        DPSGD(1, clip=0)


def test_a_missing_opacus_is_one_sentence(
    net: nn.Sequential, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opacus", None)  # what `import` then raises is an ImportError
    with pytest.raises(
        UnsumError, match=r"needs Opacus; install it with: pip install 'unsum\[dp\]'"
    ):
        capture(net, pictures(4), LABELS, defenses=DPSGD(1))
