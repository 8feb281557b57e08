"""Soft labels of single samples: how often soft-label recovery and the exact solver bring them back, and how fast.

uv run python benchmarks/soft_labels.py --cifar FILE.npz --flowers TAR --imagenet TAR --trained

Every draw is one photo with a smoothed label (ε uniform in 0…0.5) or two mixed photos and labels (weight uniform in 0…1), one
network in eval mode, the float32 gradient of its head. Both attacks get the weights and the head's weight gradient; the exact
solver runs a second time with the bias gradient too. Neither knows the kind of label; the exact solver also finds the batch size.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

import unsum
from unsum.bench import Network
from unsum.bench.networks import build
from unsum.data import read_photos
from unsum.deadline import time_limit
from unsum.head import collect_features, find_head

RECOVERED = 1e-3


@dataclasses.dataclass(frozen=True)
class Photos:
    name: str
    images: Tensor  # (n, 3, h, w) in [0, 1]
    labels: Tensor
    classes: int


@dataclasses.dataclass
class Tally:
    """Hits of one attack in one cell."""

    draws: int = 0
    recovered: int = 0
    claimed: int = 0
    seconds: float = 0.0

    def add(self, error: float, claimed: bool, seconds: float) -> None:
        self.draws += 1
        self.recovered += error < RECOVERED
        self.claimed += claimed
        self.seconds += seconds

    def cells(self) -> str:
        if not self.draws:
            return "– | – | –"
        return f"{self.recovered}/{self.draws} | {self.claimed} | {self.seconds / self.draws:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar", type=Path, help="npz with images (n, 32, 32, 3) uint8 and labels")
    parser.add_argument("--flowers", type=Path, help="tar of CLASS/….jpg")
    parser.add_argument("--imagenet", type=Path, help="tar of CLASS/….jpg")
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument(
        "--trained", action="store_true", help="also LeNets trained for a few epochs on the CIFAR photos"
    )
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--coefficient", type=float, default=1.0, help="κ of soft-label recovery")
    parser.add_argument("--exact-only", action="store_true", help="leave soft-label recovery out, which takes longer")
    options = parser.parse_args()
    torch.set_num_threads(1)
    attacks = "soft | succeeds | s | exact, no ∇b | certified | s | exact, ∇b | certified | s"
    print(f"| network | photos | label | {attacks} |")
    print("|---" * 12 + "|")
    for title, photos, make in cells(options):
        model = make(photos.classes)
        for kind in ("smoothing", "mixup"):
            tallies = run(model.eval(), photos, kind, options)
            columns = " | ".join(tally.cells() for tally in tallies)
            print(f"| {title} | {photos.name} | {kind} | {columns} |", flush=True)


def cells(options: argparse.Namespace) -> Iterator[tuple[str, Photos, Callable[[int], nn.Module]]]:
    """Network, photos at the size it takes, and how to build it for a number of classes."""
    if options.cifar:
        cifar = read(options.cifar, "CIFAR-100", 100, 32)
        yield "LeNet", cifar, partial(network, "lenet")
        yield "LeNet, weights in ±0.5", cifar, partial(network, "lenet ±0.5")
        if options.trained:
            ten = dataclasses.replace(cifar, name="CIFAR-100, first 10 classes", classes=10)
            kept = cifar.labels < 10
            ten = dataclasses.replace(ten, images=cifar.images[kept], labels=cifar.labels[kept])
            for photos in (ten, cifar):
                yield (
                    "LeNet, trained",
                    photos,
                    partial(train, photos=photos, epochs=options.epochs),
                )
        yield "ResNet-18", resized(cifar, 64), partial(network, "resnet18")
    if options.flowers:
        flowers = read(options.flowers, "Flowers-102", 102, 128)
        yield "ResNet-18", resized(flowers, 64), partial(network, "resnet18")
        yield "AlexNet", flowers, partial(network, "alexnet")
    if options.imagenet:
        imagenet = read(options.imagenet, "ImageNet", 1000, 224)
        yield "ResNet-18", resized(imagenet, 64), partial(network, "resnet18")
        yield "AlexNet", imagenet, partial(network, "alexnet")


def run(model: nn.Module, photos: Photos, kind: str, options: argparse.Namespace) -> tuple[Tally, Tally, Tally]:
    generator = torch.Generator().manual_seed(0)
    soft, exact, exact_with_bias = Tally(), Tally(), Tally()
    name, linear = find_head(model)
    for _ in range(options.draws):
        image, target = draw(photos, kind, generator)
        update = gradient(model, name, linear, image, target)
        without = unsum.Update({key: g for key, g in update.gradients.items() if key.endswith("weight")})
        if not options.exact_only:
            start = time.process_time()  # one thread: its own time, whatever else the machine does
            leak = unsum.separate(model, without, "soft", coefficient=options.coefficient)
            soft.add(error(leak, target), leak.predicted_error != float("inf"), time.process_time() - start)
        for tally, seen in ((exact, without), (exact_with_bias, update)):
            start = time.process_time()
            leak = unsum.separate(model, seen, "exact")
            tally.add(error(leak, target), leak.exact, time.process_time() - start)
    return soft, exact, exact_with_bias


def draw(photos: Photos, kind: str, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    first, second = torch.randint(len(photos.images), (2,), generator=generator).tolist()
    weight = float(torch.rand(1, generator=generator))
    rows = nn.functional.one_hot(photos.labels[[first, second]], photos.classes).float()
    if kind == "smoothing":
        return photos.images[first : first + 1], unsum.smooth_labels(rows[:1], weight / 2, photos.classes)
    image = weight * photos.images[first] + (1 - weight) * photos.images[second]
    return image[None], weight * rows[:1] + (1 - weight) * rows[1:]


def gradient(model: nn.Module, name: str, linear: nn.Linear, image: Tensor, target: Tensor) -> unsum.Update:
    """The head's part of a client's update: the backbone needs no backward pass for it."""
    loss = nn.functional.cross_entropy(linear(collect_features(model, image)), target)
    grads = torch.autograd.grad(loss, [linear.weight, linear.bias])
    return unsum.Update({f"{name}.weight": grads[0], f"{name}.bias": grads[1]})


def error(leak: unsum.Leak, target: Tensor) -> float:
    """The largest error of any entry of the label; a wrong number of samples is a miss."""
    return float((leak.targets - target).abs().max()) if leak.batch_size == 1 else float("inf")


def network(name: str, classes: int) -> nn.Module:
    """One of the bench's own networks; none of those here depends on the size of its photos but LeNet, for 32²."""
    return build(Network(name, 32, classes), seed=0, weights=None)


def train(classes: int, *, photos: Photos, epochs: int) -> nn.Module:
    model = network("lenet, learnable", classes)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for batch in torch.randperm(len(photos.images), generator=generator).split(32):
            loss = nn.functional.cross_entropy(model(photos.images[batch]), photos.labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        right = (model(photos.images).argmax(1) == photos.labels).float().mean()
    print(f"<!-- {photos.name}: {100 * right:.0f} % of the training photos right -->", flush=True)
    return model


def read(path: Path, name: str, classes: int, size: int) -> Photos:
    photos = read_photos(path, size=size)
    labels = photos.labels - photos.labels.min()  # Flowers-102 counts its classes from 1
    return Photos(name, photos.images.float() / 255, labels, classes)


def resized(photos: Photos, size: int) -> Photos:
    images = nn.functional.interpolate(photos.images, size=size, mode="bilinear", antialias=True)
    return dataclasses.replace(photos, images=images)


if __name__ == "__main__":
    with time_limit(math.inf):  # figures must not depend on how fast the machine is
        main()
