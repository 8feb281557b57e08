"""What nobody can exceed: ceilings of usual networks over the noise, beside what is found,
accuracy, and published bounds.

python -m unsum_bench.scripts.ceilings --json ceilings.json
python -m unsum_bench.scripts.ceilings --parts lenet published --photos photos.npz \\
    --json ceilings.json
python -m unsum_bench.scripts.ceilings time        # what they cost: see `ceiling_time`

Distances are measured once for every network and training, of one sample of the batch, and hold for
every noise. A part whose figures are in the record (`--json`) is not measured again. `--photos` is
an npz with `images` (n, h, w, 3) or (n, 3, h, w); the embedded photos otherwise.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import unsum
from unsum.audit.sweep.task import photo_tiles, scale_to, train
from unsum.ceiling.bound import Distances, limits_of
from unsum.ceiling.client import Client, SimulatedClient, TextClient, World
from unsum.ceiling.coin import Separation
from unsum.ceiling.secret import Presence, Secret
from unsum.ceiling.simulation import Simulation
from unsum.ceiling.worst_case import WorstCase
from unsum.client.capture import capture
from unsum.data import embedded_batch, tags
from unsum.defend.added import AddedNoise
from unsum.local_training import LocalTraining
from unsum.models import load_model
from unsum_bench.scripts import ceiling_time

SIGMAS = (1e-4, 1e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)
LEVEL = 0.2
CLASSES = len(tags())  # of the embedded photos, as `unsum audit` takes them
_MOST = 1e6  # of the noise that is looked at
Row = dict[str, Any]


@dataclass(frozen=True)
class Network:
    """A client whose first sample is bounded."""

    name: str
    case: Simulation
    pairs: int

    def rows(self, trainings: dict[str, LocalTraining | None]) -> list[Row]:
        return [self.row(name, training) for name, training in trainings.items()]

    def row(self, name: str, training: LocalTraining | None = None) -> Row:
        start, case = time.process_time(), self.case
        client = SimulatedClient(case.model, case.train, training, case.loss)
        distances = Distances(client, case.world, [case.secrets()[0]])
        while distances.count(0, "own") < self.pairs:  # and as many around worlds at random
            distances.cycle(0)
        return {"network": self.name, "training": name,
        "pairs": distances.pairs} | self.over(distances) | {
            "label": self._label(distances), "seconds": time.process_time() - start,
        }  # fmt: skip

    def over(self, distances: Distances) -> Row:
        """Mean and upper limit over the noises, and the noise from which less than the level is
        proven."""
        limits = [limits_of(distances, AddedNoise("gaussian", sigma))[0].upper for sigma in SIGMAS]
        means = [distances.means(0, AddedNoise("gaussian", sigma)) for sigma in SIGMAS]
        return {"mean": means, "limit": limits, "proven": proven(distances)}

    def _label(self, distances: Distances) -> list[float]:
        labels = self.case.labels()
        return [] if labels is None else chances(distances.client, self.case.world, labels[0])


def proven(distances: Distances) -> float:
    """The least noise, to a hundredth, for which the limit lies below the level."""
    low, high = math.log(1e-6), math.log(_MOST)
    while high - low > 0.01:
        middle = (low + high) / 2
        below = limits_of(distances, AddedNoise("gaussian", math.exp(middle)))[0].upper < LEVEL
        low, high = (low, middle) if below else (middle, high)
    return math.exp(high)


def chances(client: Client, world: World, secret: Secret) -> list[float]:
    """The largest chance to name the secret's value, over the noises."""
    one = Distances(client, world, [secret])
    one.cycle(0)
    return [limits_of(one, AddedNoise("gaussian", sigma))[0].guess for sigma in SIGMAS]


# Networks and data.


