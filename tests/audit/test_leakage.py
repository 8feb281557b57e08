"""The leakage of a sample, with values strictly between 0 and 1 computed by hand, and of samples
that are alike."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import unsum
from support.material import pictures
from unsum import Leak
from unsum.audit.leakage import Shares, Tried, Truth, leakages, leakages_of_rows
from unsum.audit.result import SampleRow
from unsum.audit.round import _with_pictures
from unsum.commands.audit_tables import _cells
from unsum.leak import Attempt
from unsum.score import score_samples

APART = torch.eye(3)  # inputs of three samples: the others' mean is 1.5 from each, nothing is 1


def answer(features: Tensor, **more: object) -> Leak:
    rows = torch.zeros(len(features), 2)
    return replace(
        Leak("test", rows, rows, features, residual=0, predicted_error=1.0, exact=False), **more
    )


def measured(leak: Leak, truth: Truth) -> list[Shares]:
    """Every sample paired with the answer in its place."""
    rows = score_samples(leak, features=truth.features)
    places = [replace(row, found=i if i < leak.batch_size else None) for i, row in enumerate(rows)]
    return leakages(leak, places, truth)


class TestByHand:
    def test_features_against_the_mean_of_the_two_others(self) -> None:
        truth = Truth(APART, torch.tensor([[4.0, 0.0], [4.0, 2.0], [2.0, 0.0]]))
        found = torch.tensor([[4.0, 1.0], [4.0, 2.0], [2.0, 0.0]])
        # Of ‖f‖² the best multiple of the mean (3, 1) leaves 1/10, and that of (4, 1) leaves 1/17.
        assert measured(answer(found), truth)[0] == Shares(features=pytest.approx(1 - 10 / 17))
        assert [share.most for share in measured(answer(found), truth)[1:]] == pytest.approx([1, 1])

    def test_inputs_against_the_mean_of_the_two_others(self) -> None:
        truth = Truth(torch.tensor([[4.0, 0.0], [2.0, 2.0], [2.0, 0.0]]), torch.eye(3, 5))
        found = answer(torch.eye(3, 5), inputs=torch.tensor([[3.0, 0.0], [2.0, 2.0], [9.0, 9.0]]))
        # ‖(3, 0) − (4, 0)‖² = 1 of ‖(2, 1) − (4, 0)‖² = 5.
        assert [share.sample for share in measured(found, truth)] == pytest.approx([0.8, 1, 0])

    def test_public_features_are_a_guess(self) -> None:
        features = torch.tensor([[4.0, 0.0]])
        found = answer(torch.tensor([[4.0, 1.0]]))
        assert measured(found, Truth(APART[:1], features))[0].features == pytest.approx(16 / 17)
        # The best multiple of (3, 1) leaves 1/10, whatever the length of the guess.
        for length in (0.1, 1.0, 7.0):
            public = Truth(APART[:1], features, length * torch.tensor([[3.0, 1.0]]))
            assert measured(found, public)[0].features == pytest.approx(1 - 10 / 17)

    def test_a_multiple_of_the_guess_is_no_leak(self) -> None:
        """Features count up to a factor, and so does the guess: a shorter one is no better."""
        features = torch.tensor([[4.0, 0.0]])
        truth = Truth(APART[:1], features, torch.tensor([[6.0, 2.0]]))
        found = measured(answer(torch.tensor([[3.0, 1.0]])), truth)[0]
        assert found.features == pytest.approx(0, abs=1e-12)

    def test_pixels_against_the_guess_and_up_to_their_tone(self) -> None:
        images = pictures(3)
        truth = Truth(images, torch.eye(3, 5))
        typical = images[1:].mean(0)
        color = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
        off = min(
            float((part - images[0]).square().sum()) for part in (typical, color, torch.tensor(0.0))
        )
        half = images[0] + math.sqrt(off / 2 / images[0].numel())  # by its tone alone
        for drawn, expected in (
            (half, 1.0),
            (images[0] * 0.1 + 0.1, 1.0),
            (1 - images[0], 0.0),
            (typical * 0.3, 0.0),
        ):
            found = answer(
                torch.zeros(3, 5), images=torch.stack([drawn, *images[1:]]), pictures_first=True
            )
            assert measured(found, truth)[0].sample == pytest.approx(expected, abs=1e-6)

    def test_a_picture_of_which_half_came_back_counts_with_that_half_whatever_the_others_are(
        self,
    ) -> None:
        """Up to tone the other sample shows `like` of this one, and the answer 64 %: left is 1 −
        0.36 / (1 − like)."""
        flat, noise = (part - part.mean((1, 2), keepdim=True) for part in pictures(2))
        noise -= flat * (noise * flat).sum() / flat.square().sum()
        flat, noise = (
            0.15 * math.sqrt(part.numel()) * part / part.norm() for part in (flat, noise)
        )

        def picture(share: float) -> Tensor:
            return 0.5 + math.sqrt(share) * flat + math.sqrt(1 - share) * noise

        # 0.9 is a copy, and no guess
        for like, expected in ((0.0, 0.64), (0.5, 0.64), (0.7, 0.0), (0.9, 0.64)):
            images = torch.stack([0.5 + flat, picture(like)]).clamp(0, 1)
            drawn = torch.stack([0.1 * picture(0.64)] * 2)
            found = answer(torch.zeros(2, 5), images=drawn, pictures_first=True)
            assert measured(found, Truth(images, torch.eye(2, 5)))[0].sample == pytest.approx(
                expected, abs=0.02
            )

    def test_the_largest_counts_and_says_what_it_is_of(self) -> None:
        assert (Shares(1.0, 0.04).most, Shares(1.0, 0.04).read) == (1.0, "features")
        assert (Shares(1.0, 1.0).read, Shares(math.nan, 0.3).read, Shares().read) == (
            "sample",
            "sample",
            "",
        )
        assert Shares(0.2, 0.4).or_better(Shares(0.3, math.nan)) == Shares(0.3, 0.4)
        assert math.isnan(Shares(0.1, 0.1).where_decided(False).most)
        assert Shares(0.1, 0.3).where_decided(False) == Shares(0.1, 0.3)

    def test_nothing_found_and_a_wrong_direction_are_nothing(self) -> None:
        truth = Truth(APART, torch.eye(3, 5))
        assert [share.features for share in measured(answer(torch.zeros(0, 5)), truth)] == [0, 0, 0]
        assert measured(answer(-torch.eye(3, 5)), truth)[0].features == 0
        assert measured(answer(torch.eye(3, 5), pictures_first=True), truth)[0] == Shares(
            sample=0.0
        )

    def test_features_that_are_the_inputs_are_the_sample(self) -> None:
        assert measured(answer(APART), Truth(APART, APART))[0] == Shares(sample=pytest.approx(1))


class TestAlike:
    @pytest.mark.parametrize("count", [2, 4, 8])
    def test_one_answer_for_copies_is_an_answer_for_each(self, count: int) -> None:
        row = torch.tensor([[1.0, 2.0, 3.0]])
        truth = Truth(torch.ones(count, 4), row.repeat(count, 1))
        found = answer(row * (1 + 4e-8), exact=True, predicted_error=4e-8)
        assert [share.features for share in measured(found, truth)] == pytest.approx([1.0] * count)

    def test_samples_within_a_thousandth_are_read_with_any_of_them(self) -> None:
        noise = 1e-3 * torch.randn(16, 30, generator=torch.Generator().manual_seed(0))
        truth = Truth(1 + noise, 2 + noise)
        found = answer(truth.features[:1], exact=True, predicted_error=4e-8)
        assert all(share.features > 0.999 for share in measured(found, truth))

    def test_a_certified_answer_counts_with_its_own_error(self) -> None:
        """Where inputs differ and features do not, a typical sample is as near as the answer."""
        truth = Truth(APART, torch.ones(3, 5) + 1e-8 * torch.eye(3, 5))
        found = answer(truth.features * (1 + 0.01 * torch.eye(3, 5)))
        assert measured(found, truth)[0].features == 0
        sure = replace(found, exact=True, predicted_error=1e-2)
        assert measured(sure, truth)[0].features == pytest.approx(1 - 0.01**2 / 5, rel=1e-6)

    def test_rows_that_are_alike_are_read(self) -> None:
        row = torch.tensor([[3.0, 4.0]])
        copies = Truth(row.repeat(4, 1), torch.eye(4))
        assert leakages_of_rows(row, copies.images, copies) == [1, 1, 1, 1]
        apart = Truth(torch.eye(2), torch.eye(2))
        # a layer that reads the same of all samples
        assert leakages_of_rows(row, row.repeat(2, 1), apart) == [0, 0]

    @pytest.mark.parametrize("count", [2, 4, 8])
    def test_a_batch_of_copies_fails_the_gate(self, count: int) -> None:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(30, 40), nn.Tanh(), nn.Linear(40, 10))
        data = torch.randn(1, 30).repeat(count, 1), torch.zeros(count, dtype=torch.long)
        audit = unsum.audit(net, data)
        assert audit.leak.exact
        assert min(audit.leakages) > 0.999
        assert (audit.verdict.level, audit.gate(0.2).exit_code) == ("severe", 1)


def test_pictures_count_for_the_attack_whose_features_they_were_made_of() -> None:
    leak = Leak("adaptive", *[torch.zeros(1, 2)] * 2, torch.zeros(1, 3), 0.0, 1.0, False)
    final, other = Attempt("adaptive", leak), Attempt("exact", leak)
    own, drawn = [Shares(features=0.02)], [Shares(features=0.02, sample=0.22)]
    assert _with_pictures(Attempt("adaptive", leak), own, final, drawn) == drawn
    assert _with_pictures(other, own, final, drawn) == own
    assert _with_pictures(Attempt("adaptive", refused="no"), [], final, drawn) == []
    shown = Tried.of(final, [share.most for share in drawn])
    assert shown.got == "1 of 1 samples, up to 22 %"
    assert Tried.of(final, [0.0]).got == "nothing"
    assert Tried.of(final, [0.02]).got == "nothing (at most 2 %)"


def test_a_terminal_has_features_and_picture_each_in_its_column() -> None:
    score = score_samples(
        Leak("adaptive", *[torch.eye(1, 2).double()] * 2, torch.ones(1, 3), 0.0, 1.0, False),
        *(torch.ones(1, 3, 4, 4), torch.tensor([0]), torch.ones(1, 3)),
    )[0]
    row = SampleRow("a", "x", "x", Shares(0.02, 0.22), score, None, None)
    assert _cells(row, pictures=False, split=True)[2:4] == ["2 %", "22 %"]
    assert _cells(row, pictures=False, split=False)[2] == "22 %"
    nothing = SampleRow("a", "x", "x", Shares(1e-4, 0.0), score, None, None, noun="picture")
    assert nothing.leaked == "0 % of the picture"
    unmade = SampleRow("a", "x", "x", Shares(0.0), score, None, None, noun="picture")
    assert unmade.leaked == "0 % of its features"
