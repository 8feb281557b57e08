"""Properties of the whole pipeline, over random cases: what must not matter does not, and what
cannot be known is not claimed."""

from __future__ import annotations

import contextlib
import os

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import unsum
from unsum.score import score_samples

EXAMPLES = int(os.environ.get("UNSUM_EXAMPLES", "12"))  # scripts/reliability.py asks for more
QUICK = settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
SEEDS = st.integers(0, 10_000)


def case(
    seed: int, B: int = 4, C: int = 12, H: int = 24, dtype: torch.dtype = torch.float64
) -> tuple[nn.Linear, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    features = (
        (torch.randn(H, generator=generator) + torch.randn(B, H, generator=generator))
        .relu()
        .to(dtype)
    )
    labels = torch.randint(C, (B,), generator=generator)
    model = nn.Linear(H, C).to(dtype)
    with torch.no_grad():
        model.weight.copy_(torch.randn(C, H, generator=generator) / H**0.5)
        model.bias.copy_(0.1 * torch.randn(C, generator=generator))
    return model, features, labels


def attacked(model: nn.Linear, features: Tensor, labels: Tensor, **known: object) -> unsum.Leak:
    return unsum.attack(model, unsum.capture(model, features, labels), **known)  # type: ignore[arg-type]


def canonical(leak: unsum.Leak) -> tuple[Tensor, list[int]]:
    """Features and labels in an order of their own, so that two answers can be compared."""
    order = sorted(
        range(leak.batch_size),
        key=lambda i: (int(leak.labels[i]), float(leak.features[i].double().norm())),
    )
    return leak.features.double()[order], [int(leak.labels[i]) for i in order]


def assert_honest(leak: unsum.Leak, features: Tensor, labels: Tensor) -> None:
    """Exact only if it is: every sample found, to within ten times what is certified, with its
    label."""
    assert torch.isfinite(leak.features).all()
    assert leak.targets.shape[1] == leak.logits.shape[1]
    if not leak.exact:
        return
    if leak.batch_size == len(features):
        rows = score_samples(leak, features=features, targets=labels)
        assert max(row.feature_error for row in rows) < 1e-2
        assert all(row.label_correct == 1.0 for row in rows)
    else:  # equal samples send what one sends: each found one must be true, and each true one found
        distances = (
            torch.cdist(features.double(), leak.features.double())
            / features.double().norm(dim=1)[:, None]
        )
        assert float(distances.min(0).values.max()) < 1e-2
        assert float(distances.min(1).values.max()) < 1e-2


def test_most_cases_are_exact() -> None:
    """Otherwise what follows would say nothing."""
    assert sum(attacked(*case(seed)).exact for seed in range(6)) >= 4


class TestInvariance:
    @QUICK
    @given(SEEDS)
    def test_the_order_of_samples(self, seed: int) -> None:
        model, features, labels = case(seed)
        order = torch.randperm(len(features), generator=torch.Generator().manual_seed(seed))
        first, second = (
            attacked(model, features, labels),
            attacked(model, features[order], labels[order]),
        )
        assert first.exact == second.exact
        if first.exact:
            torch.testing.assert_close(
                canonical(first)[0], canonical(second)[0], rtol=1e-6, atol=1e-9
            )
            assert canonical(first)[1] == canonical(second)[1] == sorted(labels.tolist())

    @QUICK
    @given(SEEDS)
    def test_the_names_of_classes(self, seed: int) -> None:
        model, features, labels = case(seed)
        order = torch.randperm(model.out_features, generator=torch.Generator().manual_seed(seed))
        renamed = nn.Linear(model.in_features, model.out_features).double()
        with torch.no_grad():
            renamed.weight.copy_(model.weight[order])
            renamed.bias.copy_(model.bias[order])
        place = torch.argsort(order)  # class c is now called place[c]
        first, second = (
            attacked(model, features, labels),
            attacked(renamed, features, place[labels]),
        )
        assert first.exact == second.exact
        if first.exact:
            assert sorted(place[first.labels].tolist()) == sorted(second.labels.tolist())
            distances = torch.cdist(first.features.double(), second.features.double())
            assert float(distances.min(1).values.max()) < 1e-6 * float(features.norm(dim=1).max())

    @QUICK
    @given(SEEDS)
    def test_a_rotation_of_features_together_with_the_weights(self, seed: int) -> None:
        model, features, labels = case(seed)
        generator = torch.Generator().manual_seed(seed)
        Q = torch.linalg.qr(
            torch.randn(model.in_features, model.in_features, generator=generator).double()
        )[0]
        turned = nn.Linear(model.in_features, model.out_features).double()
        with torch.no_grad():
            turned.weight.copy_(model.weight @ Q)
            turned.bias.copy_(model.bias)
        first, second = (
            unsum.separate(model, unsum.capture(model, features, labels)),
            unsum.separate(turned, unsum.capture(turned, features @ Q, labels)),
        )
        assert first.exact == second.exact
        if first.exact:
            distances = torch.cdist(first.features.double() @ Q, second.features.double())
            assert float(distances.min(1).values.max()) < 1e-6 * float(features.norm(dim=1).max())

    @QUICK
    @given(SEEDS, st.sampled_from([1e-6, 1e-3, 0.1, 10.0, 1e4]))
    def test_the_scale_of_the_gradient(self, seed: int, factor: float) -> None:
        model, features, labels = case(seed)
        update = unsum.capture(model, features, labels)
        plain = unsum.separate(model, update)
        scaled = unsum.separate(model, update.map(lambda _name, tensor: tensor * factor))
        if plain.exact and scaled.exact:
            torch.testing.assert_close(
                canonical(plain)[0], canonical(scaled)[0], rtol=1e-5, atol=1e-8
            )
            assert scaled.scale == pytest.approx(factor, rel=1e-5)
        assert_honest(scaled, features, labels)


@pytest.mark.parametrize("noise", [0.0, 1e-3])
@pytest.mark.parametrize("seed", [0, 1])
def test_two_runs_are_the_same_bit_for_bit(seed: int, noise: float) -> None:
    model, features, labels = case(seed, dtype=torch.float32)
    update = unsum.capture(model, features, labels)
    if noise:
        torch.manual_seed(seed)
        update = update.map(
            lambda _name, tensor: tensor + noise * tensor.std() * torch.randn_like(tensor)
        )
    first, second = (unsum.attack(model, update, seed=seed) for _ in range(2))
    for name in ("features", "logits", "targets"):
        assert torch.equal(getattr(first, name), getattr(second, name))
    assert (first.exact, first.predicted_error, first.notes) == (
        second.exact,
        second.predicted_error,
        second.notes,
    )


class TestHardPlaces:
    """Never a crash, never a false certificate."""

    @QUICK
    @given(SEEDS, st.sampled_from([torch.float16, torch.bfloat16]), st.booleans())
    def test_sixteen_bits(self, seed: int, dtype: torch.dtype, both: bool) -> None:
        model, features, labels = case(seed, dtype=torch.float32)
        update = unsum.capture(model, features, labels).map(lambda _name, tensor: tensor.to(dtype))
        if both:
            model = model.to(dtype)
            features = features.to(dtype)
            update = unsum.capture(model, features, labels)
        with contextlib.suppress(unsum.UnsumError):
            leak = unsum.separate(model, update)
            assert leak.features.dtype in (torch.float32, torch.float64)
            assert_honest(leak, features.float(), labels)

    @QUICK
    @given(SEEDS, st.integers(1, 12))
    def test_ill_conditioned_heads(self, seed: int, decades: int) -> None:
        model, features, labels = case(seed)
        U, S, V = torch.linalg.svd(model.weight.detach(), full_matrices=False)
        falling = 10 ** torch.linspace(0, -decades, len(S)).double()
        with torch.no_grad():
            model.weight.copy_((U * S * falling) @ V)
        assert_honest(
            unsum.separate(model, unsum.capture(model, features, labels)), features, labels
        )

    @QUICK
    @given(
        SEEDS,
        st.sampled_from(
            [
                (1, 2, 8),
                (1, 12, 24),
                (2, 2, 8),
                (3, 2, 8),
                (6, 12, 3),
                (4, 12, 1),
                (1, 2, 1),
                (14, 12, 24),
            ]
        ),
    )
    def test_strange_sizes(self, seed: int, sizes: tuple[int, int, int]) -> None:
        """One sample, two classes, fewer inputs than samples, one input, more samples than
        classes."""
        model, features, labels = case(seed, *sizes)
        assert_honest(
            unsum.separate(model, unsum.capture(model, features, labels)), features, labels
        )

    @pytest.mark.long
    @QUICK
    @given(SEEDS, st.sampled_from([50.0, 1e3, 1e6]))
    def test_saturated_softmax(self, seed: int, factor: float) -> None:
        model, features, labels = case(seed)
        with torch.no_grad():
            model.weight.mul_(factor)
        leak = unsum.separate(model, unsum.capture(model, features, labels))
        with torch.no_grad():
            G = model(features).softmax(1) - nn.functional.one_hot(labels, model.out_features)
        # a sample predicted for certain sends nothing, and cannot be found
        traced = G.norm(dim=1) > 1e-9
        if bool(traced.any()):
            assert_honest(leak, features[traced], labels[traced])
        else:
            assert not leak.exact

    @pytest.mark.long
    @QUICK
    @given(SEEDS, st.sampled_from(["dead", "zero", "twice", "twice, other label", "all alike"]))
    def test_strange_batches(self, seed: int, kind: str) -> None:
        model, features, labels = case(seed)
        # ReLUs that are silent for the whole batch, and one sample that has nothing at all
        if kind == "dead":
            features[:, ::2] = 0
            features[1] = 0
        if kind == "zero":
            features[:] = 0
        if kind.startswith("twice"):
            features[1] = features[0]
            labels[1] = labels[0] if kind == "twice" else (labels[0] + 1) % model.out_features
        if kind == "all alike":
            features[:], labels[:] = features[:1].clone(), labels[:1].clone()
        update = unsum.capture(model, features, labels)
        leak = unsum.separate(model, update)
        if kind in ("zero", "dead"):  # a sample without features leaves its label in the bias alone
            kept = features.norm(dim=1) > 0
            if bool(kept.any()) and leak.exact:
                distances = (
                    torch.cdist(leak.features.double(), features)
                    / features[kept].norm(dim=1).mean()
                )
                assert float(distances.min(1).values.max()) < 1e-2
            assert not (leak.exact and kind == "zero")
        else:
            assert_honest(
                leak, features, labels
            ) if kind != "twice, other label" else assert_features_alone(leak, features)

    def test_black_pictures_through_a_network(self) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10)
        )
        for images in (
            torch.zeros(4, 3, 8, 8),
            torch.ones(4, 3, 8, 8),
            torch.rand(1, 3, 8, 8).expand(4, -1, -1, -1),
        ):
            leak = unsum.attack(model, unsum.capture(model, images, torch.arange(4)))
            assert not leak.exact or leak.batch_size <= 4
        unlike = unsum.attack(model, unsum.capture(model, torch.rand(4, 3, 8, 8), torch.arange(4)))
        assert unlike.exact
        assert sorted(unlike.labels.tolist()) == [0, 1, 2, 3]


