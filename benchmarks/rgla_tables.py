"""RGLA's own tables 3, 5, 6, 7, 8 and 9: its features and logits, measured, beside the published figures and the exact solver.

python benchmarks/rgla_tables.py --weights resnet50.safetensors --photos imagenet-samples-224.tar --device cuda
uv run python benchmarks/rgla_tables.py --size small --weights … --photos … --batches 2        # minutes on a CPU

Setting of the paper: ResNet-50 with ImageNet weights, a random head without global pooling, inputs in [0, 1], BatchNorm in train
mode, 1000 classes, labels known to RGLA. `--size small` takes 64² photos, pooled features and 100 classes. The paper scores
pictures (PSNR), here the features and logits that the pictures are made of are scored; the exact solver is given no labels.
"RGLA" is the paper's; "released RGLA" leaves the derivative of D out, as the authors' code does.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import unsum
from unsum.bench.measure.estimate import loss_errors
from unsum.bench.published import (
    ACCURACIES,
    BY_OBJECTIVES,
    FGLA_BY_DUPLICATES,
    LOGITS_BY_BATCH,
    LOSS_ERRORS,
    RGLA_BY_DUPLICATES,
)
from unsum.data import read_photos
from unsum.models import load_model
from unsum.score import score_samples
from unsum.separate.rgla.objective import WEIGHTS

RUN = "‖Ŷ′−Ŷ‖², mean (median) | feature error, mean (median) | worst | within 1 % | cosine | seconds"
RULE = "---|" * 6


@dataclass(frozen=True)
class Setting:
    """The backbone, the photos, and where and how long to compute."""

    backbone: nn.Module
    photos: dict[int, list[Tensor]]  # class → pictures (3, h, w)
    classes: int
    device: str
    batches: int
    steps: int
    sizes: list[int]
    seconds: float  # for the table under way


@dataclass(frozen=True)
class Case:
    """One batch as it reaches the head, and the head's update."""

    head: nn.Linear
    features: Tensor
    labels: Tensor
    update: unsum.Update

    @property
    def logits(self) -> Tensor:
        return (self.features @ self.head.weight.T + self.head.bias).detach()


@dataclass(frozen=True)
class Run:
    """What one attack on one batch came to."""

    logit_error: float
    errors: list[float]
    cosine: float
    seconds: float
    leak: unsum.Leak


# ---- data -----------------------------------------------------------------------------------------------------------


def load_backbone(weights: str | None, pooled: bool) -> nn.Module:
    """ResNet-50 of the first version (stride in the 1×1 convolution), or an untrained ResNet-18 without weights."""
    own = Path(__file__).parents[1] / "examples" / "resnet50_v1.py"
    spec = "torchvision:resnet18" if weights is None else f"{own}:pooled"
    network = load_model(spec, classes=1000, weights=weights).model
    network.fc = nn.Identity()
    if not pooled:
        network.avgpool = nn.Identity()
    return network.train()


def load_photos(path: str, size: int) -> dict[int, list[Tensor]]:
    """The pictures of a source whose classes are numbers, by class."""
    photos: dict[int, list[Tensor]] = defaultdict(list)
    found = read_photos(path, size=size)
    for label, image in zip(found.labels.tolist(), found.images.float() / 255, strict=True):
        photos[label].append(image)
    return photos


def batch_features(setting: Setting, pictures: list[Tensor]) -> Tensor:
    with torch.no_grad():
        return setting.backbone(torch.stack(pictures).to(setting.device)).flatten(1)


def draw(setting: Setting, B: int, seed: int, same: int = 0) -> Case:
    """A batch of distinct labels, `same` of which are then replaced by the first one's; a fresh random head.

    Photos with fewer classes in play carry their class number modulo the number of classes.
    """
    generator = torch.Generator().manual_seed(seed)
    by_label: dict[int, list[Tensor]] = defaultdict(list)
    for number, pictures in setting.photos.items():
        by_label[number % setting.classes] += pictures
    known = sorted(by_label)
    chosen = [known[i] for i in torch.randperm(len(known), generator=generator)[:B].tolist()]
    pictures = [by_label[c][int(torch.randint(len(by_label[c]), (), generator=generator))] for c in chosen]
    labels = torch.tensor(chosen, device=setting.device)
    labels[:same] = labels[0]
    features = batch_features(setting, pictures)
    torch.manual_seed(seed)
    head = nn.Linear(features.shape[1], setting.classes).to(setting.device)
    return Case(head, features, labels, unsum.capture(head, features, labels))


