from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from support.audits import shares
from unsum import Leak
from unsum.audit import judge
from unsum.audit.leakage import Shares
from unsum.audit.verdict import Sizes, Verdict
from unsum.score import SampleScore

NAN = float("nan")


def sample(error: float, label: float = 1.0, psnr: float = float("nan")) -> SampleScore:
    return SampleScore(0, label, 0.0, error, 0.0, psnr, 0.0, 0.0)


def leak(size: int, exact: bool = False) -> Leak:
    targets = torch.eye(4)[:size]
    return Leak("test", targets, targets, targets, residual=0, predicted_error=0, exact=exact)


@pytest.mark.parametrize(
    ("leakages", "labels", "undecided", "level", "state", "share"),
    [
        ([1.0, 0.95], [1, 1], "", "severe", "leaks", 1.0),
        ([1.0, 0.1], [1, 1], "", "partial", "leaks", 0.5),
        ([0.3, 0.1], [0, 0], "", "partial", "leaks", 0.5),
        ([0.03, 0.03], [1, 1], "", "labels", "leaks", 0.0),
        ([0.03, 0.03], [0, 1], "", "unproven", "unproven", 0.0),
        ([NAN, NAN], [1, 1], "why", "open", "not decidable", NAN),
        ([0.5, NAN], [0, 0], "why", "partial", "leaks", 0.5),
        ([0.1, NAN], [0, 0], "", "open", "not decidable", NAN),
    ],
)
def test_levels(
    leakages: list[float], labels: list[float], undecided: str, level: str, state: str, share: float
) -> None:
    # Features came back well in every case: leakage alone decides.
    verdict = judge(leak(2), [sample(1e-6, y) for y in labels], shares(*leakages), undecided)
    assert (verdict.level, verdict.state) == (level, state)
    assert verdict.share == pytest.approx(share, nan_ok=True)


def test_what_cannot_be_decided_says_why_and_no_percentage() -> None:
    verdict = judge(
        leak(2), [sample(1.0, 0), sample(1.0, 0)], shares(NAN, NAN), "the last layer was not sent"
    )
    assert verdict.headline == "Not decidable: the last layer was not sent."
    assert verdict.to_dict()["state"] == "not decidable"
    assert not any(sentence.startswith("Leakage is") for sentence in verdict.details)
    partly = judge(
        leak(2), [sample(1.0, 0), sample(1.0, 0)], shares(1.0, NAN), "the last layer was not sent"
    )
    assert "The other samples may leak, too: the last layer was not sent." in partly.details


def test_a_headline_counts_whole_samples_and_parts() -> None:
    rows = [sample(1.0, 0)] * 4
    assert judge(leak(4), rows, shares(1.0, 0.95, 0.3, 0.0)).headline == (
        "This update gives away 2 of its 4 samples and a part of 1 more."
    )
    assert (
        judge(leak(4), rows, shares(0.3, 0.3, 0.0, 0.0)).headline
        == "This update gives away a part of 2 of its 4 samples."
    )


def test_sentences_count_right() -> None:
    verdict = judge(
        leak(2, exact=True), [sample(1e-6, psnr=25.0), sample(0.05, psnr=12.0)], shares(1.0, 0.9)
    )
    text = " ".join(verdict.details)
    for part in (
        "2 of 2 labels",
        "1 of 2 samples",
        "1 of 2 pictures",
        "mean 18.5 dB",
        "calls the answer exact",
    ):
        assert part in text


def test_pictures_that_are_only_dark_or_pale_are_not_called_lost() -> None:
    rows = [
        replace(sample(1.0, psnr=psnr), picture_cosine=cosine)
        for psnr, cosine in ((12, 0.8), (12, 0.6), (25, 0.99))
    ]
    details = judge(leak(3), rows, shares(0.5, 0.1, 0.9)).details
    assert any(detail.startswith("1 of 3 pictures came back at 18 dB") for detail in details)
    assert any(
        detail.startswith("1 more shows at least half of what is in the sample")
        for detail in details
    )


