"""Pictures out of vision transformers: how many of a batch come back, how well, how long it takes
and what memory.

    python -m unsum_bench.scripts.vit  # the small ones, a few minutes on two cores
    python -m unsum_bench.scripts.vit --model b32 --batch 1 2 --device cuda
    python -m unsum_bench.scripts.vit --model small --batch 2 --grid docs/results/images/vit.png

Photos are the embedded ones, each with a label of its own. Weights are random, or trained on eight
of the photos (`--trained`). The attacker is told the batch size. Rows are Markdown.
"""

from __future__ import annotations

import argparse
import math
import platform
import resource
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torchvision.models import VisionTransformer, vit_b_16, vit_b_32
from torchvision.utils import make_grid, save_image

import unsum
from unsum import UnsumError
from unsum.attack import separate
from unsum.data import embedded_batch
from unsum.running.deadline import time_limit
from unsum.running.progress import SILENT, Progress

CLASSES = 20
SIDES = {"tiny": 32, "small": 64, "b32": 224, "b16": 224, "s16": 224, "t16": 224}
WHAT = {
    "tiny": "3 blocks of width 192, patches of 8, 32²",
    "small": "3 blocks of width 192, patches of 16, 64²",
    "b32": "torchvision ViT-B/32, 224²",
    "b16": "torchvision ViT-B/16, 224²",
    "s16": "ViT-S/16 (12 blocks of width 384), 224²",
    "t16": "ViT-T/16 (12 blocks of width 192), 224²",
}
HEADS = {"s16": 6, "t16": 3}  # of 64 channels each, as DeiT's models of these sizes have them


def build(name: str, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    if name in ("tiny", "small"):
        model: nn.Module = VisionTransformer(
            SIDES[name], SIDES[name] // 4, 3, 3, 192, 768, num_classes=CLASSES
        )
    elif name in HEADS:
        width = 64 * HEADS[name]
        model = VisionTransformer(
            SIDES[name], 16, 12, HEADS[name], width, 4 * width, num_classes=CLASSES
        )
    else:
        model = {"b32": vit_b_32, "b16": vit_b_16}[name](num_classes=CLASSES)
    # torchvision's is zero, and would send nothing below it
    model.heads.head = nn.Linear(model.hidden_dim, CLASSES)
    return model.eval()


def train(model: nn.Module, side: int, steps: int) -> None:
    images = embedded_batch(8, image_size=side).images
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), torch.arange(8)).backward()
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def psnr(found: Tensor, true: Tensor) -> tuple[Tensor, Tensor]:
    """(each true picture's PSNR by the found one that is nearest, which one that is)."""
    apart = torch.cdist(true.flatten(1).double(), found.flatten(1).double()) ** 2 / true[0].numel()
    return -10 * apart.amin(1).clamp_min(1e-12).log10(), apart.argmin(1)


def peak_gib(device: str) -> float:
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


class Stages(Progress):
    """Says on stderr when each stage begins and how many tokens each round of the search has."""

    def __init__(self) -> None:
        self.start = time.perf_counter()

    def say(self, sentence: str) -> None:
        print(
            f"  {time.perf_counter() - self.start:6.1f} s  {sentence}", file=sys.stderr, flush=True
        )

    def part(self, done: int, total: int) -> None:
        self.say(f"{done} of {total} tokens")


def row(name: str, B: int, args: argparse.Namespace) -> tuple[str, Tensor | None]:
    model, side = build(name, args.seed), SIDES[name]
    if args.trained:
        train(model, side, args.trained)
    images, labels = embedded_batch(B, image_size=side).images, torch.arange(B)
    update = unsum.capture(model, images, labels, train=False)
    start = time.perf_counter()
    past = f"{args.trained} steps" if args.trained else "random"
    try:
        progress = Stages() if args.stages else SILENT
        leak = separate(
            model,
            update,
            "tokens",
            batch_size=B,
            device=args.device,
            seed=args.seed,
            progress=progress,
        )
    except UnsumError as error:
        return (
            (
                f"| {WHAT[name]} | {past} | {B} | refused | – | – | – | "
                f"{time.perf_counter() - start:.0f} s | – | {error} |"
            ),
            None,
        )
    seconds = time.perf_counter() - start
    if leak.inputs is None:
        return (
            (
                f"| {WHAT[name]} | {past} | {B} | nothing | – | – | – | {seconds:.0f} s | – | "
                f"{leak.notes[0]} |"
            ),
            None,
        )
    found = leak.inputs.cpu()
    values, nearest = psnr(found, images)
    right = int((leak.labels.cpu()[nearest] == labels).sum())
    said = "exact" if leak.exact else f"{leak.predicted_error:.0e}"
    fits = "it explains the gradient, but patches that send little are known less well"
    why = "" if leak.exact else leak.notes[0] if len(leak.notes) > 1 else fits
    best, least = float(values.max()), float(values.min())
    text = (
        f"| {WHAT[name]} | {past} | {B} | {int((values > 18).sum())}/{B} | {least:.0f}–{best:.0f} "
        f"dB | {right}/{B} | {said} | {seconds:.0f} s | {peak_gib(args.device):.1f} GiB | {why} |"
    )
    return text, torch.cat([images, found[nearest].clamp(0, 1)])


def machine(device: str) -> str:
    if device.startswith("cuda"):
        return torch.cuda.get_device_name()
    return f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", nargs="+", choices=sorted(WHAT), default=["tiny", "small"])
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument(
        "--trained", type=int, default=0, help="steps of Adam on eight photos first"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stages", action="store_true", help="say when each stage begins")
    parser.add_argument(
        "--grid", type=Path, help="photos above, what came back below, of the last row"
    )
    args = parser.parse_args()
    print(f"{machine(args.device)}, torch {torch.__version__}, embedded photos\n")
    print(
        "| model | weights | B | pictures | PSNR | labels | certificate | time | memory | why not |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    pairs = None
    for name in args.model:
        for B in args.batch:
            text, found = row(name, B, args)
            pairs = pairs if found is None else found
            print(text, flush=True)
    if args.grid is not None and pairs is not None:
        save_image(make_grid(pairs, nrow=len(pairs) // 2, pad_value=1.0), args.grid)


if __name__ == "__main__":
    with time_limit(math.inf):  # figures must not depend on how fast the machine is
        main()
