"""RGLA's tables 4, 8, 10 and 11 as the paper scores them: pictures of exact, RGLA's and FGLA's features through one inverse.

python benchmarks/picture_tables.py --weights resnet50.safetensors --photos test.tar --inverse inverse.safetensors \\
    --alexnet alexnet-features.safetensors --device cuda --cells t8-0of8 t10-b256 --results results.jsonl
python benchmarks/picture_tables.py --show results.jsonl
python benchmarks/picture_tables.py --weights … --photos … --inverse … --grid pictures.png

Setting of the paper: ResNet-50 with ImageNet weights and a fresh random head without global pooling, inputs in [0, 1], BatchNorm
in train mode, labels known to RGLA and FGLA (the exact solver is given none). Photos must not have trained the inverse. Every
finished batch is a line of the results file; a run that was stopped goes on where it was. Several processes may share a
GPU, each with its own cells and file.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import platform
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torchvision
from safetensors.torch import load_file
from torch import Tensor, nn
from torchmetrics.functional.image import structural_similarity_index_measure
from torchvision.utils import save_image

import no_rich  # noqa: F401 (before the bench)
import unsum
from unsum.bench.published import BY_CLASSES, FGLA_BY_BATCH, FGLA_BY_DUPLICATES, RGLA_BY_BATCH, RGLA_BY_DUPLICATES
from unsum.data import embedded_batch, read_photos
from unsum.deadline import time_limit
from unsum.head import collect_features
from unsum.invert import Inverse, load_inverse
from unsum.invert.layout import feature_layout
from unsum.invert.losses import psnr
from unsum.models import load_model
from unsum.models.inner import tap
from unsum.models.lpips import lpips_network, weights_file
from unsum.score.samples import assign

RESNET = Path(__file__).parents[1] / "examples" / "resnet50_v1.py"
# `exact-labels` is granted the labels, as the two published ones are; `peeled` goes on to the layer of the inverse in --inner
METHODS = ("exact", "peeled", "exact-labels", "rgla", "fgla")
COLUMNS = "batches | PSNR | SSIM | LPIPS | feature error, median (worst) | seconds"


@dataclass(frozen=True)
class Cell:
    """A batch size, how many of its labels are the same, classes, size of the photos, and what the paper has for it."""

    B: int
    same: int = 0
    classes: int = 1000
    size: int = 224
    batches: int = 20
    published: str = ""


CELLS = {
    **{
        f"t8-{same}of8": Cell(8, same, published=f"RGLA {figure}, FGLA {FGLA_BY_DUPLICATES[same]}")
        for same, figure in RGLA_BY_DUPLICATES.items()
    },
    **{
        f"t10-b{B}": Cell(B, batches=20 if B < 128 else 5, published=f"RGLA {figures}, FGLA {FGLA_BY_BATCH[B]}")
        for B, figures in RGLA_BY_BATCH.items()
        if B > 8
    },
    "t4-b64": Cell(64, classes=100, published=f"RGLA {BY_CLASSES[64]}"),
    "t4-b128": Cell(128, classes=100, batches=5, published=f"RGLA {BY_CLASSES[128]} (B > C + 1)"),
    **{  # not in the paper: as many samples as the gradient has directions
        f"near-b{B}" + (f"-{same}same" if same else ""): Cell(B, same, classes=100, batches=3)
        for B, same in ((80, 0), (96, 0), (96, 48), (96, 96), (99, 0), (99, 99))
    },
    "t11-336": Cell(8, size=336, published="somewhat below 224²"),
    "t11-336-8of8": Cell(8, 8, size=336),
}


@dataclass(frozen=True)
class Case:
    """One client's photos as they reach its head, and the head's update."""

    images: Tensor
    features: Tensor
    labels: Tensor
    head: nn.Linear
    update: unsum.Update


class Bench:
    """The model, the photos and the inverse of one size of photos."""

    def __init__(self, options: argparse.Namespace, size: int) -> None:
        self.device = options.device
        factory = f"{RESNET}:unpooled" if size == 224 else f"{RESNET}:unpooled_336"
        # One class only: the head of a cell is made for each of its batches.
        self.model = (
            load_model(factory, classes=1, weights=options.weights, fresh_head=True).model.to(self.device).train()
        )
        photos = read_photos(options.photos, size=size)
        self.images, self.labels = photos.images, photos.labels
        own = load_model(
            f"{RESNET}:unpooled{_suffix(options.inverse)}", classes=1, weights=options.weights, fresh_head=True
        ).model
        # A decoder is convolutional: one trained at 224² reads the larger map of 336², too.
        self.inverse = load_inverse(own, options.inverse).at(size, feature_layout(self.model, size))
        self.inner = [load_inverse(own, path) for path in options.inner]

    def draw(self, cell: Cell, seed: int) -> Case:
        """Photos of distinct labels, as far as the classes reach."""
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(self.labels), generator=generator)
        labels = self.labels[order] % cell.classes
        if cell.classes >= cell.B:
            first: dict[int, int] = {}
            for place, label in enumerate(labels.tolist()):
                first.setdefault(label, place)
            chosen = torch.tensor(list(first.values())[: cell.B])
        else:
            chosen = torch.arange(cell.B)
        images = (self.images[order[chosen]].float() / 255).to(self.device)
        labels = labels[chosen].to(self.device)
        labels[: cell.same] = labels[0]
        features = collect_features(self.model, images)
        torch.manual_seed(seed)
        head = nn.Linear(features.shape[1], cell.classes, device=self.device)
        return Case(images, features, labels, head, unsum.capture(head, features, labels))


def _suffix(inverse: Path) -> str:
    """Of the factory whose size the inverse was trained for."""
    return "_336" if Inverse.load(inverse).card["size"] == 336 else ""


@dataclass(frozen=True)
class Answer:
    """Pictures in the order of the case; who is whose partner; what the inverse read, found and true; and the time."""

    leak: unsum.Leak
    pictures: Tensor
    read: Tensor
    true: Tensor
    partner: list[int | None]
    seconds: dict[str, float]
    reached: bool = True  # the layer of the inner inverse
    others: dict[str, Tensor] = field(
        default_factory=dict
    )  # pictures of further inverses, by the loss they were trained for


def answer(bench: Bench, case: Case, method: str) -> Answer:
    if method == "peeled":
        return _peeled(bench, case)
    granted = None if method == "exact" else case.labels
    _wait(bench.device)
    start = time.perf_counter()
    leak = unsum.separate(case.head, case.update, method.removesuffix("-labels"), labels=granted)
    _wait(bench.device)
    separated = time.perf_counter()
    found = unsum.invert(bench.model, replace(leak, features=leak.features.to(bench.device)), inverse=bench.inverse)
    _wait(bench.device)
    seconds = {"separate": separated - start, "invert": time.perf_counter() - separated}
    partner = assign(leak.features, case.features)
    return Answer(leak, _ordered(found, partner, case), leak.features, case.features, partner, seconds)


def _ordered(found: Tensor, partner: list[int | None], case: Case) -> Tensor:
    gray = torch.full_like(case.images[0], 0.5)
    return torch.stack([gray if p is None else found[p].to(gray) for p in partner])


def _peeled(bench: Bench, case: Case) -> Answer:
    """The whole update, nothing granted: exact features, then the layers above the inner inverse's undone."""
    model = bench.model
    inverse = bench.inner[0] if bench.inner else None
    if inverse is None or inverse.layer is None:
        raise SystemExit("The method 'peeled' needs --inner, an inverse of `unsum train-inverse --layer`.")
    model.fc = case.head
    update = unsum.capture(model, case.images, case.labels)
    true = _read_by(model, case.images, inverse.layer)
    _wait(bench.device)
    start = time.perf_counter()
    leak = unsum.separate(model, update)
    _wait(bench.device)
    separated = time.perf_counter()
    size = case.images.shape[-1]
    try:
        peeled = unsum.peel(model, update, leak, "residual", layer=inverse.layer, shape=(3, size, size))
    except unsum.UnsumError as reason:  # then the features' own inverse makes the pictures, as in unsum.attack
        print(reason, file=sys.stderr)
        return replace(answer(bench, case, "exact"), reached=False)
    _wait(bench.device)
    reached = time.perf_counter()
    leak = replace(leak, inner={inverse.layer: peeled.inputs})
    found = unsum.invert(model, leak, inverse=inverse)
    _wait(bench.device)
    seconds = {"separate": separated - start, "peel": reached - separated, "invert": time.perf_counter() - reached}
    partner = assign(leak.features, case.features)
    others = {
        str(other.card["loss"]): _ordered(unsum.invert(model, leak, inverse=other), partner, case)
        for other in bench.inner[1:]
    }
    pictures = _ordered(found, partner, case)
    return Answer(leak, pictures, peeled.inputs.flatten(1), true.flatten(1), partner, seconds, True, others)


