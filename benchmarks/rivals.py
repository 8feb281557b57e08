"""RGLA's tables 2 and 8 for the attacks it is compared with: DLG, IG and GGL on ResNet-50 at 224², batches of eight.

python examples/generator.py train-a.tar train-b.tar --minutes 5 --out latent.safetensors
python benchmarks/rivals.py run --weights resnet50.safetensors --photos test.tar --generator latent.safetensors \\
    --alexnet alexnet-features.safetensors --device cuda --batches 0 1 --seconds 500 --results rivals.jsonl --picture rivals.jpg
python benchmarks/rivals.py curve --weights … --photos … --device cuda --steps 250 500 1000 2000 --results curve.jsonl
python benchmarks/rivals.py show rivals.jsonl

Setting of the paper: ImageNet weights, a fresh head without global pooling, photos in [0, 1], BatchNorm in train mode, labels
granted to every attack. Defenses of table 2: noise 0.01, clipping at 4, 99.9 % of every tensor pruned; table 8: k of 8 labels
the same. Settings of the attacks as published, but for the number of steps, which the time allows and every row states: DLG
300 steps of L-BFGS with 20 passes each, IG 24 000 of signed Adam with its rate cut after 3/8, 5/8 and 7/8 of them, GGL 500
rounds of 50 candidates. GGL's BigGAN is replaced by the generator of `examples/generator.py`, trained on other photos at 32²
and enlarged. Pictures and photos are paired so that their distance is smallest, which flatters attacks that found nothing.

What a pass of IG costs at least, at B = 8: ResNet-50 has 4.1 billion products for a photo of 224², 33 for the batch; forward,
backward by inputs and by weights, and four more to differentiate these by the pictures: 0.46 TFLOP, 1 to 3 ms of an H200 in
TF32. Its maps are 0.35 GB and pass through memory some forty times, the head's 100 million weights and their gradient (0.4 GB
each) a dozen times: 4 ms more. The published steps of one cell of one batch are then 2 to 3 minutes of IG, 40 s of DLG.

Several cells of one batch run side by side, each on a stream of its own. `--picture` adds a batch of embedded photos, which may
be shown: figures 10 (no defense), 13, 14 and 15 (noise, clipping, pruning). `curve` runs IG on one batch with several numbers
of steps, each with its own cuts of the rate, so that one sees what more steps would bring; and in full float32 beside TF32.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.utils import save_image

import unsum
from evolution import Evolution
from picture_tables import RESNET, provide_alexnet
from twice import cheap_twice
from unsum.bench.published import BY_DEFENSE, MATCHING_BY_DUPLICATES
from unsum.cuda_graph import recorded
from unsum.data import embedded_batch, read_photos
from unsum.defend import parse_defense
from unsum.gradients import quiet
from unsum.match import evaluate, match
from unsum.match import ggl as ggl_module
from unsum.match.many import Many
from unsum.models import load_model
from unsum.models.from_file import build_from_file
from unsum.models.weights_file import load_weights
from unsum.progress import Progress

B, CLASSES = 8, 1000
DEFENSES = ("noise:0.01", "clip:4", "prune:0.999")
CELLS = {f"{same}of8": ("none", same) for same in (0, 2, 4, 6, 8)} | {name: (name, 0) for name in DEFENSES}
FIGURES = {"0of8": 10, "noise:0.01": 13, "clip:4": 14, "prune:0.999": 15}
SHARES = {"ig": 0.5, "dlg": 0.2, "ggl": 0.3}  # of the time
MARGIN = 0.85  # of the time that is planned with: other programs may come
TRIED = {"dlg": 1, "ig": 20, "ggl": 1}  # steps by which the pace is measured
PUBLISHED_STEPS = {"dlg": 300, "ig": 24_000, "ggl": 500}
LATENT_GENERATOR = RESNET.parent / "generator.py"


class Replayed(Many):
    """One candidate's pass, recorded once: at 224² its kernels fill a GPU, and starting them takes longer than they do."""

    @contextmanager
    def ready(self) -> Iterator[None]:
        with quiet(self.problem.model, []):
            yield

    def _some(self, images: Tensor) -> list[Tensor]:
        if not hasattr(self, "_input"):
            self._input, self._found = images[0].clone(), []
            self._run = recorded(self._work, images.device)[0]
        passes = [self._passed(batch) for batch in images]
        return [torch.stack(tensors) for tensors in zip(*passes, strict=True)]

    def _work(self) -> None:
        self._found[:] = self._one(self._input)

    def _passed(self, batch: Tensor) -> list[Tensor]:
        self._input.copy_(batch)
        self._run()
        return [found.clone() for found in self._found]


