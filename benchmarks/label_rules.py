"""How often are the label rules right? Every rule on the same draws, over batch sizes, on fresh and on trained heads.

uv run python benchmarks/label_rules.py > label-rules.md
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
    options = parser.parse_args()
    scenes = [
        synthetic(0, options.draws),
        synthetic(60, options.draws),
        synthetic(1000, options.draws),
        resnet(options.network_draws),
    ]
    for scene in scenes:
        print(table(scene, options.batches), flush=True)


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


def table(scene: Scene, batches: list[int]) -> str:
    rules = [entry.name for entry in LABEL_RULES if entry.name not in scene.skipped]
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
    model: nn.Module, update: unsum.Update, rule: str, B: int, own: tuple[Tensor, Tensor]
) -> Tensor | None:
    """What the rule finds, or None where it refuses."""
    known = {} if rule in KNOWS_NO_SIZE else {"batch_size": B, "auxiliary": own}
    try:
        return unsum.labels(model, update, rule, **known)
    except unsum.UnsumError:
        return None


def agreement(found: Tensor, truth: Tensor) -> Tensor:
    """Classes rightly called present or absent, classes rightly counted, samples whose label was found."""
    n_found, n_true = (torch.bincount(labels, minlength=CLASSES) for labels in (found, truth))
    existence = ((n_found > 0) == (n_true > 0)).double().mean()
    counts = (n_found == n_true).double().mean()
    return torch.stack([existence, counts, torch.minimum(n_found, n_true).sum() / len(truth)])


def cell(scores: list[Tensor]) -> str:
    if not scores:
        return "refused"
    return " / ".join("1" if value > 0.9995 else f"{value:.3f}"[1:] for value in torch.stack(scores).mean(0).tolist())


if __name__ == "__main__":
    main()
