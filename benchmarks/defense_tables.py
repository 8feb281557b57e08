"""Defenses on batches whose labels are alike, and DP-SGD: what RGLA's tables 2 and 12 (`unsum bench rgla-2 rgla-12`) leave out.

python benchmarks/defense_tables.py --weights resnet50.safetensors --photos imagenet-samples-224.tar --batches 3
python benchmarks/defense_tables.py --weights … --photos … --pooled --dp        # DP-SGD as well, on a pooled head

Setting of the paper: ResNet-50 with ImageNet weights, a random head without global pooling, 1000 classes, B = 8, BatchNorm in
train mode. The paper scores pictures; here the features they are made of are scored, and with `--inverse FILE` the pictures as
well. RGLA and FGLA are given the true labels; the adaptive separator runs twice, with them and with nothing but the batch size.
Duplicates: k of 8 labels alike.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

import unsum
from unsum.bench.published import BY_DEFENSE, BY_PRUNING
from unsum.data import read_photos
from unsum.deadline import time_limit
from unsum.defend import DPSGD, parse_defense, privacy_spent
from unsum.invert import Inverse
from unsum.models import load_model
from unsum.score import score_samples

PUBLISHED = {  # PSNR of RGLA and FGLA: table 2 (noise, clip, 99.9 %) and table 12 (the other rates)
    defense: f"{row['rgla'].split(' ')[0]} / {row['fgla']}"
    for defense, row in {
        **{name: BY_DEFENSE[name] for name in ("noise:0.01", "clip:4")},
        **{name: BY_PRUNING[name] for name in ("prune:0.8", "prune:0.9", "prune:0.99")},
        "prune:0.999": BY_DEFENSE["prune:0.999"],
    }.items()
}
METHODS = {
    "adaptive": "adaptive, nothing but B",
    "adaptive+labels": "adaptive, labels given",
    "exact+labels": "exact, labels given",
    "fgla+labels": "FGLA, labels given",
    "rgla+labels": "RGLA, labels given",
    "rgla-newton+labels": "RGLA's equations by Levenberg–Marquardt, labels given",
}
EPSILONS = (1.0, 3.0, 8.0)


@dataclass(frozen=True)
class Setting:
    """The backbone, the photos, and where and how long to compute."""

    backbone: nn.Module
    photos: dict[int, list[Tensor]]  # class → pictures (3, h, w)
    classes: int
    device: str
    batches: int
    steps: int
    seconds: float


@dataclass(frozen=True)
class Drawn:
    photos: Tensor
    features: Tensor
    labels: Tensor
    head: nn.Linear


@dataclass(frozen=True)
class Run:
    cosine: float
    error: float
    predicted: float
    labels: float
    seconds: float
    psnr: float


def load_backbone(weights: str, pooled: bool) -> nn.Module:
    """ResNet-50 of the first version (stride in the 1×1 convolution) without its head."""
    own = Path(__file__).parents[1] / "examples" / "resnet50_v1.py"
    network = load_model(f"{own}:pooled", classes=1000, weights=weights).model
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


def say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def draw(setting: Setting, seed: int, same: int) -> Drawn:
    """Eight photos of eight classes, `same` of them labeled like the first; a fresh random head."""
    generator = torch.Generator().manual_seed(seed)
    known = sorted(setting.photos)
    chosen = [known[i] for i in torch.randperm(len(known), generator=generator)[:8].tolist()]
    pictures = [setting.photos[c][int(torch.randint(len(setting.photos[c]), (), generator=generator))] for c in chosen]
    labels = torch.tensor(chosen, device=setting.device)
    labels[:same] = labels[0]
    with torch.no_grad():
        features = setting.backbone(torch.stack(pictures).to(setting.device)).flatten(1)
    torch.manual_seed(seed)
    head = nn.Linear(features.shape[1], setting.classes).to(setting.device)
    return Drawn(torch.stack(pictures), features, labels, head)


def attack(setting: Setting, drawn: Drawn, update: unsum.Update, method: str, inverse: Inverse | None) -> Run:
    name, _, granted = method.partition("+")
    options = {"steps": setting.steps} if name == "rgla" else {}
    known = {"labels": drawn.labels} if granted else {"batch_size": len(drawn.labels)}
    leak = unsum.separate(drawn.head, update, name, **known, **options)
    psnr = float("nan")
    if inverse is not None:
        leak = replace(leak, images=unsum.invert(drawn.head, leak, inverse=inverse))
        psnr = unsum.score(leak, images=drawn.photos, features=drawn.features)["psnr"]
    rows = score_samples(leak, features=drawn.features, targets=drawn.labels)
    return Run(
        statistics.mean(row.feature_cosine for row in rows),
        statistics.mean(row.feature_error for row in rows),
        leak.predicted_error,
        statistics.mean(row.label_correct for row in rows),
        leak.seconds,
        psnr,
    )


def measure(setting: Setting, options: argparse.Namespace) -> dict[tuple[str, int, str], list[Run]]:
    """Runs by defense, duplicates and method, batch after batch while the time lasts."""
    runs: dict[tuple[str, int, str], list[Run]] = defaultdict(list)
    end = time.perf_counter() + 60 * options.minutes
    for seed in range(options.first, options.first + setting.batches):
        for same in options.same:
            drawn = draw(setting, seed, same)
            clean = unsum.capture(drawn.head, drawn.features, drawn.labels)
            for defense in options.defenses:
                torch.manual_seed(seed + 1000)
                update = parse_defense(defense)(clean)
                for method in options.methods:
                    if time.perf_counter() > end:
                        return runs
                    run = attack(setting, drawn, update, method, options.inverse)
                    runs[defense, same, method].append(run)
                    say(
                        f"batch {seed}, {defense}, {same}/8, {method}: cosine {run.cosine:.4f}, error {run.error:.4f}, "
                        f"{run.psnr:.2f} dB, {run.seconds:.1f} s"
                    )
    return runs


def measure_dp(setting: Setting, options: argparse.Namespace) -> dict[tuple[str, int, str], list[Run]]:
    """DP-SGD on the head: 1000 steps of 8 out of 8000 samples, δ = 1e-5, per-sample norm clipped to 1."""
    runs: dict[tuple[str, int, str], list[Run]] = defaultdict(list)
    multipliers = {f"dp, ε = {epsilon:g}": _multiplier(epsilon) for epsilon in EPSILONS} | {"dp, ε = ∞": 0.0}
    for seed in range(options.first, options.first + setting.batches):
        drawn = draw(setting, seed, 0)
        for name, noise in multipliers.items():
            torch.manual_seed(seed + 1000)
            update = unsum.capture(drawn.head, drawn.features, drawn.labels, defenses=DPSGD(noise))
            for method in options.methods:
                run = attack(setting, drawn, update, method, options.inverse)
                runs[f"{name} (σ = {noise:.2f})", 0, method].append(run)
    return runs


def _multiplier(epsilon: float) -> float:
    """The noise multiplier that spends `epsilon`, by bisection."""
    low, high = 0.2, 20.0
    for _ in range(20):
        middle = (low * high) ** 0.5
        spent = privacy_spent(middle, steps=1000, sampling_rate=8 / 8000, delta=1e-5, accountant="rdp")
        low, high = (middle, high) if spent > epsilon else (low, middle)
    return high


def show(runs: dict[tuple[str, int, str], list[Run]]) -> None:
    print(
        "| defense | labels alike | method | published PSNR, RGLA / FGLA | cosine | error | predicted "
        "| labels | PSNR | seconds | batches |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for (defense, same, method), found in runs.items():
        cosine, error, predicted, labels, seconds, psnr = (
            statistics.mean(getattr(run, field) for run in found)
            for field in ("cosine", "error", "predicted", "labels", "seconds", "psnr")
        )
        published = PUBLISHED.get(defense, "") if same == 0 else ""
        picture = "" if psnr != psnr else f"{psnr:.2f}"
        expected = "" if predicted != predicted else f"{predicted:.3f}"
        print(
            f"| {defense} | {same}/8 | {METHODS[method]} | {published} | {cosine:.4f} | {error:.4f} | {expected} "
            f"| {labels:.0%} | {picture} | {seconds:.1f} | {len(found)} |"
        )


def main() -> None:
    options = _options()
    if options.inverse is not None:  # for this backbone, under any head
        options.inverse = Inverse.load(options.inverse)
    setting = Setting(
        backbone=load_backbone(options.weights, options.pooled).to(options.device),
        photos=load_photos(options.photos, 224),
        classes=1000,
        device=options.device,
        batches=options.batches,
        steps=options.steps,
        seconds=60 * options.minutes,
    )
    name = (
        torch.cuda.get_device_name()
        if options.device.startswith("cuda")
        else f"CPU, {torch.get_num_threads()} thread(s)"
    )
    print(
        f"ResNet-50, {'pooled' if options.pooled else 'not pooled'}, C = 1000, B = 8, {name}, torch {torch.__version__}.\n"
    )
    show(measure(setting, options))
    if options.dp:
        print("\nDP-SGD:\n")
        try:
            show(measure_dp(setting, options))
        except unsum.UnsumError as reason:
            print(f"Not measured: {reason}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", required=True, help="tar file with members CLASS/name.jpg")
    parser.add_argument("--weights", required=True, help="ResNet-50 weights, safetensors with torchvision's names")
    parser.add_argument("--inverse", type=Path, help="a trained inverse of the backbone, for PSNR")
    parser.add_argument("--pooled", action="store_true", help="keep global pooling")
    parser.add_argument("--dp", action="store_true", help="DP-SGD at ε = 1, 3, 8 and ∞ as well; needs the extra dp")
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="seed of the first batch")
    parser.add_argument("--same", type=int, nargs="+", default=[0, 4, 8], help="labels of 8 that are alike")
    parser.add_argument("--defenses", nargs="*", default=[*PUBLISHED])
    parser.add_argument("--methods", nargs="+", choices=[*METHODS], default=[*METHODS])
    parser.add_argument("--steps", type=int, default=20_000, help="of RGLA's Adam")
    parser.add_argument("--minutes", type=float, default=60.0, help="nothing further is begun beyond this")
    parser.add_argument("--device", default="cpu")
    return parser.parse_args()


if __name__ == "__main__":
    with time_limit(math.inf):  # figures must not depend on how fast the machine is
        main()