class Enlarged(nn.Module):
    """The small generator's pictures at the model's size."""

    latent_shape = 128

    def __init__(self, weights: Path, size: int) -> None:
        super().__init__()
        self.small, self.size = build_from_file(LATENT_GENERATOR, "build", 0), size
        load_weights(self.small, weights)
        self.photos = "those that examples/generator.py was given"

    def forward(self, latents: Tensor) -> Tensor:
        return nn.functional.interpolate(self.small(latents), (self.size, self.size), mode="bilinear")


@dataclass(frozen=True)
class Client:
    """A cell's photos and labels, the model they were put through, and the update as the server received it."""

    cell: str
    images: Tensor
    labels: Tensor
    model: nn.Module
    update: unsum.Update


class Bench:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        loaded = load_model(options.model, classes=CLASSES, weights=options.weights, fresh_head=True)
        self.model = loaded.model.to(options.device, memory_format=torch.channels_last).train()
        self.size = loaded.image_size
        photos = read_photos(options.photos, size=self.size)
        self.images, self.labels = photos.images, photos.labels
        self.generator = None if options.generator is None else Enlarged(options.generator, self.size)

    def photos(self, batch: int | None) -> tuple[Tensor, Tensor]:
        """Eight photos of distinct labels; None: the embedded ones."""
        if batch is None:
            return embedded_batch(B, image_size=self.size).images, torch.arange(B) * 100
        order = torch.randperm(len(self.labels), generator=torch.Generator().manual_seed(batch))
        first: dict[int, int] = {}
        for place in order.tolist():
            first.setdefault(int(self.labels[place]), place)
        chosen = torch.tensor(list(first.values())[:B])
        return self.images[chosen].float() / 255, self.labels[chosen]

    def client(self, cell: str, batch: int | None) -> Client:
        defense, same = CELLS[cell]
        images, labels = (t.to(self.options.device) for t in self.photos(batch))
        labels[:same] = labels[0]
        torch.manual_seed(batch or 0)
        model = copy.deepcopy(self.model)  # threads must not share one: matching sets its flags
        model.fc.reset_parameters()
        update = unsum.capture(model, images, labels)
        torch.manual_seed(1000 + (batch or 0))
        return Client(cell, images, labels, model, update if defense == "none" else parse_defense(defense)(update))

    def attack(self, client: Client, method: str, steps: int, progress: Progress, **further: Any) -> unsum.Leak:
        if method == "ggl":
            further["generator"] = self.generator
        return match(
            client.model, client.update, method, labels=client.labels, progress=progress, steps=steps, **further
        )


class _Turns(Progress):
    """The first steps, in which CUDA graphs are recorded, are taken one client after the other; then all go on together."""

    def __init__(self, lock: threading.Lock, everybody: threading.Barrier) -> None:
        self._lock, self._everybody, self._first = lock, everybody, True

    def step(self, number: int, *losses: float) -> None:  # noqa: ARG002
        self.leave()

    def leave(self) -> None:
        if self._first:
            self._first = False
            torch.cuda.synchronize() if torch.cuda.is_available() else None
            self._lock.release()
            self._everybody.wait()


