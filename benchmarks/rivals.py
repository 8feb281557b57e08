"""RGLA's tables 2 and 8 for the attacks it is compared with: DLG, IG and GGL on ResNet-50 at 224², batches of eight.

python examples/generator.py train-a.tar train-b.tar --minutes 5 --out latent.safetensors
python benchmarks/rivals.py run --weights resnet50.safetensors --photos test.tar --generator latent.safetensors \\
    --alexnet alexnet-features.safetensors --device cuda --state states --results rivals.jsonl \\
    --batches embedded --picture rivals.jpg
python benchmarks/rivals.py try --weights … --photos … --device cuda --settings 1e-2 1e-1 1 1@0.02 --results tried.jsonl
python benchmarks/rivals.py precisions --weights … --photos … --device cuda
python benchmarks/rivals.py show rivals.jsonl
python benchmarks/rivals.py plot rivals.log steps.png

Setting of the paper: ImageNet weights, a fresh head without global pooling, photos in [0, 1], BatchNorm in train mode, labels
granted to every attack. Defenses of table 2: noise 0.01, clipping at 4, 99.9 % of every tensor pruned; table 8: k of 8 labels
the same. Settings of the attacks as published: DLG 300 steps of L-BFGS with 20 passes each, IG 24 000 of signed Adam with its
rate cut after 3/8, 5/8 and 7/8 of them, GGL 500 rounds of 50 candidates. GGL's BigGAN is replaced by the generator of
`examples/generator.py`, trained on other photos at 32² and enlarged. Pictures and photos are paired so that their distance is
smallest, which flatters attacks that found nothing.

All cells go through the network together, by `resnet_passes.py`, in float16, which rounds as finely as TF32 does, torch's
default for convolutions.
What a pass costs at least, for one batch: 0.46 TFLOP, and 42 times 0.18 GB of maps through memory: 1 and 2 ms of an H200.

`run` stops a method when its `--seconds` are over; IG goes on from `--state`. `--batches embedded` takes the embedded photos,
which may be shown; `--picture` draws figures 10 (no defense), 13, 14 and 15 (noise, clipping, pruning) of them. `try` runs IG
with few steps on one batch, all weights of total variation and rates together. `precisions` compares derivatives in float16,
bfloat16, TF32 and float32 with those in float64.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torchvision.transforms.functional import gaussian_blur
from torchvision.utils import save_image

import unsum
from evolution import Evolution
from picture_tables import RESNET, provide_alexnet
from resnet_passes import ERRORS, Passes
from unsum.bench.published import BY_DEFENSE, MATCHING_BY_DUPLICATES
from unsum.cuda_graph import recorded
from unsum.data import embedded_batch, read_photos
from unsum.defend import parse_defense
from unsum.leak import Leak
from unsum.match.lbfgs import Memory
from unsum.match.optimizers import decayed
from unsum.match.problem import Problem, pose
from unsum.match.traces import Traces
from unsum.models import load_model
from unsum.models.from_file import build_from_file
from unsum.models.strides import PHOTOS_DEVIATION, PHOTOS_MEAN
from unsum.models.weights_file import load_weights

B, CLASSES = 8, 1000
EMBEDDED = "embedded"  # the batch of photos that may be shown
DEFENSES = ("noise:0.01", "clip:4", "prune:0.999")
CELLS = {f"{same}of8": ("none", same) for same in (0, 2, 4, 6, 8)} | {name: (name, 0) for name in DEFENSES}
UNCLIPPED, CLIPPED = "0of8", "clip:4"
FIGURES = {UNCLIPPED: 10, "noise:0.01": 13, CLIPPED: 14, "prune:0.999": 15}
STEPS = {"dlg": 300, "ig": 24_000, "ggl": 500}  # as published
RATE = 0.1  # of IG
SETTING = (1e-2, RATE)  # of IG, as in `unsum.match.ig`: the weight of total variation, and the rate
BETA = 0.9  # of Adam, torch's own
INNER, HISTORY = 20, 100  # of L-BFGS, as in `unsum.match.dlg`
POPULATION, PRIOR = 50, 1e-3  # of GGL, as in `unsum.match.ggl`
LOOK = 250  # passes between two looks at losses and clock
LATENT_GENERATOR = RESNET.parent / "generator.py"


@dataclass(frozen=True)
class Client:
    """A cell's photos and labels, and the gradients as the server received them."""

    cell: str
    batch: str  # a seed, or the embedded photos
    images: Tensor
    labels: Tensor
    update: unsum.Update

    @property
    def targets(self) -> Tensor:
        return nn.functional.one_hot(self.labels, CLASSES).float()


