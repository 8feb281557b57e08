"""Sentences of the reports that no figure changes: what to do now, and the words in plain language."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files

from unsum.audit.leakage import DEFAULT_LEVEL
from unsum.audit.verdict import Level
from unsum.models.lpips import lpips_status

BADGES: dict[Level, str] = {
    "severe": "Severe leakage",
    "partial": "Partial leakage",
    "labels": "Label leakage",
    "low": "Low leakage",
    "open": "Not decided",
}
COLORS: dict[Level, str] = {  # on a terminal
    "severe": "bold red",
    "partial": "bold yellow",
    "labels": "bold yellow",
    "low": "bold green",
    "open": "bold",
}


@dataclass(frozen=True)
class Advice:
    """A sentence, and a command that goes with it, if any."""

    text: str
    command: str = ""


_KEEP = Advice(
    "Treat updates like these as the personal data they were computed from: who may see them, how long they are kept, and what "
    "the people concerned are told."
)
_SUM = Advice(
    "Let the server see only sums over clients (secure aggregation) that hold several times as many samples together as the "
    "model has classes: a sum over fewer is as readable as one client's update."
)
_SWEEP = Advice(
    "Find out how strong a defense must be here, and what it costs in accuracy.",
    "unsum audit … --sweep noise=1e-5..1e-1",
)
_GATE = Advice(
    f"Keep it from coming back: fail the build when any sample leaks more than, say, {DEFAULT_LEVEL:.0%}".replace(
        "%", " %"
    )
    + ".",
    f"unsum audit … --fail-above {DEFAULT_LEVEL:g}",
)
_MEASURE = Advice(
    "Measure with samples of your own whose truth you know: simulate the same round and compare.", "unsum audit"
)
_STRONGER = Advice("Try the other attacks, and more of the attacker's knowledge, before relying on it.", "unsum list")


def advice(level: Level) -> list[Advice]:
    """The steps for a verdict, the most urgent first."""
    return {
        "severe": [_KEEP, _SUM, _SWEEP, _GATE],
        "partial": [_KEEP, _SWEEP, _SUM, _GATE],
        "labels": [_KEEP, _SUM, _STRONGER, _GATE],
        "low": [_STRONGER, _GATE],
        "open": [_MEASURE, _STRONGER, _KEEP],
    }[level]


def glossary() -> list[tuple[str, str]]:
    """Words and what they mean, in the order in which they are needed."""
    return [
        (
            "Federated learning",
            "Many clients (phones, hospitals) train one model together: each trains on its own data and sends only the change "
            "of the model to a server.",
        ),
        (
            "Update",
            "What a client sends to the server after training on its own data; here, one gradient. The samples themselves "
            "never leave the client.",
        ),
        (
            "Gradient",
            "The direction in which a client's samples would change each weight of the model: a sum over those samples.",
        ),
        (
            "Sample",
            "One private item that the client trained on, such as a photo. A batch is the samples of one update.",
        ),
        (
            "Leakage",
            "How much of what sets a sample apart from the client's other samples came back, from 0 % (no better than a typical "
            "sample of this client) to 100 % (the sample itself). It is measured on features and on pixels, and the larger one "
            "counts. A label that was found is not part of it.",
        ),
        ("Label", "The class that the client assigned to a sample, such as what a photo shows."),
        (
            "Feature",
            "The numbers that the model computes from one sample just before its last layer. The feature error is the distance "
            "between found and true features, relative to the true ones: 0 is perfect, 1 is no better than guessing zero. "
            "Cosine compares directions alone: 1 is the same.",
        ),
        (
            "PSNR",
            "Peak signal-to-noise ratio in decibels: how close the pixels are, higher is closer. It is computed for each "
            "picture; the mean is the mean of these values.",
        ),
        ("SSIM", "Structural similarity: whether edges and textures agree. 1 is the same picture, 0 is unrelated."),
        (
            "LPIPS",
            " ".join(
                filter(
                    None,
                    [
                        "A distance between pictures as a neural network perceives them; lower is closer.",
                        lpips_status(),
                    ],
                )
            ),
        ),
        (
            "Certificate",
            "The attacker's own statement that its answer is right. It is worked out from the update alone, so a real attacker "
            "would have it, too.",
        ),
        ("Defense", "A change that the client makes before or while it computes the update, such as added noise."),
    ]


def credits_of(titles: list[str]) -> list[dict[str, str]]:
    """Author and license of every photo, if all carry titles of embedded ones, else nothing: somebody's own photos."""
    manifest = (files("unsum.data") / "photos" / "manifest.json").read_text("utf-8")
    known: dict[str, dict[str, str]] = {photo["title"]: photo for photo in json.loads(manifest)}
    return [known[title] for title in titles] if all(title in known for title in titles) else []
