"""The report's page, checked as text: every value in it, hostile names harmless, nothing loaded
from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import io
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from support.audits import CLASSES, TITLES, bounded, captured, shares, synthetic, with_names
from unsum.audit.report import render
from unsum.models.lpips import lpips_status, weights_file
from unsum.notes import Code, Note

HOSTILE = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>']


class Page(HTMLParser):
    """The elements of a page with their attributes, and its text outside style and script."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.in_style = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.in_style = tag in (
            "style",
            "script",
        )  # until the next element begins, which is soon enough: it holds no text

    def handle_data(self, data: str) -> None:
        self.text += "" if self.in_style else data.replace("\N{NO-BREAK SPACE}", " ")

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def decode(uri: str | None) -> np.ndarray:
    assert uri is not None
    assert uri.startswith("data:image/png;base64,")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))


def levels(picture: Tensor) -> np.ndarray:
    """The gray levels of one (C, h, w) picture, as PIL lays them out."""
    return (picture * 255).round().byte().permute(1, 2, 0).squeeze(-1).numpy()


def test_page_says_everything() -> None:
    audit = synthetic()
    text = Page(render(audit)).text
    verdict = [audit.verdict.headline, *audit.verdict.details, "100 %", "Leakage of features"]
    facts = [*TITLES, *CLASSES[:3], *verdict, *audit.granted]
    figures = [
        "2.5e-06",
        "4.5e-06",
        "3.5e-09",
        "0.125",
        "1.25 s",
        "1.0000",
        f"{audit.scores['psnr']:.1f}",
        "exact: ",
    ]
    settings = [
        "tiny net",
        "Clip(4)",
        "train",
        "abacus",
        "unsum audit --seed 7",
        "torch 9.8.7",
        "3 samples, 4 classes",
    ]
    for expected in [*facts, *figures, *settings, *(f"{row.psnr:.1f} dB" for row in audit.samples)]:
        assert expected in text


def test_pictures_are_the_pictures_given_each_beside_its_own() -> None:
    audit = synthetic()
    assert audit.leak.images is not None
    images = Page(render(audit)).attributes("img")
    assert len(images) == 6
    for i in range(3):
        original, recovered = images[2 * i], images[2 * i + 1]
        np.testing.assert_array_equal(decode(original["src"]), levels(audit.truth.images[i]))
        np.testing.assert_array_equal(decode(recovered["src"]), levels(audit.leak.images[2 - i]))
        assert original["alt"] == f"Original: {TITLES[i]}"
        assert recovered["alt"] == f"Recovered from the update: {TITLES[i]}"


def test_gray_pictures_stay_gray() -> None:
    audit = synthetic(pictures=False, channels=1)
    images = Page(render(audit)).attributes("img")
    np.testing.assert_array_equal(decode(images[1]["src"]), levels(audit.truth.images[1]))


def test_values_are_clipped_and_rounded_and_nan_is_black() -> None:
    audit = synthetic()
    wild = audit.truth.images.clone()
    wild[0, :, 0, :4] = torch.tensor([-3.0, 7.0, math.nan, 100.9 / 255])
    page = Page(render(replace(audit, truth=replace(audit.truth, images=wild))))
    assert decode(page.attributes("img")[0]["src"])[0, :4].tolist() == [
        [0] * 3,
        [255] * 3,
        [0] * 3,
        [101] * 3,
    ]


def test_without_an_inverse_only_the_originals_are_shown() -> None:
    page = Page(render(synthetic(pictures=False)))
    assert [image["alt"] for image in page.attributes("img")] == [
        f"Original: {title}" for title in TITLES
    ]
    assert "No inverse fits this model" in page.text
    assert "There are no pictures for this model: wrong backbone." in page.text
    assert "Recovered" not in page.text
    assert page.attributes("input") == []  # nothing to slide over
    assert " dB" not in page.text
    assert "–" in page.text


def test_pictures_that_time_was_too_short_for_are_not_blamed_on_the_inverse() -> None:
    audit = synthetic(pictures=False)
    cut = replace(audit.leak, notes=[Note("Time was over.", Code.CUT_SHORT)])
    page = Page(render(replace(audit, leak=cut)))
    assert "Time was over before the attack had drawn pictures" in page.text
    assert "No inverse fits this model" not in page.text


