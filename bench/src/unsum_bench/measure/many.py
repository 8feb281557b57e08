"""Many batches of one cell at once: what a cell with `draws` of an attack on the head means.

Such an attack reads the head's gradient and nothing else, so a round is one forward pass: ∇W = Gᵀ F
and ∇b = Gᵀ 1 of the features F, under a fresh head for every draw. The rest of the network is
differentiated only where the defense looks at the whole update. Features are kept, since cells of
one table meet the same photos.

RGLA's equations of all draws are set up one after the other; then one Adam moves all their logits
together (`stacked`), so that a hundred batches take little longer than one; then each draw's
features are solved for. Other attacks run draw by draw.
"""

from __future__ import annotations

import statistics
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from unsum.client.capture import capture, in_mode
from unsum.head import Head, collect_features, find_head
from unsum.knowledge import Knowledge
from unsum.labels import labels as found_labels
from unsum.running.late_scipy import linear_sum_assignment
from unsum.running.progress import SILENT
from unsum.separate import separate
from unsum.separate.fgla import fgla
from unsum.separate.options import read_value
from unsum.separate.rgla import method as rgla
from unsum.separate.rgla.objective import WEIGHTS, LogitObjective, stacked
from unsum.update import Update
from unsum_bench.declare import Cell, Network
from unsum_bench.material import Material
from unsum_bench.measure.pictures import PictureScores, pictures_for
from unsum_bench.measure.round import Drawn, defenses, draw
from unsum_bench.networks import build

_RECOVERED = 0.01  # relative error of features below which a sample counts as recovered
_SEEDS = 1000  # seeds of one cell's draws stay apart from another's
_KEPT = 128  # draws whose features are kept, 8 MB each at the paper's size and B = 8
_WHOLE = ("clip", "prune-global")  # defenses that look at more than the head's own tensors
_NOTED = 25  # losses kept of a run, for the curve of its descent
_NEAR_THE_END = 10.0  # a run has arrived where its loss is within this factor of its last
# How the draws' figures become the cell's, where not by their mean.
_SUMMED: dict[str, Callable[[list[float]], float]] = {
    "worst_feature_error": max,
    "median_feature_error": statistics.median,
    "logit_error": statistics.median,
    "arrived": statistics.median,
    "loss": statistics.median,
}


@dataclass(frozen=True)
class HeadRound:
    """One draw: what the client has, and what it sent of its head."""

    drawn: Drawn
    images: Tensor
    labels: Tensor
    features: Tensor
    head: nn.Linear
    update: Update


@dataclass(frozen=True)
class HeadAnswer:
    """An attack's answer for one draw, in its own order."""

    features: Tensor
    logits: Tensor
    labels: Tensor


def many(cell: Cell, material: Material) -> dict[str, float]:
    """The figures of `cell.draws` batches: means with their standard errors (`NAME_se`), and how
    many batches there were."""
    spent: dict[str, float] = {}
    rows = list(batch_by_batch(cell, material, spent))
    times = {"attack_seconds": spent["wall"] / len(rows), "attack_cpu": spent["cpu"] / len(rows)}
    return _summed_up(rows) | times | {"batches": float(len(rows))}


def batch_by_batch(
    cell: Cell, material: Material, spent: dict[str, float], first: int = 0
) -> Iterator[dict[str, float]]:
    """The figures of one draw after the other, without the `first` ones; `spent` adds up the
    attack's seconds."""
    pictures = pictures_for(backbone(cell.network, material), cell.network.size, material)
    together = cell.attack.name == "rgla"
    answers = (
        _together(cell, material, spent) if together else _in_turn(cell, material, spent, first)
    )
    for one, found, more in islice(answers, first if together else 0, None):
        yield {**_scores(one, found, pictures), **more}


def _summed_up(rows: list[dict[str, float]]) -> dict[str, float]:
    values: dict[str, float] = {}
    for name in rows[0]:
        found = [row[name] for row in rows]
        over = (
            statistics.median
            if name.startswith("loss_at_")
            else _SUMMED.get(name, statistics.fmean)
        )
        values[name] = over(found)
        if len(found) > 1 and over is statistics.fmean:
            values[f"{name}_se"] = statistics.stdev(found) / len(found) ** 0.5
    return values


def rounds(cell: Cell, material: Material, first: int = 0) -> Iterator[HeadRound]:
    """The draws in their order, without the `first` ones; the same ones each time."""
    for number in range(first, cell.draws):
        yield play_head(replace(cell, seed=cell.seed * _SEEDS + number), material)


