"""Pictures of uncertain features: blurred, never wrong, and those of exact ones as they were."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import unsum
from support.inverse_training import SHORT, SIZE, backbone, photos, weights
from unsum.head import collect_features
from unsum.invert import Inverse, load_inverse
from unsum.invert.blurred import Blurred, FeatureStatistics
from unsum.invert.layout import Layout
from unsum.invert.train import Training, train_inverse
from unsum.models import load_model

LAYOUT = Layout("map", (6, 4, 4))


def untrained(layout: Layout = LAYOUT, size: int = SIZE) -> Blurred:
    """Whose coarse pictures are anything but the mean."""
    torch.manual_seed(0)
    blurred = Blurred(layout, size)
    blurred.mean.uniform_(0.2, 0.8)
    return blurred.eval()


@pytest.mark.parametrize(
    "layout", [LAYOUT, Layout("vector", (24,)), Layout("tokens", (17, 5))], ids=lambda x: x.kind
)
@torch.no_grad()
def test_exact_features_are_the_decoders_alone_and_unknown_ones_have_the_mean(
    layout: Layout,
) -> None:
    blurred = untrained(layout)
    H = torch.Size(layout.shape).numel()
    features, fine = torch.randn(3, H), torch.rand(3, 3, SIZE, SIZE)
    assert torch.equal(blurred.draw(features, torch.zeros(3), fine), fine)
    between = blurred.draw(features, torch.full((3,), 0.6), fine)
    assert float((between - fine).abs().mean()) > 0.05
    unknown = blurred.draw(features, torch.ones(3), fine)
    mean = F.interpolate(blurred.mean[None], blurred.coarse_side, mode="bilinear")
    mean = F.interpolate(mean, SIZE, mode="bilinear")
    torch.testing.assert_close(unknown, mean.expand(3, -1, -1, -1))


def test_the_level_is_the_squared_error_over_that_of_the_mean() -> None:
    blurred = untrained()
    blurred.gain.fill_(0.25)
    blurred.spread.fill_(2.0)  # a fourth of the features' square is their variance
    errors = torch.tensor([0.0, 0.1, 0.4, 0.5, 0.9, 5.0])
    found = blurred.level(errors)
    torch.testing.assert_close(found, torch.tensor([0.0, 0.04, 0.64, 1, 1, 1]))
    unknown = torch.tensor([torch.nan, torch.inf, -torch.inf])
    assert blurred.level(unknown).tolist() == [0, 0, 0]


def test_simulated_estimates_are_as_far_off_as_their_level_says() -> None:
    torch.manual_seed(0)
    spread = torch.rand(400) + 0.1
    true = 3 * torch.randn(400) + spread * torch.randn(64, 400)
    statistics = FeatureStatistics(true.mean(0), spread.square(), non_negative=False)
    found, level = statistics.estimated(true, torch.Generator().manual_seed(0), draws=20)
    assert found.shape == (1280, 400)
    off = (found - true.repeat(20, 1)).square().sum(1) / spread.square().sum()
    for low, high in ((0, 0.1), (0.1, 0.5), (0.5, 0.9), (0.9, 1.1)):
        within = (level >= low) & (level < high)
        assert int(within.sum()) > 50
        assert 0.9 < float(off[within].mean() / level[within].mean()) < 1.35
    positive = FeatureStatistics(true.abs().mean(0), true.abs().var(0), non_negative=True)
    found, _ = positive.estimated(true.abs(), torch.Generator().manual_seed(0))
    assert float((found >= 0).all(1).double().mean()) > 0.6  # all but the raw ones


def test_a_certified_answer_is_drawn_as_it_was(default_audit: unsum.Audit) -> None:
    model, leak = load_model("default", classes=100).model, default_audit.leak
    assert leak.exact
    assert leak.errors is not None
    assert leak.errors.shape == (8,)
    doubted = replace(leak, errors=torch.full((8,), 0.5))
    assert torch.equal(unsum.invert(model, doubted), leak.images)
    none = replace(leak, exact=False, errors=torch.zeros(8))
    assert torch.equal(unsum.invert(model, none), leak.images)


def test_the_less_is_known_the_nearer_to_the_mean(default_audit: unsum.Audit) -> None:
    """The embedded inverse: only the samples that are uncertain move."""
    model, leak = load_model("default", classes=100).model, default_audit.leak
    blurred = load_inverse(model).blurred
    assert blurred is not None
    mean = F.interpolate(blurred.mean[None], (128, 128), mode="bilinear")
    away = []
    for error in (0.0, 0.3, 0.6, 0.8, 1.0):
        errors = torch.tensor([error] * 4 + [0.0] * 4)
        drawn = unsum.invert(model, replace(leak, exact=False, errors=errors))
        assert torch.equal(drawn[4:], leak.images[4:])
        away.append(float((drawn[:4] - mean).square().mean()))
    assert away == sorted(away, reverse=True)
    assert away[-1] < 1e-3 * away[0]


@cache
def trained(noise: Literal["with", "without"]) -> Inverse:
    """For a moment."""
    return _trained(replace(SHORT, noise=noise, clients=(8,)))


def _trained(training: Training) -> Inverse:
    with TemporaryDirectory() as folder:
        card = {"photos": 256}
        return train_inverse(
            backbone(), photos(256), photos(32, 1), Path(folder), training, card=card
        )


def noisy(loudness: float) -> tuple[Tensor, Tensor, Tensor]:
    """Pictures, posterior means of their features under a normal prior and noise of so many times
    the features' variance, and the relative errors that an attack would expect."""
    pictures = photos(128, 3) / 255
    features = collect_features(backbone().train(), pictures)
    public = collect_features(backbone().train(), photos(256) / 255)
    mean, variance = public.mean(0), public.var(0)
    noise = loudness * variance.mean()
    share = variance / (variance + noise)
    drawn = torch.randn(features.shape, generator=torch.Generator().manual_seed(0))
    means = (mean + share * (features + noise.sqrt() * drawn - mean)).clamp_min(0)
    left = (share * noise).sum()
    return pictures, means, (left / (left + means.square().sum(1))).sqrt()