def test_a_sample_that_was_not_found_has_a_placeholder() -> None:
    audit = synthetic(found=2)
    assert audit.samples[2].found is None
    page = Page(render(audit))
    assert len(page.attributes("img")) == 5
    # in the picture's place, as its label, in the table and in the legend
    assert page.text.count("not found") == 4
    assert "is scored as what anybody could answer" in page.text
    assert "features of 2 of its 3 pictures" in page.text


def test_samples_that_are_no_pictures_get_none() -> None:
    audit = synthetic(pictures=False)
    page = Page(render(replace(audit, truth=replace(audit.truth, images=torch.ones(3, 20)))))
    assert page.attributes("img") == []
    assert "The samples are no pictures" in page.text
    assert "no picture " not in page.text


@pytest.mark.parametrize(
    "level", ["severe", "partial", "features", "labels", "unproven", "protected"]
)
def test_the_level_is_worded_and_not_only_colored(level: str) -> None:
    audit = synthetic()
    if level in ("severe", "partial"):
        audit = replace(audit, shares=shares(1, 1, 1 if level == "severe" else 0))
    elif level != "features":
        right = float(level == "labels")
        rows = [replace(row, feature_error=0.9, label_correct=right) for row in audit.samples]
        audit = replace(audit, samples=rows, shares=shares(*[0.1] * 3))
    if level == "protected":
        audit = replace(audit, bound=bounded(0.15, 0.1, 0.12))
    page = Page(render(audit))
    words = {
        "severe": "Severe leakage",
        "partial": "Partial leakage",
        "labels": "Label leakage",
        "features": "Leakage of features",
    }
    assert audit.verdict.level == level
    assert words.get(level, level.capitalize()) in page.text
    assert f"verdict {level}" in [section.get("class") for section in page.attributes("section")]
    assert ("another attack may read up to the ceiling" in page.text) == (
        level in ("partial", "features", "labels", "unproven")
    )
    assert ("noise is as declared" in page.text) == (level == "protected")


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_are_text(text: str) -> None:
    html = render(with_names(synthetic(), text))
    page = Page(html)
    assert text not in html
    # Three titles in caption, slider and table; three labels, true and found, in caption and table;
    # then model, defenses and versions twice, command, device, note and auxiliary photos once, and
    # the defense in what to do now.
    assert page.text.count(text) == 3 * 3 + 3 * 2 * 2 + 3 * 2 + 4 + 1
    assert len(page.attributes("script")) == 1  # our own
    assert len(page.attributes("img")) == 6
    assert not [
        name for _, attributes in page.elements for name in attributes if name.startswith("on")
    ]


def test_nothing_comes_from_elsewhere() -> None:
    html = render(synthetic())
    page = Page(html)
    addresses = [
        value
        for _, attributes in page.elements
        for name, value in attributes.items()
        if name in ("src", "href")
    ]
    assert addresses
    assert all(value is not None and value.startswith(("data:", "#")) for value in addresses)
    assert not re.search(r"https?://|//cdn|url\(|@import", html)


def test_policy_admits_this_style_and_this_script_and_no_other() -> None:
    html = render(synthetic())
    policy = next(meta["content"] for meta in Page(html).attributes("meta") if "http-equiv" in meta)
    assert policy is not None
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-")
    assert "unsafe" not in policy
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    assert (
        "script-src "
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}';"
    ) in policy
    assert " style=" not in html  # the policy would refuse it


def test_table_headers_have_a_scope() -> None:
    headers = Page(render(synthetic())).attributes("th")
    assert headers
    assert {header.get("scope") for header in headers} == {"row", "col"}


def test_credits_only_for_embedded_photos() -> None:
    embedded = Page(render(synthetic(titles=["Chelsea the cat", "A dahlia", "Friends"]))).text
    assert "ATTRIBUTION.md" in embedded
    assert "“A dahlia” (vultilion, via scikit-learn, CC BY 2.0)" in embedded
    own = Page(render(synthetic(titles=["Chelsea the cat", "A dahlia", "my sister"]))).text
    assert "ATTRIBUTION.md" not in own
    assert "contains the audited samples themselves" in own