class Bench:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.device = options, torch.device(options.device)
        loaded = load_model(options.model, classes=CLASSES, weights=options.weights, fresh_head=True)
        self.model: Any = loaded.model.to(self.device).train()
        self.size = options.side or loaded.image_size
        if options.side:  # the head reads all of the last maps, whose side is a 32nd
            self.model.fc = nn.Linear(2048 * (options.side // 32) ** 2, CLASSES).to(self.device)
        self.half = torch.float32 if self.device.type == "cpu" else torch.float16
        photos = read_photos(options.photos, size=self.size)
        self.images, self.labels = photos.images, photos.labels

    def photos(self, batch: str) -> tuple[Tensor, Tensor]:
        """Eight photos of distinct labels."""
        if batch == EMBEDDED:
            return embedded_batch(B, image_size=self.size).images, torch.arange(B) * 100
        order = torch.randperm(len(self.labels), generator=torch.Generator().manual_seed(int(batch)))
        first: dict[int, int] = {}
        for place in order.tolist():
            first.setdefault(int(self.labels[place]), place)
        chosen = torch.tensor(list(first.values())[:B])
        return self.images[chosen].float() / 255, self.labels[chosen]

    def client(self, cell: str, batch: str) -> Client:
        """It computes in full float32."""
        defense, same = CELLS[cell]
        images, labels = (t.to(self.device) for t in self.photos(batch))
        labels[:same] = labels[0].clone()
        torch.backends.cudnn.allow_tf32 = False
        update = unsum.capture(self.model, images, labels)
        torch.backends.cudnn.allow_tf32 = True
        torch.manual_seed(1000 + (0 if batch == EMBEDDED else int(batch)))
        return Client(cell, batch, images, labels, update if defense == "none" else parse_defense(defense)(update))

    def passes(self, clients: list[Client], dtype: torch.dtype) -> Passes:
        targets = torch.stack([client.targets for client in clients])
        sent = [client.update.gradients for client in clients]
        return Passes(self.model, sent, targets, dtype, compiled=self.device.type == "cuda")


class Search(ABC):
    """(K, B, 3, h, w) pictures on their way; `best` keeps those of each client's lowest loss."""

    def __init__(self, bench: Bench, clients: list[Client], method: str, dtype: torch.dtype) -> None:
        self.bench, self.clients, self.method = bench, clients, method
        self.passes = bench.passes(clients, dtype)
        shape, K = (B, 3, bench.size, bench.size), len(clients)
        self.x = self.start(0).expand(K, *shape).clone()
        self.best, self.least = self.x.clone(), torch.full((K,), torch.inf, device=bench.device)
        self.losses = self.least.clone()
        self.step, self.seconds = 0, 0.0
        self.true = torch.stack([client.images for client in clients])

    def start(self, renewed: int) -> Tensor:
        """As the engine of `unsum.match` begins, and begins anew."""
        random = torch.Generator().manual_seed(1_000_003 * renewed)
        return torch.randn((B, 3, self.bench.size, self.bench.size), generator=random).to(self.bench.device)

    def keep(self, losses: Tensor) -> None:
        lower = losses < self.least
        self.least.copy_(torch.where(lower, losses, self.least))
        self.best.copy_(torch.where(lower.view(-1, 1, 1, 1, 1), self.x, self.best))

    def go(self, steps: int, end: float) -> bool:
        """Whether all steps were taken in the time."""
        self.read()
        begun = time.monotonic()
        for start in range(self.step, steps, self.chunk):
            if time.monotonic() > end:
                break
            self.some(range(start, min(steps, start + self.chunk)), steps)
            self.step = min(steps, start + self.chunk)
            losses = self.losses.tolist()  # waits for the device
            self.seconds = time.monotonic() - begun
            quality = -10 * (self.x.clamp(0, 1) - self.true).square().mean((2, 3, 4)).log10().mean(1)
            told = {"method": self.method, "step": self.step, "seconds": round(self.seconds, 1), "losses": losses}
            told |= self.told() | {
                "least": self.least.tolist(),
                "psnr in order": [round(q, 2) for q in quality.tolist()],
            }
            print(json.dumps(told), flush=True)
            if self.step % (self.saved_every * self.chunk) == 0:
                self.write()
        self.write()
        return self.step >= steps

    chunk = LOOK
    saved_every = 10  # chunks

    def told(self) -> dict[str, Any]:
        return {}

    @abstractmethod
    def some(self, steps: range, of: int) -> None:
        """Take these steps, of so many in all."""

    def read(self) -> None:  # noqa: B027 (a method need not)
        """Go on from an earlier run, where there was one that can be gone on from."""

    def write(self) -> None:  # noqa: B027
        """What a later run needs to go on."""


class IG(Search):
    """1 − cos + α TV by Adam on the sign of the gradient, each client with an α and a rate; one step of all is one recording.

    Signs have squares of 1, so that Adam's second moment is 1 and not kept. Each client has a file of its own, with its
    pictures and their momentum: 7 MB, so that a run can be moved to another machine.
    """

    def __init__(self, bench: Bench, clients: list[Client], settings: list[tuple[float, float]]) -> None:
        super().__init__(bench, clients, "ig", bench.half)
        self.variation, self.rates = torch.tensor(settings, device=bench.device).T.contiguous()
        self.x.clamp_(0, 1)
        self.first = torch.zeros_like(self.x)
        self.cut, self.count = (torch.zeros((), device=bench.device) for _ in range(2))
        self.lost = torch.zeros(len(clients), device=bench.device)  # steps whose derivative was no number
        run = recorded(self._work, bench.device)[0]  # cut to 0 it moves nothing
        for tensor in (self.first, self.count, self.lost):
            tensor.zero_()
        self.least.fill_(torch.inf)
        self._run = run

    def _work(self) -> None:
        dot, square = self.passes(self.x)
        lengths = square.sqrt() * self.passes.sent_square.sqrt()
        variation, slope = _total_variation(self.x)
        self.losses.copy_(1 - dot / lengths + self.variation * variation)
        self.keep(self.losses)
        pull = self.passes.pull(dot / (square * lengths), -1 / lengths)
        self.lost.add_(~pull.flatten(1).sum(1).isfinite())
        sign = (pull + self.variation.view(-1, 1, 1, 1, 1) * slope).sign_()
        self.count.add_(1)
        self.first.lerp_(sign, 1 - BETA)
        length = self.rates * (self.cut / (1 - BETA**self.count))
        self.x.sub_(length.view(-1, 1, 1, 1, 1) * self.first).clamp_(0, 1)

    def some(self, steps: range, of: int) -> None:
        for step in steps:
            self.cut.fill_(decayed(1.0, step / of))
            self._run()

    def told(self) -> dict[str, Any]:
        return {"lost": self.lost.tolist()}

    def _files(self) -> list[Path]:
        folder = self.bench.options.state
        if folder is None:
            return []
        return [folder / f"ig-{client.cell.replace(':', '-')}-{client.batch}.pt" for client in self.clients]

    def write(self) -> None:
        for number, file in enumerate(self._files()):
            file.parent.mkdir(parents=True, exist_ok=True)
            kept = {"x": self.x[number].clone(), "first": self.first[number].half(), "step": self.step}
            torch.save(kept, file.with_suffix(".part"))
            file.with_suffix(".part").replace(file)

    def read(self) -> None:
        files = self._files()
        if not files or not all(file.exists() for file in files):
            return
        kept = [torch.load(file, map_location=self.bench.device, weights_only=True) for file in files]
        self.step = min(one["step"] for one in kept)
        if any(one["step"] != self.step for one in kept):
            raise SystemExit(
                "The states are of different steps: a run was stopped while it wrote them. Give another folder."
            )
        self.count.fill_(self.step)
        self.x.copy_(torch.stack([one["x"] for one in kept]))
        self.first.copy_(torch.stack([one["first"] for one in kept]))


def _total_variation(x: Tensor) -> tuple[Tensor, Tensor]:
    """(K,) mean |difference| downwards plus the one across, and the derivative by the pictures."""
    value, slope = x.new_zeros(len(x)), torch.zeros_like(x)
    for dim in (-2, -1):
        apart = x.diff(dim=dim)
        value = value + apart.abs().mean((1, 2, 3, 4))
        sign, side = apart.sign() / apart[0].numel(), x.shape[dim]
        slope.narrow(dim, 1, side - 1).add_(sign)
        slope.narrow(dim, 0, side - 1).sub_(sign)
    return value, slope


class DLG(Search):
    """‖g − ĝ‖² by L-BFGS without a line search; a client whose search diverges begins anew, as in `unsum.match`."""

    chunk = 5

    def __init__(self, bench: Bench, clients: list[Client]) -> None:
        super().__init__(bench, clients, "dlg", bench.half)
        self.slope = torch.zeros_like(self.x)
        self.memories = [Memory(x.flatten(), HISTORY) for x in self.x]
        self.renewed = [0] * len(clients)
        self._run = recorded(self._work, bench.device)[0]
        self.least.fill_(torch.inf)

    def _work(self) -> None:
        dot, square = self.passes(self.x)
        self.losses.copy_((square - 2 * dot + self.passes.sent_square).nan_to_num(torch.inf))
        self.keep(self.losses)
        self.slope.copy_(self.passes.pull(torch.full_like(dot, 2.0), torch.full_like(dot, -2.0)))

    def some(self, steps: range, of: int) -> None:  # noqa: ARG002
        for _ in steps:
            for _ in range(INNER):
                self._run()
                fine = (torch.isfinite(self.losses) & torch.isfinite(self.slope).flatten(1).all(1)).tolist()
                for client, alive in enumerate(fine):
                    self._move(client) if alive else self._anew(client)

    def _move(self, client: int) -> None:
        step = self.memories[client].direction(self.slope[client].flatten(), 1.0)
        self.x[client] += step.view_as(self.x[client])

    def told(self) -> dict[str, Any]:
        return {"began anew": self.renewed}

    def _anew(self, client: int) -> None:
        self.renewed[client] += 1
        self.x[client] = self.start(self.renewed[client])
        self.memories[client].clear()


class GGL:
    """CMA-ES over the latents of a generator; candidates get what the defense left to be seen in the update."""

    def __init__(self, bench: Bench, clients: list[Client]) -> None:
        self.bench, self.clients = bench, clients
        self.generator = Enlarged(bench.options.generator, bench.size).to(bench.device).eval().requires_grad_(False)
        first = clients[0]
        together = len(clients)  # candidates: as many as other methods have clients, for one compilation
        self.latents = torch.zeros(together, B, Enlarged.latent_shape, device=bench.device)
        targets = first.targets.expand(together, *first.targets.shape).clone()
        self.passes = Passes(
            bench.model, [first.update.gradients], targets, bench.half, compiled=bench.device.type == "cuda"
        )
        self.found = [torch.zeros(together, device=bench.device) for _ in range(2)]
        self._run = recorded(self._work, bench.device)[0]
        self.problems = [_posed(bench, client) for client in clients]
        self.traces = [Traces.of(problem) for problem in self.problems]

    @torch.no_grad()
    def _work(self) -> None:
        images = self.generator(self.latents.flatten(0, 1)).clamp(0, 1).unflatten(0, self.latents.shape[:2])
        for kept, new in zip(self.found, self.passes(images), strict=True):
            kept.copy_(new)

    def losses(self, number: int, latents: Tensor) -> Tensor:
        """(N,) of (N, B, latent) candidates for one client, whose gradients and labels the passes hold already."""
        masks = self._masks(number)
        parts = []
        for some in latents.split(len(self.latents)):
            self.latents[: len(some)] = some
            self._run()
            dot, square = self.found
            if masks is not None:
                square = _masked_square(self.passes, *masks)
            parts.append(torch.stack([dot, square])[:, : len(some)])
        dot, square = torch.cat(parts, 1)
        sent = self.passes.sent_square
        factor = (sent / square).sqrt().clamp(max=1)  # no longer than the one received
        matches = (factor.square() * square - 2 * factor * dot + sent) / sent
        return matches + PRIOR * (latents.square().mean(2) - 1).square().mean(1)

    def _masks(self, number: int) -> tuple[Tensor | None, Tensor] | None:
        """What the defense held back: entries of all tensors, or columns of the head; None: nothing."""
        given = dict(zip(self.problems[number].sent, self.traces[number].masks, strict=True))
        head = given["fc.weight"]
        if head is None:
            return None
        if all(mask is not None for mask in given.values()):
            return self.passes.laid_out(given)  # type: ignore[arg-type]
        return None, self.passes.inner(head[:1])

    def go(self, rounds: int, end: float) -> list[Tensor]:
        """(B, 3, h, w) pictures of the best candidate of each client."""
        n, K, begun = Enlarged.latent_shape, len(self.clients), time.monotonic()
        searches = [Evolution((B, n), POPULATION, 0) for _ in self.clients]
        best = [(float("inf"), torch.zeros(B, n)) for _ in self.clients]
        with ThreadPoolExecutor(max(1, min(8, K))) as pool:
            asked = [pool.submit(_ask, search) for search in searches]
            for number in range(rounds):
                for client in range(K):
                    candidates = asked[client].result()
                    self.passes.aim([self.clients[client].update.gradients])
                    self.passes.targets.copy_(self.clients[client].targets)
                    latents = torch.from_numpy(np.stack([c.value for c in candidates])).float().to(self.bench.device)
                    values = self.losses(client, latents).tolist()
                    first = int(np.argmin(values))
                    best[client] = min(best[client], (values[first], latents[first]), key=lambda pair: pair[0])
                    asked[client] = pool.submit(_told, searches[client], candidates, values)
                if number % 20 == 0 or number == rounds - 1:
                    told = {"method": "ggl", "round": number + 1, "seconds": round(time.monotonic() - begun, 1)}
                    print(json.dumps(told | {"least": [value for value, _ in best]}), flush=True)
                self.rounds = number + 1
                if time.monotonic() > end:
                    break
        return [self.generator(z.to(self.bench.device)).clamp(0, 1) for _, z in best]


def _ask(search: Evolution) -> list[Any]:
    return [search.ask() for _ in range(POPULATION)]


def _told(search: Evolution, candidates: list[Any], values: list[float]) -> list[Any]:
    for candidate, value in zip(candidates, values, strict=True):
        search.tell(candidate, value)
    return _ask(search)


def _posed(bench: Bench, client: Client) -> Problem:
    model = copy.deepcopy(bench.model)
    shape = (3, bench.size, bench.size)
    problem = pose("ggl", model, client.update, batch_size=B, shape=shape, targets=client.targets, separated=None)
    return replace(problem, model=bench.model)


def _masked_square(passes: Passes, flat: Tensor | None, head: Tensor) -> Tensor:
    """(N,) ‖g‖² without what is held back; `head` is (C, H), or (1, H) where whole columns are."""
    wide, F = passes.flat.float(), passes.features.float()
    square = (wide if flat is None else wide * flat).square().sum(1)
    if len(head) == 1:
        own = (torch.bmm(passes.G, passes.G.mT) * torch.bmm(F * head, (F * head).mT)).sum((1, 2))
    else:
        G = passes.G.to(passes.dtype)
        own = torch.stack([((g.T @ f).float() * head).square().sum() for g, f in zip(G, passes.features, strict=True)])
    return (square + own) / ERRORS**2


class Enlarged(nn.Module):
    """The small generator's pictures at the model's size."""

    latent_shape = 128

    def __init__(self, weights: Path, size: int) -> None:
        super().__init__()
        self.small, self.size = build_from_file(LATENT_GENERATOR, "build", 0), size
        load_weights(self.small, weights)

    def forward(self, latents: Tensor) -> Tensor:
        return nn.functional.interpolate(self.small(latents), (self.size, self.size), mode="bilinear")


def run(options: argparse.Namespace) -> None:
    bench = prepare(options)
    steps = STEPS | {name: int(value) for name, value in map(_named, options.steps)}
    limits = dict(map(_named, options.seconds))
    shown: dict[tuple[str, str], Tensor] = {}
    for method in options.methods:
        start = time.monotonic()
        end = start + limits.get(method, float("inf"))
        clients = clients_of(bench, method)
        if method == "ggl":
            search: Any = GGL(bench, clients)
            found = search.go(steps[method], end)
            taken, seconds = search.rounds, time.monotonic() - start
        else:
            search = DLG(bench, clients) if method == "dlg" else IG(bench, clients, [options.setting] * len(clients))
            whole = search.go(steps[method], end)
            found, taken, seconds = [*search.best.clamp(0, 1)], search.step, search.seconds
            if not whole and not options.unfinished:
                print(f"{method}: {taken} of {steps[method]} steps so far; the same command goes on", flush=True)
                continue
        del search
        for client, images in zip(clients, found, strict=True):
            own = dict(zip(("variation", "rate"), options.setting, strict=True)) if method == "ig" else {}
            note(options, client, images, method=method, steps=taken, seconds=seconds, together=len(clients), **own)
            if client.batch == EMBEDDED:
                shown[client.cell, method] = images.cpu()
        if (UNCLIPPED, "ig") in shown:
            shown[CLIPPED, "ig"] = shown[UNCLIPPED, "ig"]
        if options.picture and shown:
            draw(bench, shown, options)


def clients_of(bench: Bench, method: str) -> list[Client]:
    """Every cell of every batch, and cells that name their batch. IG compares directions and does not notice clipping, so the
    cell without a defense serves for that, too."""
    options = bench.options
    names = [cell if "@" in cell else f"{cell}@{batch}" for batch in options.batches for cell in options.cells]
    pairs = [name.split("@") for name in dict.fromkeys(names)]
    return [bench.client(cell, batch) for cell, batch in pairs if method != "ig" or cell != CLIPPED]


def note(options: argparse.Namespace, client: Client, images: Tensor, **line: Any) -> None:
    line |= {"cell": client.cell, "batch": client.batch, "hardware": _hardware(options.device)}
    line |= _scores(client, images, line["method"])
    toned = _scores(client, in_tone(images), line["method"])
    line |= {f"{name} in tone": toned[name] for name in ("psnr", "ssim", "lpips") if name in toned}
    with options.results.open("a") as file:
        file.write(json.dumps(line) + "\n")
    said = f"{line['psnr']:.2f} dB, {line['psnr in tone']:.2f} in tone"
    print(f"{client.cell}, batch {client.batch}, {line['method']}: {said}", flush=True)


def _scores(client: Client, images: Tensor, method: str) -> dict[str, float]:
    rows = client.targets.cpu()
    leak = Leak(method, rows, rows, rows[:, :0], float("nan"), float("inf"), exact=False, images=images.cpu())
    return unsum.score(leak, images=client.images, targets=client.labels)


def in_tone(images: Tensor) -> Tensor:
    """The batch with the mean and deviation that photos have. BatchNorm in train mode hardly sees brightness and contrast, and
    total variation is least without contrast; anybody can put both right."""
    mean, deviation = images.mean((0, 2, 3), keepdim=True), images.std((0, 2, 3), keepdim=True)
    usual_mean, usual = (torch.tensor(given).view(3, 1, 1).to(images) for given in (PHOTOS_MEAN, PHOTOS_DEVIATION))
    return ((images - mean) / deviation * usual + usual_mean).clamp(0, 1)


def try_out(options: argparse.Namespace) -> None:
    """IG with few steps on one batch without a defense, all settings together."""
    bench = prepare(options)
    clients = [bench.client(UNCLIPPED, options.batches[0])] * len(options.settings)
    search = IG(bench, clients, options.settings)
    search.go(options.few, time.monotonic() + options.seconds)
    for client, images, loss, (variation, rate) in zip(
        clients, search.best, search.least.tolist(), options.settings, strict=True
    ):
        own = {"variation": variation, "rate": rate, "size": bench.size, "loss": loss}
        spent = {"steps": search.step, "seconds": search.seconds, "together": len(clients)}
        note(options, client, images.clamp(0, 1), method="ig", **spent, **own)


def compare_precisions(options: argparse.Namespace) -> None:
    """Cosines between the slopes of IG's distance in each precision and in float64, at three kinds of pictures."""
    bench = prepare(options)
    torch.backends.cudnn.benchmark = False
    client = bench.client(UNCLIPPED, options.batches[0])
    true = client.images
    places = {
        "random pixels": torch.rand(true.shape, generator=torch.Generator().manual_seed(0)).to(true),
        "blurred photos": gaussian_blur(true, [31, 31]),
        "near the photos": (true + 0.05 * torch.randn(true.shape, generator=torch.Generator().manual_seed(1)).to(true)),
    }
    slopes: dict[str, dict[str, Tensor]] = {}
    for name in ("float64", "float32", "TF32", "float16", "bfloat16"):
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = name == "TF32"
        dtype = torch.float32 if name == "TF32" else getattr(torch, name)
        passes = Passes(bench.model, [client.update.gradients], client.targets[None], dtype)
        slopes[name] = {}
        for place, images in places.items():
            dot, square = passes(images[None].to(torch.promote_types(dtype, torch.float32)))
            lengths = square.sqrt() * passes.sent_square.sqrt()
            slopes[name][place] = passes.pull(dot / (square * lengths), -1 / lengths).double().flatten()
    for name, found in slopes.items():
        cosines = {p: float(nn.functional.cosine_similarity(g, slopes["float64"][p], 0)) for p, g in found.items()}
        print(json.dumps({"precision": name} | {place: round(value, 5) for place, value in cosines.items()}))


def prepare(options: argparse.Namespace) -> Bench:
    if options.alexnet:
        provide_alexnet(options.alexnet)
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    return Bench(options)


def _setting(given: str) -> tuple[float, float]:
    """The weight of total variation, and the rate where one is given: 1@0.02."""
    weight, _, rate = given.partition("@")
    return float(weight), float(rate or RATE)


def _cell(given: str) -> str:
    if given.partition("@")[0] not in CELLS:
        raise argparse.ArgumentTypeError(f"{given!r} is none of {', '.join(CELLS)}")
    return given


def _named(given: str) -> tuple[str, float]:
    name, _, value = given.partition("=")
    return name, float(value)


def _hardware(device: str) -> str:
    return torch.cuda.get_device_name() if device != "cpu" else "CPU"


def draw(bench: Bench, shown: dict[tuple[str, str], Tensor], options: argparse.Namespace) -> None:
    """A file for every figure: the photos, what every attack made of them, and IG's in tone."""
    true = bench.photos(EMBEDDED)[0]
    for cell, number in FIGURES.items():
        found = {method: shown[cell, method] for method in STEPS if (cell, method) in shown}
        rows = [true, *found.values(), *([in_tone(found["ig"])] if "ig" in found else [])]
        small = nn.functional.interpolate(torch.cat(rows), (112, 112), mode="area")
        save_image(
            small, options.picture.with_stem(f"{options.picture.stem}-{number}"), nrow=B, padding=2, pad_value=1.0
        )


def show(paths: list[Path]) -> None:
    cells: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for record in (json.loads(line) for path in paths for line in path.read_text().splitlines()):
        photos = EMBEDDED if record["batch"] == EMBEDDED else "drawn"
        cells[record["method"], record["cell"], photos].append(record)
    print("| attack | cell | photos | published | PSNR / SSIM / LPIPS | in tone | batches | steps |")
    print("|---|---|---|---|---|---|--:|---|")
    for (method, cell, photos), runs in cells.items():
        of_table_8 = MATCHING_BY_DUPLICATES[method].get(CELLS[cell][1], "")
        published = BY_DEFENSE[cell][method] if cell in DEFENSES else of_table_8
        found, toned = (
            " / ".join(f"{statistics.mean(r.get(name + end, float('nan')) for r in runs):.{digits}f}"
                       for name, digits in (("psnr", 2), ("ssim", 3), ("lpips", 3)))
            for end in ("", " in tone")
        )  # fmt: skip
        steps = f"{runs[0]['steps']} of {STEPS[method]}"
        print(f"| {method} | {cell} | {photos} | {published} | {found} | {toned} | {len(runs)} | {steps} |")


def plot(log: Path, cells: list[str], picture: Path) -> None:
    """PSNR over the steps, of a log that `run` printed to its end; rates are cut at the dotted lines."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    rows = [json.loads(line) for line in log.read_text().splitlines() if line.startswith('{"method": "ig"')]
    steps = rows[-1]["step"]
    figure, axes = pyplot.subplots(figsize=(7, 3.2), layout="constrained")
    for number, cell in enumerate(cells):
        axes.plot([row["step"] for row in rows], [row["psnr in order"][number] for row in rows], label=cell, lw=1.2)
    for part in (3, 5, 7):
        axes.axvline(steps * part / 8, color="gray", ls=":", lw=0.8)
    axes.set(xlim=(0, steps), xlabel="step of IG", ylabel="PSNR in dB")
    axes.legend(fontsize=7, ncols=2)
    figure.savefig(picture, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tasks = parser.add_subparsers(dest="task", required=True)
    for task in map(tasks.add_parser, ("run", "try", "precisions")):
        task.add_argument("--model", default=f"{RESNET}:unpooled")
        task.add_argument("--weights", required=True, help="of ResNet-50, version 1")
        task.add_argument("--side", type=int, help="of the photos, instead of the model's")
        task.add_argument("--photos", type=Path, required=True, help="whose batches are attacked")
        task.add_argument("--alexnet", type=Path, help="AlexNet's features, for LPIPS")
        task.add_argument("--device", default="cpu")
        task.add_argument("--batches", nargs="+", default=["0"], help="seeds, or embedded")
        task.add_argument("--results", type=Path, default=Path("rivals.jsonl"))
        task.set_defaults(state=None)
    task = tasks.choices["try"]
    task.add_argument("--few", type=int, default=1600, help="steps")
    task.add_argument("--settings", type=_setting, nargs="+", default=[SETTING], help=_setting.__doc__)
    task.add_argument("--seconds", type=float, default=600.0)
    task = tasks.choices["run"]
    task.add_argument("--state", type=Path, help="folder from which a run that was stopped goes on")
    task.add_argument("--generator", type=Path, help="weights that examples/generator.py made, for GGL")
    task.add_argument("--cells", type=_cell, nargs="+", default=[*CELLS], help="of all batches, or of one as 0of8@3")
    task.add_argument("--setting", type=_setting, default=SETTING, help="of IG. " + (_setting.__doc__ or ""))
    task.add_argument("--methods", nargs="+", choices=[*STEPS], default=[*STEPS])
    task.add_argument("--steps", nargs="*", default=[], help="instead of the published ones, as ig=1000")
    task.add_argument("--seconds", nargs="*", default=[], help="for a method, as dlg=100")
    task.add_argument("--unfinished", action="store_true", help="score what the time allowed")
    task.add_argument("--picture", type=Path, help="of the embedded photos, for figures 10 and 13 to 15")
    tasks.add_parser("show").add_argument("results", type=Path, nargs="+")
    task = tasks.add_parser("plot")
    task.add_argument("log", type=Path)
    task.add_argument("picture", type=Path)
    task.add_argument("--cells", nargs="+", default=[cell for cell in CELLS if cell != "clip:4"], help="in their order")
    options = parser.parse_args()
    tasks_by_name: dict[str, Callable[[Any], None]] = {
        "run": run, "try": try_out, "precisions": compare_precisions, "show": lambda given: show(given.results),
        "plot": lambda given: plot(given.log, given.cells, given.picture),
    }  # fmt: skip
    tasks_by_name[options.task](options)


if __name__ == "__main__":
    main()
