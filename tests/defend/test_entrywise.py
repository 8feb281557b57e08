"""Noise, clipping and pruning in their other forms, and everything that rounds."""

from __future__ import annotations

import math

import pytest
import torch

from unsum import (
    QSGD,
    BFloat16,
    ClipLayers,
    Float16,
    Laplace,
    Noise,
    Prune,
    PruneGlobal,
    Quantize,
    Sign,
    Update,
)
from unsum.defend import Defense, parse_defense


def random_update(seed: int = 0) -> Update:
    generator = torch.Generator().manual_seed(seed)
    return Update(
        {
            "w": torch.randn(30, 20, generator=generator),
            "b": 0.01 * torch.randn(30, generator=generator),
        }
    )


def test_laplace_noise_has_its_moments() -> None:
    """Mean magnitude b, standard deviation √2·b, kurtosis 6: Gaussian noise of the same deviation
    has 3."""
    torch.manual_seed(0)
    noise = Laplace(0.25)(Update({"w": torch.full((500, 1000), 3.0)})).gradients["w"] - 3
    assert float(noise.abs().mean()) == pytest.approx(0.25, rel=0.01)
    assert float(noise.std()) == pytest.approx(math.sqrt(2) * 0.25, rel=0.01)
    assert float((noise / noise.std()).pow(4).mean()) == pytest.approx(6, rel=0.05)
    assert float(noise.mean()) == pytest.approx(0, abs=0.002)