def test_lpips_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("torch.hub.get_dir", lambda: str(tmp_path))
    audit = synthetic()
    missing = lpips_status()
    assert missing is not None
    assert f"lower is closer. {missing}" in Page(render(audit)).text
    weights_file().parent.mkdir()
    weights_file().touch()
    assert missing not in Page(render(audit)).text


def test_figures_are_readable() -> None:
    audit = synthetic()
    odd = replace(audit.samples[0], feature_error=0.354, psnr=math.nan, ssim=-0.123, lpips=0.456)
    leak = replace(audit.leak, exact=False, predicted_error=math.inf, residual=math.nan)
    text = Page(render(replace(audit, samples=[odd, *audit.samples[1:]], leak=leak))).text
    for expected in ["0.35", "– dB", "-0.12", "0.46", "∞ (largest measured", "not exact: "]:
        assert expected in text
    assert not re.search(r"\bnan\b", text)


def test_audit_from_python_has_no_command() -> None:
    audit = synthetic()
    text = Page(render(replace(audit, setting=replace(audit.setting, command="")))).text
    assert "started from Python" in text


def test_what_it_was_granted_and_where_it_lies_are_landmarks() -> None:
    page = Page(render(synthetic()))
    assert [len(page.attributes(tag)) for tag in ("header", "nav", "main", "footer", "h1")] == [
        1
    ] * 5
    first_link = page.attributes("a")[0]
    assert first_link["href"] == "#headline"
    targets = {attributes.get("id") for _, attributes in page.elements}
    assert all((link["href"] or "").removeprefix("#") in targets for link in page.attributes("a"))


def test_every_slider_is_named_after_its_sample() -> None:
    page = Page(render(synthetic()))
    assert [field["type"] for field in page.attributes("input")] == ["radio"] * 2 + ["range"] * 3
    for title in TITLES:
        assert f"lies over the original: {title}" in page.text
    assert len(page.attributes("label")) == 5


def test_cells_sort_by_the_whole_number() -> None:
    audit = synthetic()
    odd = replace(audit.samples[0], feature_error=0.123456789, psnr=math.inf, lpips=math.nan)
    html = render(replace(audit, samples=[odd, *audit.samples[1:]]))
    assert 'data-value="0.123456789"' in html
    assert 'data-value="Infinity"' in html
    assert 'data-value="NaN"' in html


class TestWithoutTruth:
    def test_what_was_found_is_shown_alone(self) -> None:
        page = Page(render(captured()))
        assert [image["alt"] for image in page.attributes("img")] == [
            f"Recovered from the update: recovered sample {i}" for i in (1, 2, 3)
        ]
        for expected in (
            "gives away the features of every picture that was found",
            "100 % of its features (certified)",
            "harbour",
            "of unknown size",
        ):
            assert expected in page.text
        for absent in ("True label", "correct", "PSNR (dB)", "largest measured", "there are"):
            assert absent not in page.text
        assert page.attributes("input") == []

    def test_an_answer_nobody_vouches_for_is_not_called_safe(self) -> None:
        page = Page(render(captured(exact=False, pictures=False)))
        assert "Not decidable" in page.text
        assert "no proof of safety" in page.text
        assert "0 %" not in page.text.split("What to do now")[0]
        assert page.attributes("img") == []

    @pytest.mark.parametrize("text", HOSTILE)
    def test_hostile_names_are_text(self, text: str) -> None:
        html = render(with_names(captured(), text))
        assert text not in html
        assert text in Page(html).text


def test_a_part_of_a_sample_is_not_called_unproven() -> None:
    audit = synthetic()
    rows = [replace(row, feature_error=0.9, label_correct=0.0) for row in audit.samples]
    half = replace(audit, samples=rows, shares=shares(0.5, 0.1, 0.19))
    assert half.verdict.level == "partial"
    assert half.verdict.headline == "This update gives away a part of 1 of its 3 pictures."
    assert replace(half, shares=shares(*[0.1] * 3)).verdict.level == "unproven"