def play_head(cell: Cell, material: Material) -> HeadRound:
    """One draw: photos and noise depend on seed and defense alone, and the head on the seed."""
    model = backbone(cell.network, material)
    photos = replace(
        cell,
        attack=replace(cell.attack, name="", options=(), title=""),
        defense="none",
        same=0,
        draws=1,
    )
    drawn, images, labels, features = _features(photos, material)
    if cell.same:
        labels = torch.cat([labels[:1].expand(cell.same), labels[cell.same :]])
    torch.manual_seed(cell.seed)
    head = nn.Linear(features.shape[1], cell.network.classes, device=material.device)
    parts = defenses(cell.defense)
    noise_seed = cell.seed + zlib.crc32(cell.defense.encode())
    if cell.defense.partition(":")[0] in _WHOLE:
        name = find_head(model)[0]
        model.set_submodule(name, head)
        torch.manual_seed(noise_seed)
        whole = capture(model, images, labels, train=cell.network.train, defenses=parts)
        update = Update({part: whole.gradients[f"{name}.{part}"] for part in ("weight", "bias")})
    else:
        torch.manual_seed(noise_seed)
        update = capture(head, features, labels, defenses=parts)
    return HeadRound(drawn, images, labels, features, head, update)


@lru_cache(maxsize=2)
def backbone(network: Network, material: Material) -> nn.Module:
    """The network on its device; its head is replaced by every draw's own."""
    model = build(network, seed=0, weights=material.weights).to(material.device)
    return model.train(network.train)


@lru_cache(maxsize=_KEPT)
def _features(cell: Cell, material: Material) -> tuple[Drawn, Tensor, Tensor, Tensor]:
    """What was drawn; its images, labels and features on the device."""
    drawn = draw(cell, material)
    images = drawn.images.to(material.device)
    features = _features_of(backbone(cell.network, material), images, cell.network.train)
    return drawn, images, drawn.labels.to(material.device), features


def _features_of(model: nn.Module, images: Tensor, train: bool) -> Tensor:
    with in_mode(model, train), torch.no_grad():
        return collect_features(model, images).flatten(1)


Answers = Iterator[tuple[HeadRound, HeadAnswer, dict[str, float]]]


def _options(cell: Cell, material: Material) -> dict[str, Any]:
    return dict(cell.attack.options) | {
        key: read_value(value) for key, value in material.options_of(cell)
    }


def _known(cell: Cell, one: HeadRound) -> dict[str, Any]:
    """The labels and the batch size as far as the attack is granted them, or what its label rule
    finds."""
    if cell.attack.rule:
        found = found_labels(
            one.head, one.update, cell.attack.rule, batch_size=len(one.labels), seed=cell.seed
        )
        return {"labels": found.to(one.labels.device)}
    if cell.attack.granted == "labels":
        return {"labels": one.labels}
    return {"batch_size": len(one.labels)} if cell.attack.granted == "batch size" else {}


def _in_turn(cell: Cell, material: Material, spent: dict[str, float], first: int) -> Answers:
    """Any attack, draw by draw."""
    for number, one in enumerate(rounds(cell, material, first), first):
        known = _known(cell, one)
        with _clock(material, spent):
            options = _options(cell, material)
            leak = separate(one.head, one.update, cell.attack.name, seed=number, **known, **options)
        yield one, HeadAnswer(leak.features, leak.logits, leak.labels), {"exact": float(leak.exact)}


