from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st

from unsum import Leak, UnsumError, score
from unsum.models.lpips import lpips, weights_file
from unsum.score import lpips_status, score_samples
from unsum.score.labels import LabelsRead, guessed_right, same_labels
from unsum.score.pictures import psnr, ssim
from unsum.score.samples import assign


def perfect(features: torch.Tensor, labels: torch.Tensor, images: torch.Tensor) -> Leak:
    targets = torch.nn.functional.one_hot(labels, 10).double()
    return Leak(
        "test", targets, targets, features, residual=0, predicted_error=0, exact=True, images=images
    )


@pytest.fixture
def truth() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(5, 7), torch.tensor([1, 1, 2, 3, 9]), torch.rand(5, 3, 24, 24)


@settings(max_examples=20)
@given(order=st.permutations(range(5)))
def test_the_attackers_order_does_not_matter(order: list[int]) -> None:
    torch.manual_seed(0)
    features, labels, images = (
        torch.randn(5, 7),
        torch.tensor([1, 1, 2, 3, 9]),
        torch.rand(5, 3, 24, 24),
    )
    leak = perfect(features[order], labels[order], images[order])
    rows = score_samples(leak, images, labels, features)
    assert [order[row.found] for row in rows if row.found is not None] == list(range(5))
    figures = score(leak, images, labels, features)
    assert figures["label_correct"] == 1
    assert (
        figures["feature_error"] == figures["worst_feature_error"] == figures["target_error"] == 0
    )
    assert figures["feature_cosine"] == pytest.approx(1)
    assert (figures["psnr"], figures["ssim"]) == (100, pytest.approx(1))
    assert figures["batch_size_error"] == 0


def test_errors_are_measured_not_assumed(truth) -> None:
    features, labels, images = truth
    wrong = labels.clone()
    wrong[2] = 0
    figures = score(perfect(1.1 * features, wrong, (images * 0.9)), images, labels, features)
    assert figures["feature_error"] == pytest.approx(0.1, rel=1e-4)
    assert figures["feature_cosine"] == pytest.approx(1)
    assert figures["label_correct"] == pytest.approx(0.8)
    assert figures["target_error"] == pytest.approx(0.2)  # one row of five is wrong by 1
    expected = [-10 * math.log10(float((0.1 * image).square().mean())) for image in images]
    assert figures["psnr"] == pytest.approx(sum(expected) / 5, rel=1e-5)


def test_psnr_is_averaged_over_images_not_pixels(truth) -> None:
    """One perfect and one bad picture: the mean of their decibels, far above the decibels of their
    mean error."""
    features, labels, images = (t[:2] for t in truth)
    damaged = images.clone()
    damaged[1] = 1 - damaged[1]
    figures = score(perfect(features, labels, damaged), images, labels, features)
    assert figures["psnr"] == pytest.approx((100 + psnr(damaged[1], images[1])) / 2)


def test_a_missing_sample_counts_against_the_attack(truth) -> None:
    features, labels, images = truth
    leak = perfect(features[:4], labels[:4], images[:4])
    rows = score_samples(leak, images, labels, features)
    assert rows[4].found is None
    assert (rows[4].label_correct, rows[4].feature_error, rows[4].feature_cosine) == (0, 1, 0)
    assert rows[4].psnr == pytest.approx(psnr(torch.full_like(images[4], 0.5), images[4]))
    assert score(leak, images, labels, features)["batch_size_error"] == -1


def test_an_invented_sample_is_left_over_and_reported(truth) -> None:
    features, labels, images = truth
    extra = perfect(*(torch.cat([t, t[:1]]) for t in truth))
    figures = score(extra, images, labels, features)
    assert figures["label_correct"] == 1
    assert figures["batch_size_error"] == 1


def test_pairing_falls_back_to_images_then_targets(truth) -> None:
    features, labels, images = truth
    order = torch.tensor([4, 3, 2, 1, 0])
    leak = perfect(features[order], labels[order], images[order])
    assert score(leak, images=images, targets=labels)["psnr"] == 100
    assert score(leak, targets=labels)["label_correct"] == 1
    assert "psnr" not in score(leak, targets=labels)
    assert "psnr" not in score(replace(leak, images=None), images, labels, features)