def assert_features_alone(leak: unsum.Leak, features: Tensor) -> None:
    """Equal features with two labels send what one sample with a mixed label sends."""
    if leak.exact:
        distances = (
            torch.cdist(features.double(), leak.features.double())
            / features.double().norm(dim=1)[:, None]
        )
        assert float(distances.min(0).values.max()) < 1e-2


class TestAnOverconfidentAnswer:
    """Noise, and about as many samples as classes: the adaptive separator misses labels there, and
    must know it."""

    @pytest.mark.parametrize("seed", range(3))
    def test_auto_keeps_the_answer_that_explains_the_gradient(self, seed: int) -> None:
        torch.manual_seed(seed)
        model, features, labels = case(seed, B=8, C=10, H=64, dtype=torch.float32)
        update = unsum.capture(model, features, labels)
        torch.manual_seed(seed)
        size = 1e-3 * update.gradients["weight"].square().mean().sqrt()
        update = update.map(lambda _name, tensor: tensor + size * torch.randn_like(tensor))
        adaptive, auto = unsum.separate(model, update, "adaptive"), unsum.attack(model, update)
        if sorted(adaptive.labels.tolist()) != sorted(labels.tolist()):
            assert not adaptive.predicted_error <= 0.1
        if auto.predicted_error < 0.05:
            assert sorted(auto.labels.tolist()) == sorted(labels.tolist())