def _together(cell: Cell, material: Material, spent: dict[str, float]) -> Answers:
    """RGLA on all draws: their equations, one Adam for all, then the features of each."""
    options = _options(cell, material)
    parts = options.get("objectives", rgla.EVERYTHING)
    weights = {name: float(options.get(f"weight_{name}", usual)) for name, usual in WEIGHTS.items()}
    start, constant_D = str(options.get("start", "randn")), bool(options.get("constant_D", True))
    steps, rate = int(options.get("steps", rgla.STEPS)), float(options.get("rate", rgla.RATE))
    objectives, begins, known = [], [], []
    for number, one in enumerate(rounds(cell, material)):
        labels = _known(cell, one)["labels"]
        with _clock(material, spent):
            head = Head.of(one.head, one.update)
            objective = LogitObjective.of(head, labels, parts, torch.float32, weights)
            given = _start_logits(start, cell, one, labels, material)
            knowledge = Knowledge(labels=labels)
            begins.append(rgla.starting_logits(start, given, head, knowledge, objective.Y, number))
        objectives.append(replace(objective, constant_D=constant_D))
        known.append(labels)
    together = stacked(objectives)
    record = rgla.Record(together, SILENT)
    with _clock(material, spent):
        every = max(1, steps // 200)
        how: dict[str, Any] = {
            "steps": steps,
            "rate": rate,
            "every": every,
            "stop_below": None,
            "record": record,
        }
        logits = rgla.minimize(together, torch.stack(begins), **how)
    sums = together.total(torch.stack(record.losses)).cpu()  # (S, N)
    near = (sums <= _NEAR_THE_END * sums[-1]).int().argmax(0)
    for number, one in enumerate(rounds(cell, material)):
        with _clock(material, spent):
            D = objectives[number].difference(logits[number].double().softmax(1))
            features = Head.of(one.head, one.update).mixed_rows(torch.linalg.pinv(D.mT))
        ended = {"loss": float(sums[-1, number]), "arrived": float(record.steps[int(near[number])])}
        noted = range(0, len(record.steps), max(1, len(record.steps) // _NOTED))
        ended |= {f"loss_at_{record.steps[i]}": float(sums[i, number]) for i in noted}
        yield one, HeadAnswer(features.float(), logits[number], known[number]), ended


def _start_logits(
    start: str, cell: Cell, one: HeadRound, labels: Tensor, material: Material
) -> Tensor | None:
    """What the model answers to photos of the attacker's own, or to FGLA's pictures, where RGLA
    starts from there."""
    model = backbone(cell.network, material)
    if start == "photos":
        pictures = one.drawn.others[0][: len(labels)].to(material.device)
    elif start == "reconstruction":
        drawing = pictures_for(model, cell.network.size, material).required()
        ratio = fgla(Head.of(one.head, one.update), Knowledge(labels=labels), seed=0)
        pictures = drawing(ratio.features.float())
    else:
        return None
    with torch.no_grad():
        answer: Tensor = one.head(_features_of(model, pictures, cell.network.train))
    return answer


class _clock:  # noqa: N801 (a context manager, read as a word)
    """Adds what the block takes to `spent`, on the wall and of this process."""

    def __init__(self, material: Material, spent: dict[str, float]) -> None:
        self._cuda, self._spent = material.device.startswith("cuda"), spent

    def _now(self) -> tuple[float, float]:
        if self._cuda:
            torch.cuda.synchronize()
        return time.perf_counter(), time.process_time()

    def __enter__(self) -> None:
        self._start = self._now()

    def __exit__(self, *_: object) -> None:
        for name, before, after in zip(("wall", "cpu"), self._start, self._now(), strict=True):
            self._spent[name] = self._spent.get(name, 0.0) + after - before


@torch.no_grad()
def _scores(one: HeadRound, found: HeadAnswer, pictures: PictureScores) -> dict[str, float]:
    """The figures of one draw; a sample that was not found counts as zeros, and as a gray
    picture."""
    true, device = one.features.double(), one.features.device
    features = found.features.to(device).double()
    partner = _partners(features, true)
    missing = partner < 0
    read = features[partner.clamp_min(0)]
    read[missing] = 0
    errors = (read - true).norm(dim=1) / true.norm(dim=1)
    own = one.head(one.features).double()
    logits = found.logits.to(device).double()[partner.clamp_min(0)]
    logits[missing] = 0
    right = (found.labels.to(device)[partner.clamp_min(0)] == one.labels) & ~missing
    squared = float((logits - own).square().sum())
    return {
        "labels": float(right.double().mean()),
        "feature_error": float(errors.mean()),
        "median_feature_error": float(errors.median()),
        "worst_feature_error": float(errors.max()),
        "recovered": float((errors < _RECOVERED).double().mean()),
        "cosine": float(torch.cosine_similarity(read, true).mean()),
        "logit_error": squared,
        "logit_error_a_sample": squared / len(true),
        "batch_size_error": float(len(features) - len(true)),
        **pictures.scores(read.float(), missing, one.images),
    }


def _partners(found: Tensor, true: Tensor) -> Tensor:
    """(B,) places in `found` by the cheapest pairing, −1 where it has too few; as
    `unsum.score.assign`, on the device."""
    energy = true.square().sum(1, keepdim=True)
    distances = energy + found.square().sum(1) - 2 * true @ found.T
    cost = torch.nan_to_num(torch.minimum(distances, energy), nan=float(energy.max())).cpu().numpy()
    partner = torch.full((len(true),), -1)
    rows, columns = linear_sum_assignment(cost)
    partner[torch.as_tensor(rows)] = torch.as_tensor(columns)
    return partner.to(true.device)