def photos(path: Path | None, count: int, side: int = 32) -> tuple[Tensor, Tensor]:
    """(count, 3, side, side) in [0, 1], with labels."""
    if path is None:
        batch = embedded_batch(count, image_size=side)
        return batch.images, batch.targets
    held = np.load(path)
    images = torch.from_numpy(np.ascontiguousarray(held["images"][:count])).float()
    images = images.permute(0, 3, 1, 2) if images.shape[-1] == 3 else images
    images = nn.functional.interpolate(
        images / (255 if images.max() > 1 else 1), size=(side, side), mode="area"
    )
    return images, torch.arange(count) % 10


def lenet(activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Module:
    """Zhu et al.'s LeNet (2019): three convolutions, 12 × 8 × 8 to the head; ten classes. Theirs
    has sigmoids."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, stride in ((3, 2), (12, 2), (12, 1)):
        layers += [nn.Conv2d(inputs, 12, 5, padding=2, stride=stride), activation()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(768, 10))


def a_little(model: nn.Module, images: Tensor, targets: Tensor, steps: int = 60) -> nn.Module:
    """The same after some steps of Adam."""
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    order = torch.Generator().manual_seed(0)
    for _ in range(steps):
        chosen = torch.randint(len(images), (32,), generator=order)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[chosen]), targets[chosen]).backward()
        optimizer.step()
    return model


def tiles() -> tuple[Tensor, Tensor]:
    return photo_tiles().train


ONE_STEP: dict[str, LocalTraining | None] = {"one step": None}
TRAININGS = ONE_STEP | {
    "4 steps": LocalTraining(0.01, 4),
    "4 epochs": LocalTraining(0.01, 4, epochs=4),
    "4 epochs, momentum": LocalTraining(0.01, 4, momentum=0.9, epochs=4),
}


def of_lenet(options: argparse.Namespace) -> list[Row]:
    images, targets = photos(options.photos, 8)
    fresh = Network("LeNet, untrained", Simulation(lenet(), images, targets % 10), 64)
    task = tiles()
    known = a_little(lenet(), task[0], task[1] % 10)
    return fresh.rows(TRAININGS) + Network(
        "LeNet, trained a little", Simulation(known, images, targets % 10), 64
    ).rows(ONE_STEP)


def of_default(_options: argparse.Namespace) -> list[Row]:
    loaded = load_model("default", classes=CLASSES)
    batch = embedded_batch(8, image_size=loaded.image_size)
    return Network("default", Simulation(loaded.model, batch.images, batch.targets), 64).rows(
        ONE_STEP
    )


def of_resnet(options: argparse.Namespace) -> list[Row]:
    images, targets = photos(options.photos, 8)
    model = load_model("torchvision:resnet18", classes=10, size=32).model
    task = tiles()
    network = Network("ResNet-18 at 32², untrained", Simulation(model, images, targets % 10), 64)
    rows = network.rows(ONE_STEP)
    known = a_little(model, task[0], task[1] % 10, steps=20)
    return rows + Network(
        "ResNet-18 at 32², trained a little", Simulation(known, images, targets % 10), 64
    ).rows(ONE_STEP)


def of_large(options: argparse.Namespace) -> list[Row]:
    batch = embedded_batch(8, image_size=224)
    model = load_model("torchvision:resnet18", classes=len(batch.class_names), size=224).model
    return Network(
        "ResNet-18 at 224², untrained",
        Simulation(model, batch.images, batch.targets),
        options.large,
    ).rows(ONE_STEP)


def of_table(_options: argparse.Namespace) -> list[Row]:
    """12 standardized numbers and two classes, 32 rows: a cell, a label, and who took part."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
    )
    x = torch.randn(32, 12)
    case = Simulation(model, x, (x[:, 0] > 0).long(), spread=1.0)
    row = Network("table, 12-64-64-2, B = 32", case, 64).row("one step")
    return [row | {"present": chances(case.client([]), case.world, Presence(case.world, 0))}]


