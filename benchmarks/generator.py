"""FGLA's generator, trained as published: the pictures that RGLA's tables are scored with, and how they depend on the photos.

python benchmarks/generator.py train --weights resnet50.safetensors --photos train-a.tar train-b.tar --test test.tar \\
    --alexnet alexnet-features.safetensors --device cuda --folder generator --seconds 400 --results generator.json
python benchmarks/generator.py score --test test.tar --alexnet … --folder generator --features cells/*.safetensors
python benchmarks/generator.py show generator.json

As published: five stages of ConvTranspose and three residual blocks (`fgla-generator`, 100 M parameters), mean squared error,
Adam with a rate of 1e-4, batches of 24; then RGLA's loss, −PSNR + 10 (1 − SSIM) + 10 LPIPS, at the same rate. Features are
those of a client: ResNet-50 of the first version, not pooled, photos in [0, 1], BatchNorm in train mode over its eight photos.
Every epoch mixes the clients anew and mirrors half of the photos. In the learning curve every number of photos has the same
number of epochs.

The folder holds an inverse for every run, which `--inverse` of other scripts takes; a run that is there is not trained again.
`score` decodes features found elsewhere: safetensors with `features` (N, H) and `photos` (N,), places in the test photos.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torchvision.utils import save_image

from picture_tables import RESNET, provide_alexnet
from unsum.data import embedded_batch, read_photos
from unsum.invert import Inverse
from unsum.invert.decoder import FglaGenerator
from unsum.invert.layout import Layout, feature_layout
from unsum.invert.losses import Loss, psnr, published
from unsum.models import load_model
from unsum.models.built import backbone_fingerprint
from unsum.models.client_batches import ClientFeatures, sharing
from unsum.models.lpips import lpips_network, lpips_status, weights_file
from unsum.score.pictures import structural_similarity

BATCH, RATE = 24, 1e-4  # as published
CLIENT = 8  # photos of a client, as in most of RGLA's tables
AT_ONCE = 256  # photos through the backbone together
BENCHED = 400  # unseen photos looked at after every epoch
FINE, COARSE = "rgla", "mse"  # names of the losses

History = list[dict[str, float]]  # one row an epoch


@dataclass
class Bench:
    """The backbone, the photos, and where to compute."""

    options: argparse.Namespace

    def __post_init__(self) -> None:
        given = self.options
        loaded = load_model(given.model, classes=1, weights=given.weights, fresh_head=True)
        self.model, self.size = loaded.model, loaded.image_size
        self.layout = feature_layout(self.model, self.size)
        self.backbone = ClientFeatures(self.model).to(given.device, memory_format=torch.channels_last)
        self.test = read_photos(given.test, size=self.size).images[: given.limit].to(given.device)

    def photos(self) -> Tensor:
        images = read_photos(self.options.photos, size=self.size).images
        shuffled = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))  # so that fewer are like all
        return images[shuffled].to(self.options.device)

    @torch.no_grad()
    def features(self, images: Tensor, *, exact: bool = False) -> Tensor:
        """(N, H) in half precision, or in full as the client has them; N is a multiple of the client's eight."""
        torch.backends.cudnn.allow_tf32 = not exact
        found = []
        for some in images.split(AT_ONCE):
            mixed = sharing(len(some), CLIENT, CLIENT).to(images.device)
            rows = self.backbone(some.float() / 255, mixed)
            found.append(rows if exact else rows.half())
        torch.backends.cudnn.allow_tf32 = True
        return torch.cat(found)