def test_training_with_noise_draws_noisy_features_better() -> None:
    inverse = _trained(
        Training(steps=300, size=SIZE, batch=32, clients=(8,), rate=3e-3, save_every=1e9)
    )
    usual = F.interpolate((photos(256) / 255).mean(0)[None], SIZE)
    for loudness in (1.0, 100.0):
        pictures, means, errors = noisy(loudness)
        decoder, blurred, mean = (
            float((found - pictures).square().mean())
            for found in (inverse.draw(means), inverse.draw(means, errors), usual)
        )
        assert blurred < 0.92 * decoder, loudness
        assert blurred < (0.5 if loudness == 1 else 1.01) * mean, loudness


def test_training_with_noise_leaves_the_decoder_as_it_was() -> None:
    assert trained("without").blurred is None
    assert trained("with").blurred is not None
    assert torch.equal(weights(trained("with")), weights(trained("without")))


def test_files_with_and_without_noise_are_read(tmp_path: Path) -> None:
    _, means, errors = noisy(1.0)
    kinds: tuple[Literal["with", "without"], ...] = ("with", "without")
    for noise in kinds:
        trained(noise).save(tmp_path / "inverse.safetensors")
        stored = load_inverse(backbone(), tmp_path)
        # stored in half precision
        kept = trained(noise).draw(means, errors)
        torch.testing.assert_close(stored.draw(means, errors), kept, atol=1e-2, rtol=0)
        same = torch.equal(stored.draw(means, errors), stored.draw(means))
        assert same == (noise == "without")


def test_noise_alone_is_added_to_an_inverse(tmp_path: Path) -> None:
    trained("without").save(tmp_path / "inverse.safetensors")
    before = Inverse.load(tmp_path)
    only = replace(SHORT, noise="only", clients=(8,))
    found = train_inverse(
        backbone(),
        photos(40),
        photos(8, 1),
        tmp_path / "b",
        only,
        card={"photos": 40},
        start=tmp_path / "inverse.safetensors",
    )
    assert torch.equal(weights(found), weights(before))
    assert found.card["held_out_psnr_batch_8"] == before.card["held_out_psnr_batch_8"]
    assert (found.card["photos"], found.card["blurred_steps"]) == (256, 12)
    assert load_inverse(backbone(), tmp_path / "b").blurred is not None
    with pytest.raises(unsum.UnsumError, match="name one with --start"):
        train_inverse(
            backbone(), photos(40), photos(8, 1), tmp_path / "c", only, card={"photos": 40}
        )
    with pytest.raises(unsum.UnsumError, match="noise of a training"):
        Training(steps=1, noise="some")  # type: ignore[arg-type]


def test_a_resumed_training_learns_the_same_noise(tmp_path: Path) -> None:
    class KilledError(Exception):
        pass

    def kill(progress: object) -> None:
        if progress.step == 5:  # type: ignore[attr-defined]
            raise KilledError

    arguments = (backbone(), photos(40), photos(8, 1))
    with pytest.raises(KilledError):
        train_inverse(*arguments, tmp_path / "a", SHORT, card={"photos": 40}, watch=kill)
    resumed = train_inverse(*arguments, tmp_path / "a", SHORT, card={"photos": 40})
    whole = train_inverse(*arguments, tmp_path / "b", SHORT, card={"photos": 40})
    assert resumed.blurred is not None
    assert whole.blurred is not None
    for one, other in zip(resumed.blurred.parameters(), whole.blurred.parameters(), strict=True):
        assert torch.equal(one, other)


def test_what_is_drawn_of_nothing_is_a_guess() -> None:
    """Noise of 3 hides every photo; one of them resembles the mean of the training photos by three
    quarters, up to tone."""
    limits = unsum.AuditLimits(ceiling=False, compare=False)
    known = unsum.Attacker(batch_size_known=True)
    audit = unsum.audit(defenses=unsum.Noise(3.0), attacker=known, limits=limits)
    assert audit.leak.blank is not None
    assert audit.leak.images is not None
    assert float((audit.leak.images - audit.leak.blank).abs().max()) < 0.05
    assert max(row.picture_cosine for row in audit.samples) > 0.8
    assert max(share.sample for share in audit.shares) < 0.05