def side_by_side(tasks: list[Callable[[Progress], unsum.Leak]]) -> list[unsum.Leak | Exception]:
    """All tasks at once, each in a thread with a stream of its own: one batch of eight leaves most of a large GPU idle."""
    lock, everybody = threading.Lock(), threading.Barrier(len(tasks))
    found: list[Any] = [None] * len(tasks)

    def work(place: int) -> None:
        own = torch.cuda.stream(torch.cuda.Stream()) if torch.cuda.is_available() else nullcontext()
        with own:
            lock.acquire()
            turns = _Turns(lock, everybody)
            try:
                found[place] = tasks[place](turns)
            except Exception as error:  # the others go on
                found[place] = error
            turns.leave()
            if torch.cuda.is_available():
                torch.cuda.current_stream().synchronize()

    threads = [threading.Thread(target=work, args=(place,)) for place in range(len(tasks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def attacked(bench: Bench, clients: list[Client], method: str, steps: int) -> list[unsum.Leak | Exception]:
    """GGL's candidates fill the GPU by themselves, and its memory: one client after the other."""
    found: list[unsum.Leak | Exception] = []
    at_once = 1 if method == "ggl" else bench.options.at_once
    for start in range(0, len(clients), at_once):
        some = clients[start : start + at_once]
        found += side_by_side([lambda turns, c=client: bench.attack(c, method, steps, turns) for client in some])
    return found


def affordable(bench: Bench, clients: list[Client], method: str, seconds: float) -> int:
    """Steps of all clients that fit into the time, by the pace of a few of some: the second of two runs, when all is warm."""
    few, some = TRIED[method], clients[: 1 if method == "ggl" else bench.options.at_once]
    times = []
    for steps in (few, 3 * few):
        start = time.monotonic()
        attacked(bench, some, method, steps)
        times.append(time.monotonic() - start)
    pace = max(1e-3, (times[1] - times[0]) / (2 * few), times[1] / (8 * few))
    groups = -(-len(clients) // len(some))
    print(f"{method}: {pace:.3f} s a step of {len(some)} cells, {times} s", flush=True)
    return max(few, min(PUBLISHED_STEPS[method], int((MARGIN * seconds / groups - times[0]) / pace)))


@contextmanager
def cheap_quiet(model: nn.Module, names: Collection[str]) -> Iterator[None]:
    with quiet(model, names), cheap_twice(model):
        yield


def prepare(options: argparse.Namespace) -> Bench:
    if options.alexnet:
        provide_alexnet(options.alexnet)
    if options.device != "cpu":
        torch.backends.cudnn.benchmark = True
        ggl_module.Many = Replayed  # type: ignore[misc]
    if options.cheap:
        evaluate.quiet = cheap_quiet  # type: ignore[assignment]
    if find_spec("nevergrad") is None:
        ggl_module._cma = lambda shape, _steps, population, seed: Evolution(shape, population, seed)
    return Bench(options)


def run(options: argparse.Namespace) -> None:
    end = time.monotonic() + options.seconds
    bench = prepare(options)
    steps: dict[str, int] = dict(_named(given) for given in options.steps)
    rounds: list[tuple[int | None, list[str]]] = [(batch, options.cells) for batch in options.batches]
    if options.picture:
        rounds.insert(1, (None, [cell for cell in FIGURES if cell in options.cells]))
    portion = sum(len(cells) for _, cells in rounds) / len(options.cells)
    for batch, cells in rounds:
        shown: dict[tuple[str, str], Tensor] = {}
        clients = [bench.client(cell, batch) for cell in cells]
        for method in options.methods:
            if method not in steps:
                share = SHARES[method] / sum(SHARES[name] for name in options.methods)
                steps[method] = affordable(bench, clients, method, options.seconds * share / portion)
            if time.monotonic() > end:
                break
            shown |= noted(bench, clients, batch, method, steps[method])
            if batch is None:
                draw(bench, shown, options)


def noted(
    bench: Bench, clients: list[Client], batch: int | None, method: str, steps: int
) -> dict[tuple[str, str], Tensor]:
    """One attack on all cells of a batch, a line for each; returns the pictures."""
    start, options = time.monotonic(), bench.options
    leaks = attacked(bench, clients, method, steps)
    seconds, shown = time.monotonic() - start, {}
    for client, leak in zip(clients, leaks, strict=True):
        line: dict[str, Any] = {"cell": client.cell, "batch": batch, "method": method, "steps": steps}
        line |= {"seconds": seconds, "together": len(clients), "hardware": _hardware(options.device)}
        if isinstance(leak, Exception):
            line["error"] = str(leak)
        else:
            line |= unsum.score(leak, images=client.images, targets=client.labels)
            shown[client.cell, method] = leak.images
        _write(options, line)
        print(f"{client.cell}, batch {batch}, {method}: {line.get('psnr', line.get('error'))}", flush=True)
    return shown


def curve(options: argparse.Namespace) -> None:
    """IG on batch 0 without a defense: PSNR by the number of steps and the weight of total variation; TF32 and float32."""
    bench = prepare(options)
    client = bench.client("0of8", 0)
    end = time.monotonic() + options.seconds
    shortest = min(options.steps)
    runs = [(shortest, 1e-2, False), *((steps, 1e-2, True) for steps in options.steps), (shortest, 1e-1, True)]
    for steps, variation, tf32 in runs:
        if time.monotonic() > end:
            break
        torch.backends.cudnn.allow_tf32 = tf32
        start = time.monotonic()
        task = partial(bench.attack, client, "ig", steps, total_variation=variation)
        (leak,) = side_by_side([task])
        if isinstance(leak, Exception):
            raise leak
        seconds = time.monotonic() - start
        line = {"steps": steps, "total_variation": variation, "tf32": tf32, "seconds": seconds}
        line |= {
            "match": float(leak.history["match"][-1]),
            **unsum.score(leak, images=client.images, targets=client.labels),
        }
        _write(options, line)
        print({name: value for name, value in line.items() if not isinstance(value, str)}, flush=True)


def _write(options: argparse.Namespace, line: dict[str, Any]) -> None:
    with options.results.open("a") as file:
        file.write(json.dumps(line) + "\n")


def _named(given: str) -> tuple[str, int]:
    name, _, value = given.partition("=")
    return name, int(value)


def _hardware(device: str) -> str:
    return torch.cuda.get_device_name() if device != "cpu" else "CPU"


def draw(bench: Bench, shown: dict[tuple[str, str], Tensor], options: argparse.Namespace) -> None:
    """A block for every figure: the photos, then what every attack made of them."""
    true = bench.photos(None)[0]
    rows = []
    for cell in FIGURES:
        found = [shown[cell, method] for method in options.methods if (cell, method) in shown]
        rows += [true, *(images.cpu() for images in found if len(images))]
    small = nn.functional.interpolate(torch.cat(rows), (112, 112), mode="area")
    save_image(small, options.picture, nrow=B, padding=2, pad_value=1.0)


def show(paths: list[Path]) -> None:
    cells: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for record in (json.loads(line) for path in paths for line in path.read_text().splitlines()):
        if record["batch"] is not None and "psnr" in record:
            cells[record["cell"], record["method"]].append(record)
    print("| cell | attack | published PSNR | PSNR | SSIM | LPIPS | batches | steps | of the published |")
    print("|---|---|---|---|---|---|---|---|---|")
    for (cell, method), runs in cells.items():
        table = (
            BY_DEFENSE[cell] if cell in DEFENSES else {method: MATCHING_BY_DUPLICATES[method].get(CELLS[cell][1], "")}
        )
        means = [
            statistics.mean(r[name] for r in runs) if name in runs[0] else float("nan")
            for name in ("psnr", "ssim", "lpips")
        ]
        done = runs[0]["steps"]
        print(
            f"| {cell} | {method} | {table[method]} | {means[0]:.2f} | {means[1]:.3f} | {means[2]:.3f} "
            f"| {len(runs)} | {done} | {done / PUBLISHED_STEPS[method]:.0%} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tasks = parser.add_subparsers(dest="task", required=True)
    for task in (tasks.add_parser("run"), tasks.add_parser("curve")):
        task.add_argument("--model", default=f"{RESNET}:unpooled")
        task.add_argument("--weights", required=True, help="of ResNet-50, version 1")
        task.add_argument("--photos", type=Path, required=True, help="whose batches are attacked")
        task.add_argument("--generator", type=Path, help="weights that examples/generator.py made, for GGL")
        task.add_argument("--alexnet", type=Path, help="AlexNet's features, for LPIPS")
        task.add_argument("--device", default="cpu")
        task.add_argument("--cheap", action="store_true", help="second derivatives of twice.py instead of torch's own")
        task.add_argument("--at-once", type=int, default=4, help="cells side by side")
        task.add_argument("--seconds", type=float, default=3600.0, help="from which the steps are chosen")
        task.add_argument("--results", type=Path, default=Path("rivals.jsonl"))
    task = tasks.choices["run"]
    task.add_argument("--cells", nargs="+", choices=[*CELLS], default=[*CELLS])
    task.add_argument("--methods", nargs="+", choices=[*SHARES], default=[*SHARES])
    task.add_argument("--batches", type=int, nargs="+", default=[0])
    task.add_argument("--steps", nargs="*", default=[], help="instead, as ig=1000")
    task.add_argument("--picture", type=Path, help="for figures 10 and 13 to 15")
    tasks.choices["curve"].add_argument("--steps", type=int, nargs="+", default=[250, 500, 1000, 2000, 4000])
    tasks.add_parser("show").add_argument("results", type=Path, nargs="+")
    options = parser.parse_args()
    {"run": run, "curve": curve, "show": lambda given: show(given.results)}[options.task](options)


if __name__ == "__main__":
    main()
