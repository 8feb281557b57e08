"""The report's page, checked as text: every value in it, hostile names harmless, nothing loaded from elsewhere."""

from __future__ import annotations

import base64
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

from unsum.audit.report import render
from unsum.audit.result import Audit, Setting
from unsum.data import Batch
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.models.lpips import lpips_status, weights_file
from unsum.score import score, score_samples

HOSTILE = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>']
TITLES = ["a lighthouse", "two boats", "fog & rain"]
CLASSES = ["harbour", "boat", "weather", "unused"]


def pixels(seed: int, *shape: int) -> Tensor:
    """Pictures of whole grey levels, so that a PNG holds them without loss."""
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(seed)) / 255


def synthetic(*, found: int = 3, pictures: bool = True, channels: int = 3, titles: list[str] | None = None) -> Audit:
    """An attack on three samples that found the first `found` of them, in reverse order, with small errors."""
    features = torch.eye(3, 5) + 1
    targets = torch.tensor([0, 1, 2])
    images = pixels(0, 3, channels, 16, 16)
    recovered = pixels(1, 3, channels, 16, 16)
    order = list(reversed(range(found)))
    leak = Leak(
        method="exact",
        targets=torch.nn.functional.one_hot(targets, 4).double()[order],
        logits=torch.zeros(found, 4),
        features=features[order] * (1 + 2.5e-6),
        residual=3.5e-9,
        predicted_error=4.5e-6,
        exact=True,
        scale=0.125,
        seconds=1.25,
        knowledge=Knowledge(auxiliary_photos="12 of the neighbours"),
        images=recovered[order] if pictures else None,
        notes=[] if pictures else ["There are no pictures for this model: wrong backbone."],
    )
    setting = Setting(
        "tiny net", 3, 4, "train", "Clip(4)", "exact", 7, "abacus", "unsum audit --seed 7", {"torch": "9.8.7"}
    )
    truth = Batch(images, targets, titles or TITLES, CLASSES)
    compared = (images, targets, features)
    return Audit(setting, truth, leak, score_samples(leak, *compared), score(leak, *compared), 2.5)