def test_hopeless_rows_do_not_spoil_the_good_pairs() -> None:
    true = torch.eye(3) * 5
    found = torch.stack([true[2] + 0.1, torch.full((3,), 1e6), true[0] - 0.1])
    assert assign(found, true) == [2, 1, 0]


def test_bad_comparisons_are_refused(truth) -> None:
    features, labels, images = truth
    leak = perfect(features, labels, images)
    with pytest.raises(UnsumError, match="at least one of"):
        score(leak)
    with pytest.raises(UnsumError, match="True images are"):
        score(leak, images=images[..., :20])


def test_ssim_falls_with_structure_lost() -> None:
    torch.manual_seed(0)
    image = torch.rand(3, 32, 32)
    assert ssim(image, image) == pytest.approx(1)
    assert ssim(image.flip(2), image) < 0.2


def test_lpips_is_reported_as_unavailable_without_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    assert "AlexNet" in (lpips_status() or "")
    assert math.isnan(lpips(torch.rand(3, 64, 64), torch.rand(3, 64, 64)))


def test_lpips_is_computed_when_the_weights_are_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    torch.manual_seed(0)
    weights_file().parent.mkdir(parents=True)
    torch.save(torchvision.models.alexnet(weights=None).state_dict(), weights_file())
    image = torch.rand(3, 64, 64)
    assert lpips_status() is None
    assert lpips(image, image) == pytest.approx(0, abs=1e-6)
    assert lpips(1 - image, image) > 1e-4


@pytest.mark.parametrize(
    ("found", "true", "same"),
    [
        ([0.4, 0.35, 0.25], [1.0, 0.0, 0.0], True),  # the largest of probabilities
        ([0.9, 0.8, 0.1], [1.0, 0.0, 0.0], False),  # two labels where one is true
        ([0.9, 0.8, 0.1], [1.0, 1.0, 0.0], True),  # both of two
        ([0.9, 0.2, 0.1], [1.0, 1.0, 0.0], False),
        ([0.2, 0.7, 0.1], [0.3, 0.6, 0.1], True),
        ([0.7], [1.0], True),  # one output: yes or no
        ([0.3], [1.0], False),
    ],
)
def test_when_two_targets_say_the_same(found: list[float], true: list[float], same: bool) -> None:
    assert same_labels(torch.tensor([found]), torch.tensor([true])).tolist() == [[same]]


def test_labels_are_counted_whichever_sample_they_were_found_with() -> None:
    """Found 5 5 9 of 5 9 9: the two with a partner of their own, and no label twice."""
    eye, features = torch.eye(10).double(), torch.eye(3).double()
    found = Leak(
        "test", eye[[9, 5, 5]], eye[[9, 5, 5]], features, residual=0, predicted_error=0, exact=False
    )
    rows = score_samples(found, targets=torch.tensor([5, 9, 9]), features=features)
    assert [row.found for row in rows] == [0, 1, 2]
    assert [row.label_correct for row in rows] == [1.0, 1.0, 0.0]
    assert [row.label_from for row in rows] == [1, 0, 2]
    assert [row.target_error for row in rows] == [0.0, 0.0, 1.0]


def test_labels_are_worth_what_they_say_beyond_a_guess() -> None:
    """Two samples of two classes: {0, 1} is right for 1½ on average. Naming every class finds
    nothing."""
    eye = torch.eye(2)
    read = LabelsRead.of(eye[[0, 1]], eye[[0, 0]])
    assert (read.right, read.by_chance, read.share, read.given_away) == (
        1,
        pytest.approx(1.5),
        0.0,
        False,
    )
    assert LabelsRead.of(eye[[0, 0]], eye[[0, 0]]).share == pytest.approx(1.0)
    wide = torch.eye(50)
    everything = LabelsRead.of(wide, wide[[3, 4, 30]])
    assert everything.right == 3
    assert not everything.given_away
    assert LabelsRead.of(wide[[3, 4, 8]], wide[[3, 4, 30]]).given_away
    # half of all classes hold three labels once in eight times
    lucky = LabelsRead.of(wide[:25], wide[[3, 4, 20]])
    assert (lucky.right, lucky.given_away) == (3, False)


def test_a_guess_at_many_labels_neither_overflows_nor_exceeds_them() -> None:
    assert 4500 < guessed_right(5000, 10, 5000) < 5000
    assert guessed_right(5000, 10, 50_000) == pytest.approx(5000)
