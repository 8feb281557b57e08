"""Sentences of the reports that no figure changes: what to do now, and the words in plain language."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files

from unsum.audit.leakage import DEFAULT_LEVEL
from unsum.audit.pictures import is_picture
from unsum.audit.result import AuditResult
from unsum.audit.verdict import Level
from unsum.audit.wording import percent
from unsum.deadline import LEFT_UNTRIED
from unsum.models.lpips import lpips_status


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
    "model has classes and its widest dense layer has units: a sum over fewer is as readable as one client's update."
)
_SWEEP = Advice(
    "Find out how strong a defense must be here, and what it costs in accuracy.",
    "unsum audit … --sweep noise=1e-5..1e-1",
)
_GATE = Advice(
    f"Keep it from coming back: fail the build when any sample leaks more than, say, {percent(DEFAULT_LEVEL)}.",
    f"unsum audit … --fail-above {DEFAULT_LEVEL:g}",
)
_MEASURE = Advice(
    "Measure with samples of your own whose truth you know: simulate the same round and compare.", "unsum audit"
)
_GRANT = Advice(
    "Where the batch is the reason, grant the attacker what a server may know (its size, the labels), or audit a smaller one.",
    "unsum audit … --batch-size-known",
)
_STRONGER = Advice("Try the other attacks, and more of the attacker's knowledge, before relying on it.", "unsum list")

_LEVELS: dict[Level, tuple[str, str, list[Advice]]] = {
    "severe": ("Severe leakage", "bold red", [_KEEP, _SUM, _SWEEP, _GATE]),
    "partial": ("Partial leakage", "bold yellow", [_KEEP, _SWEEP, _SUM, _GATE]),
    "labels": ("Label leakage", "bold yellow", [_KEEP, _SUM, _STRONGER, _GATE]),
    "low": ("Low leakage", "bold green", [_STRONGER, _GATE]),
    "open": ("Not decidable", "bold", [_KEEP, _GRANT, _MEASURE, _STRONGER]),
}
BLURRED = (
    "A leakage of 100 % is of the features: the attack read exactly what the model makes of the sample. The picture beside it is "
    "as good as the inverse that draws it from those features, and may be blurred where nothing is missing."
)
PRICED = (
    "Accuracy is that of a small network after a short federated training under the defense. It is measured without any defense "
    "and where every sample stays under the level."
)
BADGES = {level: badge for level, (badge, _, _) in _LEVELS.items()}
COLORS = {level: color for level, (_, color, _) in _LEVELS.items()}  # on a terminal


def advice(level: Level, *, truth_known: bool) -> list[Advice]:
    """What to do now, the most urgent first; who has the truth need not be told to bring it."""
    return [step for step in _LEVELS[level][2] if step is not _MEASURE or not truth_known]


def unpictured(audit: AuditResult) -> str:
    """Why the report shows no recovered pictures."""
    if not audit.leak.batch_size and not audit.leak.readings:
        return "No attack gave an answer, so there is nothing to show beside the samples."
    if audit.table is not None:
        return " ".join(audit.table.sentences)
    if audit.truth is not None and not any(is_picture(row.original) for row in audit.rows):
        return "The samples are no pictures; what came back of each is in the table below."
    if any(LEFT_UNTRIED in note for note in audit.leak.notes):
        return (
            "Time was over before the attack had drawn pictures; a larger --time-limit lets it go on. What it did recover is in "
            "the table below."
        )
    return (
        "No inverse fits this model, so the attack ends with features and makes no pictures. What it did recover is in the table "
        "below."
    )


def glossary() -> list[tuple[str, str]]:
    """Words and what they mean, in the order in which they are needed."""
    perceived = "A distance between pictures as a neural network perceives them; lower is closer."
    words = {
        "Federated learning": "Many clients (phones, hospitals) train one model together: each trains on its own "
        "data and sends only the change of the model to a server.",
        "Update": "What a client sends to the server after training on its own data; here, one gradient. The "
        "samples themselves never leave the client.",
        "Gradient": "The direction in which a client's samples would change each weight of the model: a sum over "
        "those samples.",
        "Sample": "One private item that the client trained on, such as a photo. A batch is the samples of one update.",
        "Leakage": "How much of what sets a sample apart from the client's other samples came back, from 0 % (no "
        "better than a typical sample of this client) to 100 % (the sample itself). It is measured on features and "
        "on pixels, and the larger one counts, of the strongest attack tried. Where no attack applies it is not known, "
        "which is shown as –, never as 0 %. A label that was found is not part of it.",
        "Label": "The class that the client assigned to a sample, such as what a photo shows.",
        "Feature": "The numbers that the model computes from one sample just before its last layer. The feature "
        "error is the distance between found and true features, relative to the true ones: 0 is perfect, 1 is no "
        "better than guessing zero. Cosine compares directions alone: 1 is the same.",
        "PSNR": "Peak signal-to-noise ratio in decibels: how close the pixels are, higher is closer. It is "
        "computed for each picture; the mean is the mean of these values.",
        "SSIM": "Structural similarity: whether edges and textures agree. 1 is the same picture, 0 is unrelated.",
        "LPIPS": " ".join(filter(None, [perceived, lpips_status()])),
        "Certificate": "The attacker's own statement that its answer is right. It is worked out from the update "
        "alone, so a real attacker would have it, too.",
        "Defense": "A change that the client makes before or while it computes the update, such as added noise.",
    }
    return list(words.items())


def credits_of(titles: list[str]) -> list[dict[str, str]]:
    """Author and license of every photo, if all carry titles of embedded ones, else nothing: somebody's own photos."""
    manifest = (files("unsum.data") / "photos" / "manifest.json").read_text("utf-8")
    known: dict[str, dict[str, str]] = {photo["title"]: photo for photo in json.loads(manifest)}
    return [known[title] for title in titles] if all(title in known for title in titles) else []