# ---- one attack -----------------------------------------------------------------------------------------------------


def attack(setting: Setting, case: Case, method: str, **options: Any) -> Run:
    """Labels are granted to every method but the exact one."""
    if (
        method == "released"
    ):  # D taken as a constant in the backward pass, as in the authors' code; the rest as in the paper
        method, options = "rgla", {"constant_D": True, **options}
    if method == "rgla":
        options = {"steps": setting.steps, **options}
    labels = None if method == "exact" else case.labels
    leak = unsum.separate(case.head, case.update, method, labels=labels, **options)
    rows = score_samples(leak, features=case.features)
    logits, found = case.logits.double(), leak.logits.to(setting.device)
    errors = [
        float((logits[i] - (found[row.found] if row.found is not None else 0)).square().sum())
        for i, row in enumerate(rows)
    ]
    cosine = statistics.mean(row.feature_cosine for row in rows)
    return Run(sum(errors), [row.feature_error for row in rows], cosine, leak.seconds, leak)


def row(runs: list[Run]) -> str:
    """The columns of RUN."""
    logits = [run.logit_error for run in runs]
    errors = [error for run in runs for error in run.errors]
    return (
        f"{statistics.mean(logits):.1e} ({statistics.median(logits):.1e}) | {statistics.mean(errors):.1e} "
        f"({statistics.median(errors):.1e}) | {max(errors):.1e} | {sum(e < 0.01 for e in errors)}/{len(errors)} "
        f"| {statistics.mean(r.cosine for r in runs):.4f} | {statistics.mean(r.seconds for r in runs):.2f}"
    )


def seeds(setting: Setting, table: str) -> Iterator[int]:
    """One per batch, as long as the table's share of the time lasts; every table sees the same batches."""
    start = time.perf_counter()
    for batch in range(setting.batches):
        elapsed = time.perf_counter() - start
        if batch and elapsed * (batch + 1) / batch > setting.seconds:
            say(f"table {table}: stopped after {batch} of {setting.batches} batches, its time is over")
            return
        say(f"table {table}: batch {batch + 1} of {setting.batches}, {elapsed:.0f} s")
        yield batch


def say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


# ---- the tables -----------------------------------------------------------------------------------------------------


def table_3(setting: Setting) -> None:
    """Which objectives are needed."""
    subsets = BY_OBJECTIVES
    runs: dict[str, list[Run]] = defaultdict(list)
    for seed in seeds(setting, "3"):
        case = draw(setting, 8, seed)
        for names in subsets:
            runs["RGLA, " + _sum(names)].append(attack(setting, case, "rgla", objectives=names))
            runs["released RGLA, " + _sum(names)].append(attack(setting, case, "released", objectives=names))
        runs["its equations by Levenberg–Marquardt"].append(attack(setting, case, "rgla-newton"))
        runs["exact"].append(attack(setting, case, "exact"))
    published = {"released RGLA, " + _sum(names): figure for names, figure in subsets.items()}
    heading("3: objectives, B = 8, distinct labels", runs)
    print(f"| objectives | published PSNR | {RUN} |\n|---|---|{RULE}")
    for name, found in runs.items():
        print(f"| {name} | {published.get(name, '')} | {row(found)} |")


def _sum(names: tuple[str, ...]) -> str:
    return " + ".join(f"L_{name}" for name in names)


def table_5(setting: Setting) -> None:
    """The error of l̂ over the accuracy of the model: a linear probe on the photos' features, stopped on its way."""
    published, goals = LOSS_ERRORS, list(ACCURACIES)
    say("table 5: features of all photos")
    numbers = sorted(setting.photos)
    pictures = [picture for number in numbers for picture in setting.photos[number]]
    labels = torch.tensor([number % setting.classes for number in numbers for _ in setting.photos[number]])
    order = torch.randperm(
        len(pictures), generator=torch.Generator().manual_seed(0)
    ).tolist()  # batches mix the classes
    pictures, labels = [pictures[i] for i in order], labels[order].to(setting.device)
    features = torch.cat([batch_features(setting, pictures[i : i + 250]) for i in range(0, len(pictures), 250)])
    heading("5: the estimated loss, by the model's accuracy on its own photos", {})
    print("l̂ − l over 100 random batches; the paper's L2 is taken as the root of the 100 squares' sum.\n")
    sizes = "".join(f" B = {B}: mean abs. | L2 | published |" for B in published)
    print(f"| goal | accuracy | mean loss |{sizes}\n|---|---|---|{'---|---|---|' * len(published)}")
    for place, (goal, accuracy, logits) in enumerate(_probes(features, labels, setting.classes, goals)):
        figures = ""
        for B, theirs in published.items():
            errors = loss_errors(logits, labels, B)
            figures += f" {float(errors.abs().mean()):.3f} | {float(errors.norm()):.2f} | {theirs[place]} |"
        loss = float(nn.functional.cross_entropy(logits, labels))
        print(f"| {goal:.0%} | {accuracy:.1%} | {loss:.2f} |{figures}", flush=True)


