"""The exact solver on trained models: a real ImageNet network on photos, and CIFAR-size ones trained to several accuracies.

uv run python benchmarks/exact_trained.py mobilenet --weights mobilenet_v2-b0353104.pth --photos imagenet-samples-224.tar
uv run python benchmarks/exact_trained.py cifar --images cifar100-test-5k.npz [--device cuda]

Nothing is given to the attack. A sample is *within reach* when 1 − p_y, the share of it that its own gradient carries, is
at least 1e-5: the client computes p − 1 in float32, which leaves 0.6 % of that.
"""

from __future__ import annotations

import argparse
import copy
import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torchvision
from torch import Tensor, nn

import unsum
from unsum.client.capture import in_mode
from unsum.data import read_photos
from unsum.head import collect_features, find_head
from unsum.models import load_model
from unsum.score import score_samples

REACH, RECOVERED = 1e-5, 1e-3
ACCURACIES = (0.3, 0.5, 0.7, 0.9)


@dataclass
class Tally:
    samples: int = 0
    within_reach: int = 0
    recovered: int = 0
    recovered_within_reach: int = 0
    batches: int = 0
    certified: int = 0
    false_claims: int = 0
    missed: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def show(self, *cells: object) -> None:
        print(self.row(*cells), flush=True)
        for note in self.missed:
            print(f"missed at {cells}: {note}", file=sys.stderr, flush=True)

    def row(self, *cells: object) -> str:
        share = 100 * self.recovered_within_reach / max(self.within_reach, 1)
        numbers = (
            self.samples,
            self.within_reach,
            f"{self.recovered_within_reach} ({share:.1f} %)",
            f"{self.certified} of {self.batches}",
            self.false_claims,
            f"{sorted(self.seconds)[len(self.seconds) // 2]:.2f}",
            f"{max(self.seconds):.1f}",
        )
        return "| " + " | ".join(map(str, (*cells, *numbers))) + " |"


HEADER = (
    "| samples | within reach | of these recovered | batches called exact | false claims | median s | slowest s |\n"
    "|---|---|---|---|---|---|---|"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=["mobilenet", "cifar"])
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--images", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2, 4, 8, 16, 24])
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--device", default="cpu", help="where networks run and train; the attack runs on the CPU")
    options = parser.parse_args()
    torch.manual_seed(0)
    print(f"{platform.machine()}, torch {torch.__version__}, attack on {torch.get_num_threads()} threads\n", flush=True)
    (mobilenet if options.table == "mobilenet" else cifar)(options)


def mobilenet(options: argparse.Namespace) -> None:
    model, images, labels = mobilenet_and_photos(options.weights, options.photos)
    print("| mode | B " + HEADER.replace("\n|", "\n|---|---|"), flush=True)
    for train in (True, False):
        for size in options.sizes:
            tally = attack_batches(model.to(options.device), images, labels, size, train, options)
            tally.show("train" if train else "eval", size)


def mobilenet_and_photos(weights: Path, source: Path) -> tuple[nn.Module, Tensor, Tensor]:
    model = load_model("torchvision:mobilenet_v2", classes=1000, weights=weights).model
    model.classifier[0].p = 0.0  # dropout would hide features from the comparison
    photos = read_photos(source, size=224)
    labels, order = photos.labels.sort(stable=True)
    return model, normalized(photos.images[order]), labels


def cifar(options: argparse.Namespace) -> None:
    photos = read_photos(options.images, size=32)
    images, labels = photos.images.float() / 255, photos.labels
    model = cifar_network().to(options.device)
    print("| accuracy | mode | B " + HEADER.replace("\n|", "\n|---|---|---|"), flush=True)
    for accuracy in train_until(model, images.to(options.device), labels.to(options.device), ACCURACIES):
        for train in (True, False):
            for size in options.sizes:
                tally = attack_batches(model, images, labels, size, train, options)
                tally.show(f"{accuracy:.0%}", "train" if train else "eval", size)


def cifar_network() -> nn.Module:
    """ResNet-18 with the stem for pictures of 32²."""
    model = torchvision.models.resnet18(num_classes=100)
    model.conv1, model.maxpool = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity()
    return model


def normalized(images: Tensor) -> Tensor:
    """ImageNet's own normalization of photos in bytes."""
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return (images.float() / 255 - mean[:, None, None]) / deviation[:, None, None]


def train_until(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    accuracies: tuple[float, ...],
    *,
    steps_between: int | None = None,
    mixed: bool = False,
) -> Iterator[float]:
    """Train, and pause whenever the accuracy on the training images, measured in eval mode, passes a mark.

    It is measured after every epoch, or every so many steps; the untrained network passes marks as well.
    """
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
    marks = list(accuracies)
    steps = 0
    while marks:
        for part in torch.randperm(len(images)).split(64):
            if steps % (steps_between or -(-len(images) // 64)) == 0:
                accuracy = accuracy_on(model, images, labels)
                passed = [mark for mark in marks if accuracy >= mark]
                marks = marks[len(passed) :]
                if passed:
                    yield accuracy
            if not marks:
                return
            model.train()
            flipped = images[part].flip(3) if torch.rand(()) < 0.5 else images[part]
            shifts = [int(shift) for shift in torch.randint(-3, 4, (2,))]
            with torch.autocast(images.device.type, torch.bfloat16, enabled=mixed):
                logits = model(flipped.roll(shifts, (2, 3)))
            loss = nn.functional.cross_entropy(logits.float(), labels[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1


@torch.no_grad()
def accuracy_on(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    with in_mode(model, False):
        pairs = zip(images.split(100), labels.split(100), strict=True)
        right = sum(int((model(pictures).argmax(1) == y).sum()) for pictures, y in pairs)
    return right / len(images)


def attack_batches(
    model: nn.Module, images: Tensor, labels: Tensor, size: int, train: bool, options: argparse.Namespace
) -> Tally:
    tally = Tally()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(size))
    for part in order[: size * options.batches].split(size):
        private, y = images[part].to(options.device), labels[part]
        with in_mode(model, train):
            features = collect_features(model, private).cpu()
        count(tally, copy.deepcopy(find_head(model)[1]).cpu(), features, y)
    return tally


def count(tally: Tally, head: nn.Linear, features: Tensor, labels: Tensor) -> None:
    """Attack the head's gradient, a client's own float32 one, and compare with the truth."""
    update = unsum.capture(head, features, labels)
    start = time.perf_counter()
    leak = unsum.separate(head, update)
    tally.seconds.append(time.perf_counter() - start)
    rows = score_samples(leak, targets=labels, features=features)
    with torch.no_grad():
        confidence = 1 - head.double()(features.double()).softmax(1)[torch.arange(len(labels)), labels]
    errors = [row.feature_error for row in rows]
    found = [error < RECOVERED for error in errors]
    reach = [float(left) >= REACH for left in confidence]
    tally.samples += len(labels)
    tally.within_reach += sum(reach)
    tally.recovered += sum(found)
    tally.recovered_within_reach += sum(f and r for f, r in zip(found, reach, strict=True))
    tally.batches += 1
    tally.certified += leak.exact
    tally.false_claims += leak.exact and any(r and e > 1e-2 for e, r in zip(errors, reach, strict=True))
    missed = [
        f"1 − p = {float(c):.0e}, error {e:.0e}"
        for c, e, f, r in zip(confidence, errors, found, reach, strict=True)
        if r and not f
    ]
    if missed:
        tally.missed.append("; ".join(missed) + f" | predicted {leak.predicted_error:.0e}, {' '.join(leak.notes)}")


if __name__ == "__main__":
    main()
