"""Where a report comes from: hashes that follow the numbers, and an ε only where one is
promised."""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
import torch
from scipy import integrate

import unsum
from support.audits import synthetic
from unsum.audit.provenance import DELTA, Provenance, fingerprint, gaussian_epsilon, promised
from unsum.audit.report import render, render_markdown
from unsum.defend import Clip, ClipLayers, Laplace, Mixup, Noise, Prune, Quantize, Sign, Soteria
from unsum.defend.platforms import FlowerLocalDP


def test_a_hash_is_of_the_numbers_as_they_are_written_down() -> None:
    by_hand = hashlib.sha256(
        b"b\0int64\0\0"
        + struct.pack("<q", 7)
        + b"w\0float32\0001\xc3\x972\0"
        + struct.pack("<2f", 1, -2)
    )
    assert (
        fingerprint({"w": torch.tensor([[1.0, -2.0]]), "b": torch.tensor(7)}) == by_hand.hexdigest()
    )
    assert fingerprint({"w": torch.zeros(2, 3)}) != fingerprint({"w": torch.zeros(3, 2)})
    assert fingerprint({"w": torch.zeros(2)}) != fingerprint({"v": torch.zeros(2)})
    half = torch.tensor([1.0, 2.0], dtype=torch.bfloat16)
    assert fingerprint({"w": half}) != fingerprint({"w": half.float()})
    columns = torch.arange(6.0).reshape(2, 3).t()  # not contiguous
    assert fingerprint({"w": columns}) == fingerprint({"w": columns.contiguous()})


@pytest.mark.parametrize("ratio", [0.1, 0.5, 1.0, 3.0])
def test_epsilon_is_the_least_that_holds(ratio: float) -> None:
    """δ(ε) = ∫ max(0, p(x) − e^ε q(x)) dx of two normal densities, integrated."""

    def delta(epsilon: float) -> float:
        def excess(x: float) -> float:
            p, q = (
                math.exp(-((x - mean) ** 2) / 2) / math.sqrt(2 * math.pi) for mean in (ratio, 0.0)
            )
            return max(0.0, p - math.exp(epsilon) * q)

        return float(
            integrate.quad(excess, -10, 12, limit=400, points=[epsilon / ratio + ratio / 2])[0]
        )

    found = gaussian_epsilon(ratio, DELTA)
    assert delta(found) <= DELTA
    assert delta(found * 0.98) > DELTA


def test_epsilon_of_known_mechanisms() -> None:
    # two updates of this client lie at most 2 apart: one deviation
    clipped = promised([Clip(1.0), Noise(2.0)])
    assert clipped.epsilon == 4.38
    assert "ε = 4.38 at δ = 1e-05 for whatever data this client may have" in clipped.sentence
    assert promised([Clip(1.0) | Noise(2.0)]).epsilon == 4.38
    # what comes after adds nothing
    assert promised([Clip(1.0), Prune(0.5), Noise(2.0), Sign()]).epsilon == 4.38
    assert promised([ClipLayers(1.0), Noise(4.0)], tensors=4).epsilon == 4.38
    assert "next to nothing" in promised([Clip(1.0), Noise(1e-3)]).sentence
    assert "next to nothing" not in clipped.sentence
    assert promised([FlowerLocalDP()]).epsilon == gaussian_epsilon(
        2 / FlowerLocalDP().deviation, DELTA
    )
    single, four = promised([unsum.DPSGD(1.0)]), promised([unsum.DPSGD(2.0)], steps=4)
    assert (single.epsilon, four.epsilon) == (4.38, 4.38)  # √4 / 2 deviations
    assert "for one sample more or less" in single.sentence


@pytest.mark.parametrize(
    ("chain", "reason"),
    [
        ([], "No ε: nothing clips, and nothing adds noise."),
        ([Noise(100.0)], "No ε: nothing clips, so that no noise is large enough"),
        ([Clip(1.0)], "No ε: nothing adds noise."),
        ([Clip(1.0), Noise(0.0)], "No ε: nothing adds noise."),
        ([Noise(1.0), Clip(1.0)], "does not come right after"),
        # rounding can make a norm larger
        ([Clip(1.0), Quantize(4), Noise(1.0)], "does not come right after"),
        ([Clip(1.0), Laplace(1.0)], "Laplace noise needs"),
        ([unsum.DPSGD(0.0)], "nothing adds noise"),
        ([Mixup(0.5), unsum.DPSGD(1.0)], "comes before the samples are clipped one by one"),
        ([Soteria(0.5), Clip(1.0), Noise(1.0)], "No ε was worked out"),
    ],
)
def test_no_epsilon_that_is_not_promised(chain: list[Any], reason: str) -> None:
    told = promised(chain)
    assert told.epsilon is None
    assert reason in told.sentence


def test_statistics_that_are_sent_along_have_no_epsilon() -> None:
    assert "BatchNorm's statistics" in promised([Clip(1.0), Noise(2.0)], buffers=True).sentence


def test_an_audit_says_what_it_was_of() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 20)
    data = torch.randn(3, 64), torch.tensor([4, 4, 1])
    report = unsum.audit(model, data)
    made = report.setting.provenance
    assert made.model_sha256 == fingerprint(model.state_dict())
    assert made.data_sha256 == fingerprint({"inputs": data[0], "targets": data[1]})
    assert made.update_sha256 == fingerprint(unsum.capture(model, *data).gradients)
    assert made.privacy == "No ε: nothing clips, and nothing adds noise."
    assert datetime.fromisoformat(made.date).tzinfo is not None
    assert report.to_dict()["setting"]["provenance"]["model_sha256"] == made.model_sha256

    captured = unsum.audit(model, update=unsum.capture(model, *data)).setting.provenance
    assert (captured.update_sha256, captured.data_sha256) == (made.update_sha256, "")
    assert captured.privacy == "Unknown: the update was captured elsewhere."

    noisy = unsum.audit(model, data, defenses=[Clip(1.0), Noise(2.0)]).setting.provenance
    assert noisy.epsilon == 4.38
    assert noisy.update_sha256 != made.update_sha256


def test_the_weights_are_hashed_as_the_client_got_them() -> None:
    """BatchNorm's running statistics move while the client trains."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 9)
    )
    before = fingerprint(net.state_dict())
    report = unsum.audit(net, (torch.randn(4, 8), torch.tensor([0, 1, 2, 3])))
    assert report.setting.provenance.model_sha256 == before


def test_pages_show_it() -> None:
    made = Provenance(
        "2026-11-18T12:00:00+00:00", "a" * 64, "b" * 64, "c" * 64, None, "No ε: nothing clips."
    )
    audit = synthetic()
    audit = replace(audit, setting=replace(audit.setting, provenance=made))
    for shown in (render(audit), render_markdown(audit)):
        assert "2026-11-18 12:00:00 UTC" in shown
        assert "a" * 64 in shown
        assert "b" * 64 in shown
        assert "c" * 64 in shown
        assert "No ε: nothing clips." in shown