def test_every_tensor_is_clipped_by_itself() -> None:
    clean = Update(
        {"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([0.1]), "zero": torch.zeros(2)}
    )
    clipped = ClipLayers(1)(clean).gradients
    torch.testing.assert_close(clipped["a"], torch.tensor([0.6, 0.8]))
    assert torch.equal(clipped["b"], clean.gradients["b"])
    assert torch.equal(clipped["zero"], torch.zeros(2))


@pytest.mark.parametrize("pruning", [Prune, PruneGlobal])
def test_the_largest_entry_is_always_sent(pruning: type[Prune | PruneGlobal]) -> None:
    """A fraction so near to 1 that no whole number of entries would be left."""
    sent = pruning(1 - 1e-9)(Update({"w": torch.tensor([3.0, -4.0, 0.5])})).gradients["w"]
    assert sent.tolist() == [0, -4, 0]


def test_global_pruning_compares_over_all_tensors() -> None:
    clean = Update(
        {"large": torch.tensor([[1.0, -5.0], [2.0, 3.0]]), "small": torch.arange(1.0, 7.0) / 100}
    )
    pruned = PruneGlobal(0.7)(clean).gradients
    assert pruned["large"].tolist() == [[0, -5], [2, 3]]
    assert pruned["small"].tolist() == [0] * 6
    assert torch.equal(PruneGlobal(0)(clean).gradients["small"], clean.gradients["small"])
    assert sum(int((g != 0).sum()) for g in PruneGlobal(0.999)(clean).gradients.values()) == 1


def test_global_pruning_counts_exactly_with_ties() -> None:
    ties = PruneGlobal(0.75)(Update({"a": torch.ones(2, 3), "b": torch.ones(2)})).gradients
    assert sum(float(g.sum()) for g in ties.values()) == 2


def test_qsgd_is_unbiased() -> None:
    torch.manual_seed(0)
    value = torch.tensor([3.0, -1.0, 0.5, 0.0, -2.0])
    draws = torch.stack([QSGD(2)(Update({"w": value})).gradients["w"] for _ in range(4000)])
    # One draw deviates by at most half a spacing, ‖v‖/4 = 0.94: the mean of 4000 by 0.015, and 4.5
    # times that is far out.
    torch.testing.assert_close(draws.mean(0), value, atol=0.07, rtol=0)
    assert draws.std(0)[0] > 0.1
    assert torch.equal(draws[:, 3], torch.zeros(4000))


@pytest.mark.parametrize("levels", [1, 4, 16])
def test_qsgd_sends_whole_multiples_of_norm_over_levels(levels: int) -> None:
    torch.manual_seed(0)
    clean = Update({"w": torch.randn(5), "zero": torch.zeros(3)})
    sent = QSGD(levels)(clean).gradients
    steps = sent["w"] / clean.gradients["w"].norm() * levels
    torch.testing.assert_close(steps, steps.round(), atol=1e-5, rtol=0)
    exact = clean.gradients["w"] / clean.gradients["w"].norm() * levels
    # a neighboring level, never one further off
    assert float((steps - exact).abs().max()) < 1 + 1e-5
    assert torch.equal(sent["zero"], torch.zeros(3))


def test_signs() -> None:
    clean = Update({"w": torch.tensor([-3.0, 0.0, 0.5, 0.5])})
    assert Sign()(clean).gradients["w"].tolist() == [-1, 0, 1, 1]
    assert Sign(scaled=True)(clean).gradients["w"].tolist() == [-1, 0, 1, 1]  # mean magnitude 1
    assert Sign(scaled=True)(Update({"w": torch.tensor([-3.0, 1.0])})).gradients["w"].tolist() == [
        -2,
        2,
    ]
    assert repr(Sign(scaled=True)) == "Sign(scaled=True)"


@pytest.mark.parametrize("bits", [1, 3, 8, 24])
def test_quantization_has_its_levels_and_error_bound(bits: int) -> None:
    clean = random_update()
    sent = Quantize(bits)(clean).gradients
    for name, value in clean.gradients.items():
        spacing = float(value.max() - value.min()) / (2**bits - 1)
        assert float((sent[name] - value).abs().max()) <= spacing / 2 + 1e-7 * float(
            value.abs().max()
        )
        assert sent[name].unique().numel() <= 2**bits
        assert float(sent[name].max()) == pytest.approx(float(value.max()))
        assert float(sent[name].min()) == pytest.approx(float(value.min()))
    assert bits > 3 or sent["w"].unique().numel() == 2**bits
    assert torch.equal(Quantize(2)(Update({"w": torch.ones(3)})).gradients["w"], torch.ones(3))


def test_half_precision_round_trip() -> None:
    clean = Update({"w": torch.tensor([1.0, 1 + 2**-10, 1 + 2**-12, 1e-9, 7e4])})
    half, brain = Float16()(clean).gradients["w"], BFloat16()(clean).gradients["w"]
    assert half.dtype == brain.dtype == torch.float32
    assert half.tolist() == [1, 1 + 2**-10, 1, 0, math.inf]
    assert brain[:3].tolist() == [1, 1, 1]
    torch.testing.assert_close(brain[3:], clean.gradients["w"][3:], rtol=2**-8, atol=0)
    random = random_update().gradients["w"]
    torch.testing.assert_close(
        Float16()(Update({"w": random})).gradients["w"], random, rtol=2**-11, atol=2**-24
    )


@pytest.mark.parametrize(
    "text", ["laplace:0.1", "clip-layers:1", "prune-global:0.5", "qsgd:4", "sign", "quantize:8"]
)
def test_the_clients_own_update_is_left_alone(text: str) -> None:
    clean = random_update()
    changed = parse_defense(text)(clean)
    assert torch.equal(clean.gradients["w"], random_update().gradients["w"])
    assert not torch.equal(changed.gradients["w"], clean.gradients["w"])
    assert changed.gradients["w"].shape == (30, 20)


def test_order_matters_and_shows() -> None:
    clean = Update({"w": torch.tensor([3.0, 4.0])})
    first, second = parse_defense("sign|clip:1"), parse_defense("clip:1|sign")
    assert (repr(first), repr(second)) == ("Sign() | Clip(1)", "Clip(1) | Sign()")
    torch.testing.assert_close(first(clean).gradients["w"], torch.full((2,), math.sqrt(0.5)))
    assert second(clean).gradients["w"].tolist() == [1, 1]
    names: list[Defense] = [
        Laplace(0.1),
        ClipLayers(2),
        PruneGlobal(0.9),
        QSGD(4),
        Quantize(8),
        Float16(),
        BFloat16(),
    ]
    assert [repr(d) for d in names] == [
        "Laplace(0.1)", "ClipLayers(2)", "PruneGlobal(0.9)", "QSGD(4)", "Quantize(8)", "Float16()",
        "BFloat16()",
    ]  # fmt: skip


@pytest.mark.parametrize("defense", [Noise(0.3), Laplace(0.3)], ids=repr)
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_noise_on_half_precision_does_not_show_which_entries_were_zero(
    defense: Defense, kind: torch.dtype
) -> None:
    """Noise drawn in bfloat16 takes few values; an entry that was not zero lands between them."""
    torch.manual_seed(0)

    def sent(value: float, count: int) -> torch.Tensor:
        gradients = {"w": torch.full((count,), value, dtype=kind)}
        noisy = defense(Update(gradients)).gradients["w"]
        assert noisy.dtype == kind
        return noisy

    reached = torch.unique(sent(0.0, 1_000_000))
    # tails are rare; float16 has more values near 0 than so many draws reach
    strange = (~torch.isin(sent(0.02, 20_000), reached)).float().mean()
    usual = (~torch.isin(sent(0.0, 20_000), reached)).float().mean()
    assert float(strange) == pytest.approx(float(usual), abs=0.01)
