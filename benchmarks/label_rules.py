"""How often are the label rules right? Every rule on the same draws, over batch sizes, on fresh and on trained heads.

uv run python benchmarks/label_rules.py > label-rules.md
uv run python benchmarks/label_rules.py --imagenet TAR TAR --cifar FILE.npz --device cuda    # iLRG's two published settings
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torchvision
from torch import Tensor, nn

import unsum
from unsum.data import read_photos
from unsum.labels import LABEL_RULES

CLASSES, FEATURES = 100, 512
KNOWS_NO_SIZE = ("exact",)  # every other rule is told the batch size
Draw = Callable[[Tensor, torch.Generator], Tensor]  # labels → inputs


@dataclass(frozen=True)
class Scene:
    """A model and a way to draw inputs for given labels."""

    title: str
    model: nn.Module
    draw: Draw
    seeds: int
    skipped: tuple[str, ...] = ()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16, 64, 256])
    parser.add_argument("--draws", type=int, default=5, help="batches per cell on synthetic features")
    parser.add_argument("--network-draws", type=int, default=2, help="batches per cell through ResNet-18")
    parser.add_argument(
        "--imagenet", nargs="+", help="tars of photos, for a batch of 4096 through an untrained ResNet-50"
    )
    parser.add_argument("--cifar", help="npz of photos, for batches of 24 through a ResNet-18 trained on most of them")
    parser.add_argument("--rules", nargs="*", default=[], help="only these, on synthetic features")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--published-draws", type=int, default=20)
    options = parser.parse_args()
    if options.imagenet or options.cifar:
        print("| setting | rule | batches | existence / counts / instances | slowest (s) |\n|---|---|---|---|---|")
        if options.cifar:
            trained_resnet18(options.cifar, options.device, options.published_draws)
        if options.imagenet:
            untrained_resnet50(options.imagenet, options.device)
        return
    scenes = [
        synthetic(0, options.draws),
        synthetic(60, options.draws),
        synthetic(1000, options.draws),
        resnet(options.network_draws),
    ]
    for scene in scenes:
        print(table(scene, options.batches, options.rules), flush=True)


def synthetic(steps: int, seeds: int) -> Scene:
    """Features of 100 classes around their own centers, and a linear head after so many steps of Adam on other samples."""
    generator = torch.Generator().manual_seed(1)
    shared, centers = torch.randn(FEATURES, generator=generator), torch.randn(CLASSES, FEATURES, generator=generator)

    def draw(labels: Tensor, generator: torch.Generator) -> Tensor:
        noise = torch.randn(len(labels), FEATURES, generator=generator)
        return (shared + 0.25 * centers[labels] + 0.7 * noise).relu()

    torch.manual_seed(0)
    model = nn.Linear(FEATURES, CLASSES)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(steps):
        labels = torch.randint(CLASSES, (256,), generator=generator)
        loss = nn.functional.cross_entropy(model(draw(labels, generator)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    labels = torch.randint(CLASSES, (2000,), generator=generator)
    with torch.no_grad():
        P = model(draw(labels, generator)).softmax(1)
    accuracy, sure = (P.argmax(1) == labels).double().mean(), P[range(2000), labels].mean()
    state = f"after {steps} steps" if steps else "fresh"
    title = (
        f"Synthetic features, head {state}: accuracy {100 * accuracy:.0f} %, mean probability of the label {sure:.2f}"
    )
    return Scene(title, model, draw, seeds)


def resnet(seeds: int) -> Scene:
    """An untrained ResNet-18 and smooth random pictures, BatchNorm in train mode."""
    torch.manual_seed(0)
    model = torchvision.models.resnet18(num_classes=CLASSES)

    def draw(labels: Tensor, generator: torch.Generator) -> Tensor:
        coarse = torch.randn(len(labels), 3, 8, 8, generator=generator)
        coarse = 2 * coarse + torch.randn(len(labels), 3, 1, 1, generator=generator)
        return nn.functional.interpolate(coarse, size=64, mode="bicubic")

    return Scene("ResNet-18, untrained, 64² pictures", model, draw, seeds, skipped=("llg+",))


def trained_resnet18(cifar: str, device: str, draws: int, *, B: int = 24, kept: int = 1000, epochs: int = 30) -> None:
    """Trained on all photos but the last thousand (after shuffling), of which the batches are drawn; BatchNorm in train mode."""
    photos = read_photos(cifar, size=32)
    order = torch.randperm(len(photos.labels), generator=torch.Generator().manual_seed(0))
    images, labels = photos.images[order].float().to(device) / 255, photos.labels[order].to(device)
    torch.manual_seed(0)
    model = torchvision.models.resnet18(num_classes=CLASSES).to(device)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(labels) - kept, device=device).split(128):
            seen = images[batch].flip(3) if torch.rand(()) < 0.5 else images[batch]
            loss = nn.functional.cross_entropy(model(seen), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    with torch.no_grad():
        right = [
            (model.eval()(images[part]).argmax(1) == labels[part]).float().mean().item()
            for part in (slice(-kept), slice(-kept, None))
        ]
    name = f"ResNet-18, {right[0]:.0%} of its own photos right, {right[1]:.0%} of others, B = {B}"
    batches = [torch.randperm(kept, generator=torch.Generator().manual_seed(seed))[:B] - kept for seed in range(draws)]
    updates = [(unsum.capture(model, images[b], labels[b], train=True), labels[b].cpu()) for b in batches]
    report(name, model.train(), updates, ("ilrg", "llg", "llg*", "bias-sign", "gradinversion", "exact"), CLASSES)


def untrained_resnet50(imagenet: list[str], device: str, *, B: int = 4096, draws: int = 3) -> None:
    """The head's gradient alone, out of features: one pass of the whole batch, BatchNorm in train mode."""
    photos = read_photos(imagenet, size=224)
    torch.manual_seed(0)
    model = torchvision.models.resnet50().to(device)
    head, model.fc = model.fc, nn.Identity()
    updates = []
    for seed in range(draws):
        chosen = torch.randperm(len(photos.labels), generator=torch.Generator().manual_seed(seed))[:B]
        with torch.no_grad():
            features = model.train()(photos.images[chosen].to(device).float() / 255)
            errors = head(features).softmax(1) - nn.functional.one_hot(photos.labels[chosen], 1000).to(device)
        gradients = {"fc.weight": errors.T @ features / len(chosen), "fc.bias": errors.mean(0)}
        updates.append((unsum.Update(gradients), photos.labels[chosen]))
    model.fc = head
    report(f"ResNet-50, untrained, C = 1000, B = {len(chosen)}", model, updates, ("ilrg", "llg", "llg*"), 1000)