def _probes(
    features: Tensor, labels: Tensor, classes: int, goals: list[float]
) -> Iterator[tuple[float, float, Tensor]]:
    """Goal, accuracy and (N, C) logits whenever training first reaches a goal."""
    torch.manual_seed(0)
    head = nn.Linear(features.shape[1], classes).to(features.device)
    optimizer = torch.optim.Adam(head.parameters(), 3e-3 / features.shape[1] ** 0.5)
    waiting = list(goals)
    for step in range(5000):
        logits = head(features)
        accuracy = float((logits.argmax(1) == labels).float().mean())
        while waiting and accuracy >= waiting[0]:
            say(f"table 5: {accuracy:.1%} after {step} steps")
            yield waiting.pop(0), accuracy, logits.detach()
        if not waiting:
            return
        optimizer.zero_grad()
        nn.functional.cross_entropy(logits, labels).backward()
        optimizer.step()
    say(f"table 5: {waiting[0]:.0%} was not reached")


def table_6(setting: Setting) -> None:
    """Tables 6 and 7: where it starts, where it ends, and how soon."""
    starts = ("randn", "rand", "zeros", "ones", "photos", "fgla")
    runs: dict[str, list[Run]] = defaultdict(list)
    for seed in seeds(setting, "6"):
        case = draw(setting, 8, seed)
        others = draw(setting, 8, seed + 10_000).features  # photos of the attacker's own
        for start in starts:
            own = {"start_logits": case.head(others).detach()} if start == "photos" else {}
            runs[start].append(attack(setting, case, "rgla", start=start, **own))
        runs["exact"].append(attack(setting, case, "exact"))
    marks = [setting.steps // 8, setting.steps // 4, setting.steps // 2, setting.steps]
    heading("6 and 7: starts, B = 8, distinct labels (published: all end alike, zeros and FGLA soonest)", runs)
    columns = " | ".join(f"sum of losses after {mark}" for mark in marks)
    print(f"| start | {RUN} | {columns} | steps to 10× the best end |\n|---|{RULE}{'---|' * (len(marks) + 1)}")
    goals = [min(float(_sums(runs[s][i])[-1]) for s in starts) * 10 for i in range(len(runs["randn"]))]
    for name, found in runs.items():
        print(
            f"| {name} | {row(found)} | {_convergence(found, marks, goals) if name in starts else ' | ' * len(marks)} |"
        )


def _sums(run: Run) -> Tensor:
    """(S,) the weighted sum of the losses at the noted steps."""
    return torch.stack([weight * run.leak.history[f"loss_{name}"] for name, weight in WEIGHTS.items()]).sum(0)


def _convergence(runs: list[Run], marks: list[int], goals: list[float]) -> str:
    """The median sum of the losses at some steps, and the median of the first step below each batch's goal."""
    at = [statistics.median(float(_sums(run)[run.leak.history["step"] >= mark][0]) for run in runs) for mark in marks]
    first = []
    for run, goal in zip(runs, goals, strict=True):
        below = run.leak.history["step"][_sums(run) <= goal].tolist()
        first.append(below[0] if below else float("inf"))
    return " | ".join([*(f"{value:.1e}" for value in at), f"{statistics.median(first):.0f}"])


def table_8(setting: Setting) -> None:
    """Duplicate labels: k of 8 photos share one."""
    published = {same: (RGLA_BY_DUPLICATES[same], FGLA_BY_DUPLICATES[same]) for same in RGLA_BY_DUPLICATES}
    methods = {
        "rgla": "RGLA",
        "released": "released RGLA",
        "fgla": "FGLA",
        "rgla-newton": "RGLA's equations, Levenberg–Marquardt",
        "exact": "exact",
    }
    runs: dict[tuple[int, str], list[Run]] = defaultdict(list)
    for seed in seeds(setting, "8"):
        for same in published:
            case = draw(setting, 8, seed, same)
            for method in methods:
                runs[same, method].append(attack(setting, case, method))
    heading("8: duplicate labels, B = 8", runs)
    print(f"| same label | method | published PSNR | {RUN} |\n|---|---|---|{RULE}")
    for (same, method), found in runs.items():
        figure = {"released": published[same][0], "fgla": published[same][1]}.get(method, "")
        print(f"| {same}/8 | {methods[method]} | {figure} | {row(found)} |")


def table_9(setting: Setting) -> None:
    """The logits' error by batch size."""
    published = LOGITS_BY_BATCH
    methods = {
        "rgla": "RGLA",
        "released": "released RGLA",
        "rgla-newton": "RGLA's equations, Levenberg–Marquardt",
        "exact": "exact",
    }
    runs: dict[tuple[int, str], list[Run]] = defaultdict(list)
    for seed in seeds(setting, "9"):
        for B in setting.sizes:
            case = draw(setting, B, seed)
            for method in methods:
                runs[B, method].append(attack(setting, case, method))
                say(f"table 9: B = {B}, {method}: {runs[B, method][-1].seconds:.1f} s")
    heading("9: logits by batch size, distinct labels", runs)
    print(f"| B | method | published ‖Ŷ′−Ŷ‖² | {RUN} |\n|---|---|---|{RULE}")
    for (B, method), found in runs.items():
        print(f"| {B} | {methods[method]} | {published.get(B, '') if method == 'released' else ''} | {row(found)} |")


def heading(title: str, runs: dict[Any, list[Run]]) -> None:
    number = len(next(iter(runs.values()), []))
    count = f"\n\n{number} batch{'es' if number > 1 else ''}." if number else ""
    print(f"\n## Table {title}{count}\n", flush=True)


TABLES: dict[str, Callable[[Setting], None]] = {"3": table_3, "5": table_5, "6": table_6, "8": table_8, "9": table_9}


def main() -> None:
    options = _options()
    small = options.size == "small"
    if options.weights is None and not small:
        raise SystemExit("The full size needs --weights; `--size small` also runs with an untrained ResNet-18.")
    say("loading")
    classes = options.classes or (100 if small else 1000)
    sizes = [B for B in ((8, 16, 32, 64) if small else (8, 16, 32, 64, 128, 256)) if classes > B]
    tables = [*TABLES] if options.table == "all" else [options.table]
    pooled = options.pooled or small
    setting = Setting(
        backbone=load_backbone(options.weights, pooled).to(options.device),
        photos=load_photos(options.photos, 64 if small else 224),
        classes=classes,
        device=options.device,
        batches=options.batches or (2 if small else 10),
        steps=options.steps,
        sizes=sizes,
        seconds=options.minutes * 60,
    )
    name = (
        torch.cuda.get_device_name()
        if options.device.startswith("cuda")
        else f"{platform.machine()}, {torch.get_num_threads()} thread(s)"
    )
    network = "ResNet-18, untrained" if options.weights is None else "ResNet-50, ImageNet weights"
    print(
        f"{network}, {'pooled' if pooled else 'not pooled'}, {64 if small else 224}² photos, C = {setting.classes}, "
        f"{setting.steps} steps of Adam; {name}, torch {torch.__version__}.",
        flush=True,
    )
    end = time.perf_counter() + setting.seconds
    for place, table in enumerate(tables):
        start = time.perf_counter()
        TABLES[table](
            replace(setting, seconds=(end - start) / (len(tables) - place))
        )  # what one table saves, the others have
        say(f"table {table}: done in {time.perf_counter() - start:.0f} s")
        sys.stdout.flush()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", required=True, help="tar or folder of CLASS/name.jpg")
    parser.add_argument("--weights", help="ResNet-50 weights, safetensors with torchvision's names")
    parser.add_argument("--table", choices=[*TABLES, "all"], default="all", help="6 holds 7 as well")
    parser.add_argument("--size", choices=["full", "small"], default="full")
    parser.add_argument("--classes", type=int)
    parser.add_argument("--pooled", action="store_true", help="keep global pooling (always on in the small size)")
    parser.add_argument("--batches", type=int, help="batches per table (10, or 2 for the small size)")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--minutes", type=float, default=7.0, help="no further batch is begun beyond this")
    parser.add_argument("--device", default="cpu")
    return parser.parse_args()


if __name__ == "__main__":
    main()