def of_text(_options: argparse.Namespace) -> list[Row]:
    """Four texts of 16 tokens, two blocks of a GPT of width 64 with 1 000 tokens."""
    transformers = __import__("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=1000, n_positions=32, n_embd=64, n_layer=2, n_head=2
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    tokens = torch.randint(1000, (4, 16))
    case = Simulation(model, tokens, tokens, train=False, text=True)
    distances = Distances(TextClient(model, train=False), case.world, [case.secrets()[0]])
    for _ in range(16):
        distances.cycle(0)
    guesses = [limits_of(distances, AddedNoise("gaussian", sigma))[0].guess for sigma in SIGMAS]
    rows = Network("GPT, 2 blocks of 64, 4 × 16 tokens", case, 16).over(distances)
    return [
        {
            "network": "GPT, 2 blocks of 64, 4 × 16 tokens",
            "training": "one step",
            "pairs": 16,
            "guess": guesses,
        }
        | rows
    ]


# Beside what is found, and beside published bounds.


def of_found(_options: argparse.Namespace) -> list[Row]:
    """The default audit under noise, its ceilings, and the accuracy of the sweep's small task under
    the same."""
    loaded = load_model("default", classes=CLASSES)
    bound = unsum.ceiling(noise=1.0, pairs=64, time_limit=math.inf)  # of the same eight photos
    batch = embedded_batch(8, image_size=loaded.image_size)
    task = photo_tiles()
    scale = scale_to(task, capture(loaded.model, batch.images, batch.targets))
    rows: list[Row] = []
    alone = unsum.AuditLimits(ceiling=False)
    for sigma in (1e-3, 0.03, 0.09, 0.3, 1.0, 3.0, 10.0):
        audit = unsum.audit(defenses=unsum.Noise(sigma), seed=0, limits=alone)
        limits = bound.under(AddedNoise("gaussian", sigma))
        right = sum(score.label_correct == 1 for score in audit.samples)
        accuracy = train(task, [unsum.Noise(sigma)], scale=scale).mean
        found = {
            "found": max(audit.leakages),
            "mean": float(np.mean(audit.leakages)),
            "labels": int(right),
        }
        found |= {"ceiling": limits.highest, "ceiling_mean": limits.mean}
        rows.append({"sigma": sigma, "accuracy": accuracy} | found)
    return rows


def of_published(options: argparse.Namespace) -> list[Row]:
    """The same pairs of LeNet's, with derivatives in the place of differences, and with a clip in
    the place of distances.

    Fisher information (Guo et al. 2022): ‖J e_k‖²/σ² of component k, others known, from a central
    difference of 1/1000 of its deviation in float64; with a Gaussian prior of variance h² it leaves
    1/(1 + h² ‖J e_k‖²/σ²) (van Trees).
    """
    images, targets = photos(options.photos, 8)
    task = tiles()
    rows: list[Row] = []
    networks = {
        "LeNet, untrained": lenet(),
        "LeNet with sigmoids, untrained": lenet(nn.Sigmoid),
        "LeNet, trained a little": a_little(lenet(), task[0], task[1] % 10),
    }
    for name, network in networks.items():
        model = network.double()
        case = Simulation(model, images.double(), targets % 10)
        client, secret = SimulatedClient(model), case.secrets()[0]
        whole = Distances(client, case.world, [secret])
        small = Distances(client, case.world, [_smaller(secret)])
        while whole.count(0, "own") < 64:  # around the photo itself, where the derivative is
            whole.cycle(0, "own")
            small.cycle(0, "own")
        norm = math.sqrt(sum(float(g.square().sum()) for g in client(case.world).noisy.values()))
        for sigma in SIGMAS:
            noise = AddedNoise("gaussian", sigma)
            ours = float(np.mean([one.known(noise) for one in whole.found[0]]))
            fisher = float(np.mean([_gaussian(one, sigma) for one in small.found[0]]))
            clip = WorstCase(2 * norm / sigma, "")
            row = {"network": name, "sigma": sigma, "ceiling": ours, "fisher": fisher}
            rows.append(row | {"clip": clip.leakage, "guess": clip.success(0.1)})
    return rows


_SMALL = 1e-3  # of a deviation: a difference as good as a derivative


def _smaller(secret: Secret) -> Secret:
    return replace(secret, amplitude=_SMALL)  # type: ignore[type-var]


def _gaussian(one: Separation, sigma: float) -> float:
    information = one.squared / (2 * _SMALL * sigma) ** 2  # h² ‖J e‖²/σ²
    return information / (1 + information)


PARTS: dict[str, Callable[[argparse.Namespace], list[Row]]] = {
    "lenet": of_lenet,
    "default": of_default,
    "table": of_table,
    "text": of_text,
    "published": of_published,
    "resnet": of_resnet,
    "found": of_found,
    "large": of_large,
}


# Tables.


def percent(value: float) -> str:
    return f"{100 * value:.0f} %" if value >= 0.0095 else f"{100 * value:.1f} %"


def heading(first: str) -> list[str]:
    return [
        f"| {first} | " + " | ".join(f"σ = {sigma:g}" for sigma in SIGMAS),
        "|---|" + "--:|" * len(SIGMAS),
    ]


def networks_table(rows: list[Row]) -> str:
    lines = [heading("network, training")[0] + " | under 20 % from |", heading("")[1] + "--:|"]
    for row in rows:
        cells = [
            f"{percent(m)} (≤ {percent(u)})" for m, u in zip(row["mean"], row["limit"], strict=True)
        ]
        edge = f"{row['proven']:.2g}" if row["proven"] < _MOST / 2 else "not with so few pairs"
        lines.append(
            f"| {row['network']}, {row['training']} | " + " | ".join(cells) + f" | {edge} |"
        )
    return "\n".join(lines)


def chances_table(rows: list[Row]) -> str:
    lines = [heading("told apart, at most")[0] + " |", heading("")[1]]
    what = {"label": "a label", "present": "who took part", "guess": "a token"}
    for row in rows:
        for name, shown in what.items():
            if row.get(name) and row["training"] == "one step":
                lines.append(
                    f"| {row['network']}: {shown} | "
                    + " | ".join(f"{v:.3f}" for v in row[name])
                    + " |"
                )
    return "\n".join(lines)


def found_table(rows: list[Row]) -> str:
    lines = [
        "| σ | found, most | ceiling, most | found, mean | ceilings, mean | labels | accuracy |",
        "|--:|" + 6 * "--:|",
    ]
    for row in rows:
        lines.append(
            f"| {row['sigma']:g} | {percent(row['found'])} | ≤ {percent(row['ceiling'])} | "
            f"{percent(row['mean'])} | ≤ {percent(row['ceiling_mean'])} | {row['labels']} of 8 | "
            f"{percent(row['accuracy'])} |"
        )
    return "\n".join(lines)


def published_table(rows: list[Row]) -> str:
    lines = [
        (
            "| network | σ | two worlds | Fisher information | clip at the update's norm | one of "
            "ten guessed |"
        ),
        "|---|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        lines.append(
            f"| {row['network']} | {row['sigma']:g} | {percent(row['ceiling'])} | "
            f"{percent(row['fisher'])} | {percent(row['clip'])} | {percent(row['guess'])} |"
        )
    return "\n".join(lines)


def main() -> None:
    if sys.argv[1:2] == ["time"]:
        ceiling_time.main(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--large", type=int, default=64, help="pairs of worlds at 224²")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    record: dict[str, list[Row]] = (
        json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    )
    for part in options.parts:
        if part not in record:
            record[part] = PARTS[part](options)
            if options.json:
                options.json.write_text(json.dumps(record, indent=1) + "\n")
    networks = [
        row
        for part in ("default", "lenet", "resnet", "large", "table", "text")
        for row in record.get(part, [])
    ]
    print(networks_table(networks), end="\n\n")
    print(chances_table(networks), end="\n\n")
    print(found_table(record.get("found", [])), end="\n\n")
    print(published_table(record.get("published", [])), end="\n\n")
    data = "the embedded photos" if options.photos is None else options.photos.name
    print(
        f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}; "
        f"{data}."
    )


if __name__ == "__main__":
    main()