def report(
    name: str, model: nn.Module, updates: list[tuple[unsum.Update, Tensor]], rules: tuple[str, ...], classes: int
) -> None:
    for rule in rules:
        scores, slowest = [], 0.0
        for update, truth in updates:
            start = time.perf_counter()
            found = found_labels(model, update, rule, len(truth), None)
            slowest = max(slowest, time.perf_counter() - start)
            if found is not None:
                scores.append(agreement(found.cpu(), truth, classes))
        print(f"| {name} | {rule} | {len(scores)} | {cell(scores)} | {slowest:.2f} |", flush=True)


def table(scene: Scene, batches: list[int], wanted: list[str]) -> str:
    rules = [entry.name for entry in LABEL_RULES if entry.name not in scene.skipped]
    rules = [name for name in rules if not wanted or name in wanted]
    head = ["rule", *(f"B = {B}" for B in batches), "slowest (s)"]
    lines = [f"## {scene.title}", "", "| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    cells = {rule: [] for rule in rules}
    slowest = dict.fromkeys(rules, 0.0)
    for B in batches:
        scores: dict[str, list[Tensor]] = {rule: [] for rule in rules}
        for seed in range(scene.seeds):
            generator = torch.Generator().manual_seed(1000 * B + seed)
            truth = torch.randint(CLASSES, (B,), generator=generator)
            update = unsum.capture(scene.model, scene.draw(truth, generator), truth)
            own_labels = torch.arange(CLASSES).repeat(4)
            own = (scene.draw(own_labels, generator), own_labels)
            for rule in rules:
                start = time.perf_counter()
                found = found_labels(scene.model, update, rule, B, own)
                slowest[rule] = max(slowest[rule], time.perf_counter() - start)
                if found is not None:
                    scores[rule].append(agreement(found, truth))
        for rule in rules:
            cells[rule].append(cell(scores[rule]))
    return "\n".join([*lines, *(f"| {r} | {' | '.join(cells[r])} | {slowest[r]:.2f} |" for r in rules), ""])


def found_labels(
    model: nn.Module, update: unsum.Update, rule: str, B: int, own: tuple[Tensor, Tensor] | None
) -> Tensor | None:
    """What the rule finds, or None where it refuses."""
    known = {} if rule in KNOWS_NO_SIZE else {"batch_size": B, "auxiliary": own}
    try:
        return unsum.labels(model, update, rule, **known)
    except unsum.UnsumError:
        return None


def agreement(found: Tensor, truth: Tensor, classes: int = CLASSES) -> Tensor:
    """Classes rightly called present or absent, classes rightly counted, samples whose label was found."""
    n_found, n_true = (torch.bincount(labels, minlength=classes) for labels in (found, truth))
    existence = ((n_found > 0) == (n_true > 0)).double().mean()
    counts = (n_found == n_true).double().mean()
    return torch.stack([existence, counts, torch.minimum(n_found, n_true).sum() / len(truth)])


def cell(scores: list[Tensor]) -> str:
    if not scores:
        return "refused"
    return " / ".join("1" if value > 0.9995 else f"{value:.3f}"[1:] for value in torch.stack(scores).mean(0).tolist())


if __name__ == "__main__":
    main()