class Page(HTMLParser):
    """The elements of a page with their attributes, and its text outside the style block."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.in_style = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.in_style = tag == "style"  # until the next element begins, which is soon enough: it holds no text

    def handle_data(self, data: str) -> None:
        self.text += "" if self.in_style else data

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def decode(uri: str | None) -> np.ndarray:
    assert uri is not None
    assert uri.startswith("data:image/png;base64,")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))


def levels(picture: Tensor) -> np.ndarray:
    """The grey levels of one (C, h, w) picture, as PIL lays them out."""
    return (picture * 255).round().byte().permute(1, 2, 0).squeeze(-1).numpy()


def test_page_says_everything() -> None:
    audit = synthetic()
    text = Page(render(audit)).text
    verdict = [audit.verdict.headline, *audit.verdict.details, "100 %", "Severe leakage"]
    facts = [*TITLES, *CLASSES[:3], *verdict, *audit.granted]
    figures = ["2.5e-06", "4.5e-06", "3.5e-09", "0.125", "1.25 s", "1.0000", f"{audit.scores['psnr']:.1f}", "exact: "]
    settings = ["tiny net", "Clip(4)", "train", "abacus", "unsum audit --seed 7", "torch 9.8.7", "3 samples, 4 classes"]
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


def test_grey_pictures_stay_grey() -> None:
    audit = synthetic(pictures=False, channels=1)
    images = Page(render(audit)).attributes("img")
    np.testing.assert_array_equal(decode(images[1]["src"]), levels(audit.truth.images[1]))


def test_values_are_clipped_and_rounded_and_nan_is_black() -> None:
    audit = synthetic()
    wild = audit.truth.images.clone()
    wild[0, :, 0, :4] = torch.tensor([-3.0, 7.0, math.nan, 100.9 / 255])
    page = Page(render(replace(audit, truth=replace(audit.truth, images=wild))))
    assert decode(page.attributes("img")[0]["src"])[0, :4].tolist() == [[0] * 3, [255] * 3, [0] * 3, [101] * 3]


def test_without_an_inverse_only_the_originals_are_shown() -> None:
    page = Page(render(synthetic(pictures=False)))
    assert [image["alt"] for image in page.attributes("img")] == [f"Original: {title}" for title in TITLES]
    assert "No inverse fits this model" in page.text
    assert "There are no pictures for this model: wrong backbone." in page.text
    assert "Recovered" not in page.text
    assert " dB" not in page.text
    assert "–" in page.text


def test_a_sample_that_was_not_found_has_a_placeholder() -> None:
    audit = synthetic(found=2)
    assert audit.samples[2].found is None
    page = Page(render(audit))
    assert len(page.attributes("img")) == 5
    assert page.text.count("not found") == 4  # in the picture's place, as its label, in the table and in the legend
    assert "is scored as what anybody could answer" in page.text
    assert "2 of its 3 samples" in page.text


def test_samples_that_are_no_pictures_get_a_placeholder() -> None:
    audit = synthetic(pictures=False)
    page = Page(render(replace(audit, truth=replace(audit.truth, images=torch.ones(3, 20)))))
    assert page.attributes("img") == []
    assert page.text.count("no picture") >= 3


@pytest.mark.parametrize("level", ["severe", "partial", "labels", "low"])
def test_the_level_is_worded_and_not_only_coloured(level: str) -> None:
    audit = synthetic(found=2 if level == "partial" else 3)
    if level in ("labels", "low"):
        right = float(level == "labels")
        audit = replace(audit, samples=[replace(row, feature_error=0.9, label_correct=right) for row in audit.samples])
    page = Page(render(audit))
    words = {"severe": "Severe", "partial": "Partial", "labels": "Label", "low": "Low"}
    assert audit.verdict.level == level
    assert f"{words[level]} leakage" in page.text
    assert f"verdict {level}" in [section.get("class") for section in page.attributes("section")]
    assert ("no proof of safety" in page.text) == (level != "severe")


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_are_text(text: str) -> None:
    audit = synthetic(titles=[text] * 3)
    truth = replace(audit.truth, class_names=[text] * 4)
    setting = replace(audit.setting, model=text, command=text, defenses=text, device=text, versions={text: text})
    leak = replace(audit.leak, notes=[text], knowledge=Knowledge(auxiliary_photos=text))
    html = render(replace(audit, truth=truth, setting=setting, leak=leak))
    page = Page(html)
    assert text not in html
    # Three titles in caption and table; three labels, true and found, in both; then model, defences and versions twice,
    # command, device, note and auxiliary photos once.
    assert page.text.count(text) == 3 * 2 + 3 * 2 * 2 + 3 * 2 + 4
    assert page.attributes("script") == []
    assert len(page.attributes("img")) == 6
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]


def test_nothing_comes_from_elsewhere() -> None:
    html = render(synthetic())
    page = Page(html)
    addresses = [
        value for _, attributes in page.elements for name, value in attributes.items() if name in ("src", "href")
    ]
    assert addresses
    assert all(value is not None and value.startswith(("data:", "#")) for value in addresses)
    assert not re.search(r"https?://|//cdn|url\(|@import", html)


def test_policy_admits_this_style_and_no_script() -> None:
    html = render(synthetic())
    policy = next(meta["content"] for meta in Page(html).attributes("meta") if "http-equiv" in meta)
    assert policy is not None
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-")
    assert "unsafe" not in policy
    assert "script-src" not in policy
    assert "<script" not in html
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
    for expected in ["0.35", "– dB", "-0.12", "0.46", "∞ (largest measured", "– of the gradient", "not exact: "]:
        assert expected in text
    assert not re.search(r"\bnan\b", text)


def test_audit_from_python_has_no_command() -> None:
    audit = synthetic()
    text = Page(render(replace(audit, setting=replace(audit.setting, command="")))).text
    assert "started from Python" in text