def test_a_wrong_batch_size_is_said() -> None:
    fewer = " ".join(judge(leak(1), [sample(1.0), sample(1.0)], shares(0.0, 0.0)).details)
    more = " ".join(judge(leak(3), [sample(1.0), sample(1.0)], shares(0.0, 0.0)).details)
    assert "took the batch for 1 instead of 2 samples." in fewer
    assert "took the batch for 3 instead of 2 samples; each true sample is compared" in more


def test_a_sample_that_was_not_found_did_not_come_back() -> None:
    # a grayish photo, "recovered" as gray
    gray = SampleScore(None, 0.0, 1.0, 1.0, 0.0, psnr=30.0, ssim=0.9, lpips=0.1)
    verdict = judge(leak(1), [sample(1e-6, psnr=25.0), gray], shares(1.0, 0.0))
    assert any(detail.startswith("1 of 2 pictures") for detail in verdict.details)


class TestWhatWasRead:
    sizes = Sizes(128, 12288, "picture")

    def verdict(self, *pairs: tuple[float, float]) -> tuple[str, str, str]:
        got = [Shares(*pair) for pair in pairs]
        found = judge(leak(len(got)), [sample(1e-8)] * len(got), got, sizes=self.sizes)
        return found.level, found.read, found.headline

    def test_features_are_not_the_pictures(self) -> None:
        """128 of 12,288 numbers, exactly, and brown squares made of them."""
        assert self.verdict((1.0, 0.04), (1.0, 0.04)) == (
            "features",
            "features",
            (
                "This update gives away the features of every picture of the batch (128 features "
                "for 12,288 numbers)."
            ),
        )
        assert self.verdict((1.0, NAN), (0.5, NAN), (0.0, NAN))[2] == (
            "This update gives away the features of 1 of its 3 pictures and a part of 1 more (128 "
            "features for 12,288 numbers)."
        )

    def test_pictures_stand_beside_the_features(self) -> None:
        assert self.verdict((1.0, 0.95), (1.0, 0.3)) == (
            "severe",
            "features",
            "This update gives away the features of every picture of the batch (128 features for "
            "12,288 numbers), and 1 of its 2 pictures and a part of 1 more.",
        )
        assert self.verdict((1.0, 0.95), (1.0, 0.91))[1:] == (
            "picture",
            "This update gives away every picture of the batch.",
        )

    def test_both_amounts_are_said(self) -> None:
        got = [Shares(1.0, 0.08), Shares(0.9, 0.0)]
        details = judge(leak(2), [sample(1e-8)] * 2, got, sizes=self.sizes).details
        assert details[0] == (
            "Leakage of the features is up to 100 % (95 % on average) and of the pictures "
            "themselves up to 8 % (4 % on average): 100 % is all of it, 0 % is no better than a "
            "guess."
        )
        alike = judge(
            leak(2), [sample(1e-8)] * 2, [Shares(sample=1.0)] * 2, sizes=self.sizes
        ).details
        assert alike[0].startswith("Leakage is 100 % for every sample: ")
        alone = judge(leak(1), [sample(1e-8)], [Shares(1.0)], sizes=self.sizes).details
        assert alone[0].startswith("Leakage of the features is 100 %: ")
        assert alone[0].endswith(" No picture was made of them.")

    def test_labels_are_named(self) -> None:
        found = judge(leak(2), [sample(1.0)] * 2, [Shares(0.1, 0.0)] * 2)
        assert (found.level, found.read) == ("labels", "labels")
        assert judge(leak(2), [sample(1.0, 0.0)] * 2, [Shares(0.1, 0.0)] * 2).read == ""


def test_only_the_first_sentence_of_a_reason_is_the_headline() -> None:
    told = Verdict.undecided(
        "The change fits no SGD: did the client use Adam? Its entries are of one size.", ["More."]
    )
    assert told.headline == "Not decidable: the change fits no SGD: did the client use Adam?"
    assert told.details == ["Its entries are of one size.", "More."]
    assert (
        told.reason
        == "the change fits no SGD: did the client use Adam? Its entries are of one size"
    )
    for plain in ("it took 2.5 s", "the loss is e.g. unknown", "", "line\nbreak"):
        assert Verdict.undecided(plain).headline == f"Not decidable: {plain}."
        assert Verdict.undecided(plain).details == []