def _read_by(model: nn.Module, images: Tensor, layer: str) -> Tensor:
    """What a convolution reads of the victim's photos: the truth, for the score."""
    copied = copy.deepcopy(model)
    tapped = tap(copied, layer)
    with torch.no_grad():
        copied(images)
    assert tapped.seen is not None
    return tapped.seen


def measure(bench: Bench, case: Case, method: str) -> dict[str, Any]:
    """One batch through one separator and the inverse."""
    found = answer(bench, case, method)
    rows = [
        torch.zeros_like(t) if p is None else found.read[p].to(t)
        for p, t in zip(found.partner, found.true, strict=True)
    ]
    error = (torch.stack(rows) - found.true).norm(dim=1) / found.true.norm(dim=1)
    record = {"seconds": found.seconds, "exact": found.leak.exact, "reached": found.reached, "error": error.tolist()}
    others = {loss: _scores(pictures, case.images) for loss, pictures in found.others.items()}
    return {**record, **_scores(found.pictures, case.images), "others": others}


@torch.no_grad()
def _scores(found: Tensor, true: Tensor) -> dict[str, list[float]]:
    """Every picture by itself, as a person would score it."""
    columns: dict[str, list[float]] = {"psnr": [], "ssim": [], "lpips": []}
    for f, t in zip(found.split(32), true.split(32), strict=True):
        columns["psnr"] += psnr(f, t).tolist()
        similarity = structural_similarity_index_measure(f, t, data_range=1.0, reduction="none")
        assert isinstance(similarity, Tensor)
        columns["ssim"] += similarity.tolist()
        if weights_file().is_file():
            network = lpips_network(str(f.device), str(weights_file()))
            columns["lpips"] += network(f, t, normalize=True).flatten().tolist()
    return columns


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def provide_alexnet(features: Path) -> None:
    """LPIPS takes AlexNet from torch.hub's folder; only its convolutions count, so a file of those will do."""
    torch.hub.set_dir(tempfile.mkdtemp())
    network = torchvision.models.alexnet(weights=None)
    network.features.load_state_dict({name.removeprefix("features."): w for name, w in load_file(features).items()})
    weights_file().parent.mkdir(parents=True)
    torch.save(network.state_dict(), weights_file())


