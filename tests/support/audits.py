"""Constructed audits that tests of every output share: with the truth, and without it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from unsum.audit.leakage import Shares, Truth, leakages
from unsum.audit.report import Audit
from unsum.audit.result import Setting
from unsum.ceiling import Ceiling
from unsum.data import Batch
from unsum.defend.added import AddedNoise
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.score import score, score_samples

TITLES = ["a lighthouse", "two boats", "fog & rain"]
CLASSES = ["harbour", "boat", "weather", "unused"]


def pixels(seed: int, *shape: int) -> Tensor:
    """Pictures of whole gray levels, so that a PNG holds them without loss."""
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(seed)) / 255


def synthetic(
    *, found: int = 3, pictures: bool = True, channels: int = 3, titles: list[str] | None = None
) -> Audit:
    """An attack on three samples that found the first `found` of them, in reverse order, with small
    errors."""
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
        knowledge=Knowledge(auxiliary_photos="12 of the neighbors"),
        images=recovered[order] if pictures else None,
        notes=[] if pictures else ["There are no pictures for this model: wrong backbone."],
    )
    setting = Setting(
        "tiny net",
        3,
        4,
        "train",
        "Clip(4)",
        "exact",
        7,
        "abacus",
        "unsum audit --seed 7",
        {"torch": "9.8.7"},
    )
    truth = Batch(images, targets, titles or TITLES, CLASSES)
    compared = (images, targets, features)
    samples = score_samples(leak, *compared)
    got = leakages(leak, samples, Truth(images, features))
    return Audit(setting, truth, leak, samples, score(leak, *compared), 2.5, got)


def captured(*, exact: bool = True, pictures: bool = True, names: list[str] | None = None) -> Audit:
    """The same attack on an update that came without the truth."""
    audit = synthetic(pictures=pictures)
    leak = replace(audit.leak, exact=exact, predicted_error=1e-3 if exact else 0.7)
    return replace(
        audit, truth=None, samples=[], scores={}, shares=[], leak=leak, class_names=names or CLASSES
    )


def bounded(*limits: float, pairs: int = 96, **what: Any) -> Ceiling:
    """Ceilings that were measured, under noise."""
    samples = torch.tensor(limits, dtype=torch.float64)
    unknown = torch.full_like(samples, math.nan)
    given: dict[str, Any] = {"noise": AddedNoise("gaussian", 0.5), "unit": "picture"} | what
    return Ceiling(samples, unknown, pairs, samples * 0.5, unknown, **given)


def shares(*leakages: float) -> list[Shares]:
    """Of the samples themselves."""
    return [Shares(sample=value) for value in leakages]


def with_names(audit: Audit, text: str) -> Audit:
    """The same with `text` in the place of everything that comes from outside."""
    setting = replace(
        audit.setting, model=text, command=text, defenses=text, device=text, versions={text: text}
    )
    leak = replace(audit.leak, notes=[text], knowledge=Knowledge(auxiliary_photos=text))
    if audit.truth is None:
        return replace(audit, setting=setting, leak=leak, class_names=[text] * 4)
    truth = replace(audit.truth, titles=[text] * len(audit.truth.titles), class_names=[text] * 4)
    return replace(audit, setting=setting, leak=leak, truth=truth)