def train(
    bench: Bench, photos: Tensor, epochs: int, end: float, *, start: nn.Module | None = None
) -> tuple[nn.Module, History]:
    """The generator after so many epochs, or at the end of its time, and how it came there; a `start` is fine-tuned."""
    loss: Loss = published if start is not None else nn.functional.mse_loss
    torch.manual_seed(0)
    device = bench.options.device
    generator = start or FglaGenerator(bench.layout, bench.size)
    generator = generator.to(device, memory_format=torch.channels_last).train()
    optimizer = torch.optim.Adam(generator.parameters(), RATE, fused=device != "cpu")
    history: History = []
    began, step = time.monotonic(), 0
    for epoch in range(epochs):
        chosen = torch.randperm(len(photos), device=device)[: len(photos) // CLIENT * CLIENT]
        images = photos[chosen]
        mirrored = torch.rand(len(images), device=device) < 0.5
        images[mirrored] = images[mirrored].flip(3)
        features, errors = bench.features(images), []
        for batch in torch.randperm(len(images), device=device)[: len(images) // BATCH * BATCH].split(BATCH):
            true = images[batch].float().div_(255).contiguous(memory_format=torch.channels_last)
            with torch.autocast(torch.device(device).type, torch.bfloat16):
                found = generator(features[batch])
            error = loss(found.float(), true)
            optimizer.zero_grad()
            error.backward()
            optimizer.step()
            errors.append(nn.functional.mse_loss(found.detach().float(), true))
            step += 1
            if time.monotonic() > end and len(errors) % 10 == 0:
                break
        seen = -10 * math.log10(float(torch.stack(errors).mean()))
        unseen = bench.test[:BENCHED]
        test = score(pictures(generator, bench.features(unseen)), unseen, ("psnr",))["psnr"]
        seconds = time.monotonic() - began
        history.append({"epoch": epoch + 1, "steps": step, "seconds": seconds, "train": seen, "test": test})
        print(f"{len(photos)} photos, {step} steps, {seconds:.0f} s: {seen:.2f} dB, unseen {test:.2f} dB", flush=True)
        if time.monotonic() > end:
            break
    return generator.eval(), history


@torch.no_grad()
def pictures(generator: nn.Module, features: Tensor, *, exact: bool = False) -> Tensor:
    """(N, 3, s, s) in [0, 1]; exactly where they are scored for a table."""
    kind = features.device.type
    found = []
    for some in features.split(CLIENT * 4):
        with torch.autocast(kind, torch.bfloat16, enabled=not exact):
            found.append(generator(some.float()).float())
    return torch.cat(found)


@torch.no_grad()
def score(found: Tensor, true: Tensor, wanted: tuple[str, ...] = ("psnr", "ssim", "lpips")) -> dict[str, float]:
    """Means over pictures, each scored by itself."""
    columns: dict[str, list[Tensor]] = {name: [] for name in wanted}
    for f, t in zip(found.split(50), true.split(50), strict=True):
        t = t.float() / 255
        if "psnr" in columns:
            columns["psnr"].append(psnr(f, t))
        if "ssim" in columns:
            columns["ssim"].append(
                torch.stack([structural_similarity(a[None], b[None]) for a, b in zip(f, t, strict=True)])
            )
        if "lpips" in columns and lpips_status() is None:
            columns["lpips"].append(lpips_network(str(f.device), str(weights_file()))(f, t, normalize=True).flatten())
    return {name: float(torch.cat(values).mean()) for name, values in columns.items() if values}


def exact_scores(bench: Bench, generator: nn.Module) -> dict[str, float]:
    """Of all unseen photos, from features as a client of eight has them."""
    whole = bench.test[: len(bench.test) // CLIENT * CLIENT]
    return score(pictures(generator, bench.features(whole, exact=True), exact=True), whole)


def save(bench: Bench, generator: nn.Module, photos: int, loss: str, path: Path) -> None:
    card = {
        "photos": photos,
        "backbone": backbone_fingerprint(bench.model),
        "architecture": "fgla-generator",
        "size": bench.size,
        "layout": bench.layout.card,
        "layer": None,
        "settings": {},
        "loss": loss,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    Inverse(generator, card).save(path)


def run(options: argparse.Namespace) -> None:
    end = time.monotonic() + options.seconds
    if options.device != "cpu":
        torch.backends.cudnn.benchmark = True
        torch.set_float32_matmul_precision("high")
    if options.alexnet:
        provide_alexnet(options.alexnet)
    bench = Bench(options)
    photos = bench.photos()
    kept = options.folder / "runs.json"
    runs: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    hardware = torch.cuda.get_device_name() if options.device != "cpu" else "CPU"

    def note(name: str, generator: nn.Module, count: int, history: History) -> None:
        loss = FINE if FINE in name else COARSE
        save(bench, generator, count, loss, options.folder / f"{name}.safetensors")
        runs[name] = {
            "photos": count,
            "loss": loss,
            "hardware": hardware,
            "history": history,
            **exact_scores(bench, generator),
        }
        for path in (kept, options.results):
            path.write_text(json.dumps(runs, indent=1))
        print(name, {k: v for k, v in runs[name].items() if k in ("psnr", "ssim", "lpips")}, flush=True)

    epochs = options.epochs
    for size in options.sizes:
        count, name = min(size, len(photos)), f"{COARSE}-{size}"
        if name not in runs:
            left = end - time.monotonic()
            if left < options.least:
                break
            until = end if size != max(options.sizes) else time.monotonic() + options.share * left
            generator, history = train(bench, photos[:count], epochs, until)
            note(name, generator, count, history)
        if size == max(options.sizes) and f"{FINE}-{size}" not in runs and lpips_status() is None:
            began = Inverse.load(options.folder / f"{name}.safetensors").decoder
            until = time.monotonic() + options.fine_seconds
            generator, history = train(bench, photos[:count], options.fine_epochs, until, start=began)
            note(f"{FINE}-{size}", generator, count, history)
            draw(bench, options)
        if size == max(options.sizes):  # the others get as many epochs as it had time for
            epochs = int(runs[name]["history"][-1]["epoch"])


def draw(bench: Bench, options: argparse.Namespace) -> None:
    """Embedded photos from top to bottom: the photo, the generator after mean squared error, and after RGLA's loss."""
    if options.grid is None:
        return
    images = (embedded_batch(CLIENT, image_size=bench.size).images * 255).to(torch.uint8).to(options.device)
    features = bench.features(images, exact=True)
    rows = [images.float() / 255]
    for loss in (COARSE, FINE):
        path = options.folder / f"{loss}-{max(options.sizes)}.safetensors"
        rows.append(pictures(Inverse.load(path).decoder.to(options.device), features, exact=True))
    save_image(torch.cat([row[:6] for row in rows]).cpu(), options.grid, nrow=6, padding=4, pad_value=1.0)


def decode(options: argparse.Namespace) -> None:
    """Scores of features that other scripts found, through every generator in the folder."""
    if options.alexnet:
        provide_alexnet(options.alexnet)
    test: dict[int, Tensor] = {}
    found: dict[str, Any] = {}
    for path in sorted(options.folder.glob(f"*-{max(options.sizes)}.safetensors")):
        inverse = Inverse.load(path)
        for file in options.features:
            cell = load_file(file, device=options.device)
            side = math.isqrt(cell["features"].shape[1] // 2048)
            size = {7: 224, 11: 336}[side]  # as large as ResNet-50's last maps say
            generator = inverse.at(size, Layout("map", (2048, side, side))).decoder.to(options.device)
            if size not in test:
                test[size] = read_photos(options.test, size=size).images
            true = test[size][cell["photos"].cpu()].to(options.device)
            scores = score(pictures(generator, cell["features"], exact=True), true)
            found.setdefault(Path(file).stem, {})[path.stem] = scores
            print(Path(file).stem, path.stem, scores, flush=True)
            options.results.write_text(json.dumps(found, indent=1))


def show(path: Path) -> None:
    runs = json.loads(path.read_text())
    print("| loss | photos | epochs | steps | PSNR | SSIM | LPIPS | PSNR of the photos it was trained with | seconds |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in sorted(runs.values(), key=lambda row: (row["loss"], row["photos"])):
        last = row["history"][-1]
        print(
            f"| {row['loss']} | {row['photos']} | {last['epoch']} | {last['steps']} | {row['psnr']:.2f} | {row['ssim']:.3f} "
            f"| {row.get('lpips', math.nan):.3f} | {last['train']:.2f} | {last['seconds']:.0f} |"
        )
    curve = sorted((row for row in runs.values() if row["loss"] == COARSE), key=lambda row: row["photos"])
    epochs = curve[-1]["history"][-1]["epoch"]
    for fewer, more in pairwise(
        row for row in curve if row["history"][-1]["epoch"] == epochs
    ):  # time may have ended one
        gained = (more["psnr"] - fewer["psnr"]) / math.log2(more["photos"] / fewer["photos"])
        print(
            f"\n{fewer['photos']} → {more['photos']} photos, {epochs} epochs each: {gained:+.2f} dB for every doubling"
        )
    for own in curve[:-1]:  # with as many steps: whether it is photos or steps that were lacking
        last = own["history"][-1]
        row = min(curve[-1]["history"], key=lambda row: abs(row["steps"] - last["steps"]))
        print(
            f"\n{own['photos']} photos, {last['steps']} steps: {last['test']:.2f} dB of {BENCHED} unseen photos; "
            f"{curve[-1]['photos']} photos, {row['steps']} steps: {row['test']:.2f} dB"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tasks = parser.add_subparsers(dest="task", required=True)
    for task in (tasks.add_parser("train"), tasks.add_parser("score")):
        task.add_argument("--test", type=Path, required=True, help="photos that are only scored")
        task.add_argument("--alexnet", type=Path, help="AlexNet's features, for LPIPS")
        task.add_argument("--device", default="cpu")
        task.add_argument("--sizes", type=int, nargs="+", default=[8192, 1024, 2048, 4096], help="numbers of photos")
        task.add_argument("--folder", type=Path, required=True, help="where the generators are kept")
        task.add_argument("--results", type=Path, default=Path("generator.json"))
    task = tasks.choices["train"]
    task.add_argument("--photos", nargs="+", required=True)
    task.add_argument("--model", default=f"{RESNET}:unpooled")
    task.add_argument("--weights", required=True, help="of ResNet-50, version 1")
    task.add_argument("--epochs", type=int, default=16)
    task.add_argument("--fine-epochs", type=int, default=3)
    task.add_argument("--seconds", type=float, default=3600.0, help="of everything")
    task.add_argument("--share", type=float, default=0.5, help="of the time for the largest number of photos")
    task.add_argument("--fine-seconds", type=float, default=60.0, help="of the fine-tuning")
    task.add_argument("--least", type=float, default=15.0, help="seconds left under which nothing further is begun")
    task.add_argument("--limit", type=int, default=1000, help="unseen photos")
    task.add_argument("--grid", type=Path, help="a picture of embedded photos")
    tasks.choices["score"].add_argument("--features", nargs="+", required=True)
    tasks.add_parser("show").add_argument("results", type=Path)
    options = parser.parse_args()
    {"train": run, "score": decode, "show": lambda given: show(given.results)}[options.task](options)


if __name__ == "__main__":
    main()