def run(options: argparse.Namespace) -> None:
    torch.backends.cudnn.allow_tf32 = False  # a client in full float32: TF32 would hide everything below the head
    if options.alexnet:
        provide_alexnet(options.alexnet)
    done = {(r["cell"], r["seed"], r["method"]) for r in _read(options.results)} if options.results.exists() else set()
    benches: dict[int, Bench] = {}
    hardware = torch.cuda.get_device_name() if options.device.startswith("cuda") else platform.processor() or "CPU"
    for name in options.cells:
        cell = CELLS[name]
        bench = benches.setdefault(cell.size, Bench(options, cell.size))
        for seed in range(options.batches or cell.batches):
            missing = [method for method in options.methods if (name, seed, method) not in done]
            case = bench.draw(cell, seed) if missing else None
            for method in missing:
                assert case is not None
                record = measure(bench, case, method)
                line = {"cell": name, "seed": seed, "method": method, "hardware": hardware, **record}
                with options.results.open("a") as file:
                    file.write(json.dumps(line) + "\n")
            print(f"{name}: batch {seed + 1} of {options.batches or cell.batches}", file=sys.stderr, flush=True)


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def show(paths: list[Path]) -> None:
    """One Markdown table per table of the paper."""
    cells: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for path in paths:
        for record in _read(path):
            cells[record["cell"], record["method"]].append(record)
            for loss, scores in record.get("others", {}).items():
                cells[record["cell"], f"{record['method']}, loss {loss}"].append({**record, **scores})
    titles = {
        "t8": "Table 8: k of 8 labels the same",
        "t10": "Table 10: batch size",
        "t4": "Table 4: 100 classes",
        "near": "100 classes, nearly as many samples",
        "t11": "Table 11: 336²",
    }
    for table, title in titles.items():
        print(f"\n## {title}\n\n| cell | published PSNR / SSIM / LPIPS | features | {COLUMNS} |")
        print("|---|---|---|---|---|---|---|---|---|")
        for name, cell in CELLS.items():
            for method in [m for own in METHODS for m in (own, f"{own}, loss rgla")]:
                runs = cells.get((name, method), [])
                if name.startswith(f"{table}-") and runs:
                    print(f"| {name} | {cell.published if method == 'exact' else ''} | {method} | {_row(runs)} |")


def _row(runs: list[dict[str, Any]]) -> str:
    def mean(column: str) -> str:
        values = [v for run in runs for v in run[column]]
        return f"{statistics.mean(values):.3f}" if values else ""

    reached = sum(run.get("reached", True) for run in runs)
    batches = f"{len(runs)}" if reached == len(runs) else f"{len(runs)} ({reached} peeled)"
    errors = [e for run in runs for e in run["error"]]
    seconds = statistics.median(sum(run["seconds"].values()) for run in runs)
    return (
        f"{batches} | {mean('psnr')} | {mean('ssim')} | {mean('lpips')} "
        f"| {statistics.median(errors):.1e} ({max(errors):.1e}) | {seconds:.2f}"
    )


def grid(options: argparse.Namespace) -> None:
    """Original, peeled (with --inner), exact, RGLA, FGLA from top to bottom; distinct labels on the left, one label on the right.

    The photos are the embedded ones, because those of ImageNet may not be shown here.
    """
    bench = Bench(options, 224)
    bench.images = (embedded_batch(8, image_size=224).images * 255).round().to(torch.uint8)
    bench.labels = torch.arange(8)
    columns = []
    for same in (0, 8):
        case = bench.draw(Cell(8, same), seed=0)
        methods = ("peeled", "exact", "rgla", "fgla") if bench.inner else ("exact", "rgla", "fgla")
        answers = [answer(bench, case, method).pictures for method in methods]
        columns.append(torch.cat([torch.cat(list(row[:5]), 2) for row in (case.images, *answers)], 1).cpu())
    gap = torch.ones(3, columns[0].shape[1], 24)
    small = torch.cat([columns[0], gap, columns[1]], 2)[None]
    save_image(nn.functional.interpolate(small, scale_factor=0.5, mode="area"), options.grid)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, help="ResNet-50 version 1, torchvision's names")
    parser.add_argument(
        "--photos", help="photos that the inverse was not trained on, folders or members CLASS/name.jpg"
    )
    parser.add_argument("--inverse", type=Path)
    parser.add_argument(
        "--inner",
        type=Path,
        nargs="+",
        default=[],
        help="an inverse of an inner layer, for the method 'peeled', or several",
    )
    parser.add_argument("--alexnet", type=Path, help="AlexNet's convolutions, for LPIPS")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cells", nargs="+", choices=list(CELLS), default=list(CELLS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--batches", type=int, help="instead of the cells' own numbers")
    parser.add_argument("--results", type=Path, default=Path("picture-tables.jsonl"))
    parser.add_argument("--show", type=Path, nargs="+", help="print the tables of results files")
    parser.add_argument("--grid", type=Path, help="draw the embedded photos and what comes back of them")
    options = parser.parse_args()
    if options.show:
        show(options.show)
    elif options.grid:
        grid(options)
    else:
        run(options)


if __name__ == "__main__":
    with time_limit(math.inf):  # figures must not depend on how fast the machine is
        main()
