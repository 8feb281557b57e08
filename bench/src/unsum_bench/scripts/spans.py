"""Samples out of two dense layers: how many, how exactly, how fast. One table per word on the
command line.

# widths 256 and 512, B up to 0.44 of the width
python -m unsum_bench.scripts.spans sizes --photos cifar.npz
# share of samples found over B / width and depth
python -m unsum_bench.scripts.spans map  --photos cifar.npz
# activations, classes, labels, losses, precisions
python -m unsum_bench.scripts.spans kinds --photos cifar.npz
# the federated tutorials' network, untrained and trained
python -m unsum_bench.scripts.spans lenet --photos cifar.npz
python -m unsum_bench.scripts.spans tables  # networks for tables, fewer columns than samples
# local training unrolled, the number of steps not told
python -m unsum_bench.scripts.spans steps --photos cifar.npz
python -m unsum_bench.scripts.spans vgg  # VGG-16's dense part: time and memory
# dropout that is on, and AlexNet's dense part with it
python -m unsum_bench.scripts.spans dropout --photos cifar.npz
# networks as wide and deep as SPEAR's
python -m unsum_bench.scripts.spans spear --photos cifar.npz
# widths up to 2048 on a GPU, and where the time goes
python -m unsum_bench.scripts.spans gpu  --device cuda

Photos are an npz with `images` (N, 32, 32, 3) and `labels`; `gpu` takes crops of the embedded
photos where none are given. A sample counts as found when what the first of the two layers read
came back to within 1 %; `made up` counts answers that are more than 1 % away from every true one.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torchvision
from torch import Tensor, nn

import unsum
from unsum.data import embedded_batch, photo_count
from unsum.errors import UnsumError
from unsum.spans import method, search

CLOSE = 1e-2
ACTIVATIONS = {
    "ReLU": nn.ReLU, "LeakyReLU": nn.LeakyReLU, "GELU": nn.GELU, "SiLU": nn.SiLU, "ELU": nn.ELU,
    "Tanh": nn.Tanh, "Sigmoid": nn.Sigmoid,
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """What one batch gave away."""

    found: int
    labels: int
    made_up: int
    samples: int
    worst: float
    exact: bool
    seconds: float

    def __str__(self) -> str:
        if self.found == 0:
            return f"| 0 of {self.samples} | | {self.made_up} | | no | {self.seconds:.1f} |"
        sure = "yes" if self.exact else "no"
        return (
            f"| {self.found} of {self.samples} | {self.labels} | {self.made_up} | {self.worst:.0e} "
            f"| {sure} | {self.seconds:.1f} |"
        )


HEADER = "found | labels | made up | largest error | exact | CPU seconds |\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    tables = {
        "sizes": sizes,
        "map": reach,
        "kinds": kinds,
        "lenet": lenets,
        "tables": rows_of_tables,
        "steps": unrolled,
        "vgg": vgg,
        "dropout": dropout,
        "spear": spear,
        "gpu": gpu,
    }
    parser.add_argument("table", choices=tables)
    parser.add_argument("--photos", type=Path, help="an npz of photos of 32²")
    parser.add_argument("--batches", type=int, nargs="+", help="instead of the table's own")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--time-limit", type=float, default=150.0, help="seconds for all rows of `gpu` together"
    )
    options = parser.parse_args()
    if options.photos is None and options.table not in ("tables", "vgg", "gpu"):
        parser.error(f"{options.table} needs --photos FILE.npz")
    print(f"{torch.get_num_threads()} threads, {options.device}, torch {torch.__version__}\n")
    for line in tables[options.table](options):
        print(line, flush=True)


def photos(
    options: argparse.Namespace, B: int, classes: int, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """(B, 3, 32, 32) in [−1, 1] as the tutorials scale them, and labels (B,) below `classes`."""
    if options.photos is None:
        return crops(B, classes, seed)
    content = np.load(options.photos)
    chosen = np.random.default_rng(seed).permutation(len(content["images"]))[:B]
    images = torch.from_numpy(content["images"][chosen]).permute(0, 3, 1, 2).float() / 127.5 - 1
    return images, torch.from_numpy(content["labels"][chosen]).long() % classes


def crops(B: int, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Squares of any size out of the embedded photos, as (B, 3, 32, 32) in [−1, 1], with random
    labels."""
    generator = torch.Generator().manual_seed(seed)
    whole = embedded_batch(photo_count(), image_size=256).images * 2 - 1
    squares = []
    for number in torch.randint(len(whole), (B,), generator=generator).tolist():
        side = int(torch.randint(32, 160, (1,), generator=generator))
        top, left = torch.randint(256 - side, (2,), generator=generator).tolist()
        square = whole[number : number + 1, :, top : top + side, left : left + side]
        squares.append(nn.functional.interpolate(square, (32, 32), mode="area"))
    return torch.cat(squares), torch.randint(classes, (B,), generator=generator)


def mlp(*widths: int, activation: type[nn.Module] = nn.ReLU, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    layers: list[nn.Module] = [nn.Flatten()]
    for n, m in itertools.pairwise(widths):
        layers += [nn.Linear(n, m), activation()]
    return nn.Sequential(*layers[:-1])


def lenet(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84),
        nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def trained(model: nn.Sequential, x: Tensor, y: Tensor, steps: int) -> nn.Sequential:
    """After steps of SGD with momentum on batches of 32, as the tutorials train."""
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        some = torch.randint(len(x), (32,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[some]), y[some]).backward()
        optimizer.step()
    return model


def attacked(
    model: nn.Sequential,
    x: Tensor,
    y: Tensor,
    update: unsum.Update,
    by_step: tuple[int, float, float] | None = None,
    dropped: bool = False,  # x is what the first layer read: dropout would fall anew
    **known: object,
) -> Row:
    start = time.process_time()
    try:
        leak = unsum.separate(model, update, "spans", **known)
    except UnsumError:
        return Row(0, 0, 0, len(x), float("inf"), False, time.process_time() - start)
    seconds = time.process_time() - start
    if leak.batch_size == 0:
        return Row(0, 0, 0, len(x), float("inf"), False, seconds)
    name, found = next(iter(leak.inner.items()))
    true = (
        read_by(model, name, x) if by_step is None else read_in_steps(model, name, x, y, *by_step)
    ).double()
    true = x.flatten(1).double() if dropped else true
    apart = torch.cdist(true, found.double()) / true.norm(dim=1, keepdim=True)
    errors, partners = apart.min(1)
    close = errors < CLOSE
    right = int((leak.labels[partners][close] == y[close]).sum())
    made_up = int((apart.min(0).values > CLOSE).sum())
    worst = float(errors[close].max()) if bool(close.any()) else float("inf")
    return Row(int(close.sum()), right, made_up, len(x), worst, leak.exact, seconds)


def read_by(model: nn.Module, name: str, x: Tensor) -> Tensor:
    """(B, n) what a layer reads."""
    seen: list[Tensor] = []
    with (
        torch.no_grad(),
        model.get_submodule(name).register_forward_hook(lambda _m, read, _o: seen.append(read[0])),
    ):
        model(x)
    return seen[0].flatten(1)


def sizes(options: argparse.Namespace) -> Iterator[str]:
    yield "| network | B | " + HEADER + "|---|---|---|---|---|---|---|---|"
    usual = {
        (256, 256): (8, 16, 32, 64, 80, 96, 112),
        (512, 512): (64, 128),
        (256, 256, 256): (120, 128),
    }
    for hidden, batches in usual.items():
        for B in options.batches or batches:
            x, y = photos(options, B, 10)
            model = mlp(3072, *hidden, 10).to(options.device)
            x, y = x.to(options.device), y.to(options.device)
            row = attacked(model, x, y, unsum.capture(model, x, y), batch_size=B)
            yield f"| {'-'.join(map(str, (3072, *hidden, 10)))} | {B} {row}"


def reach(options: argparse.Namespace) -> Iterator[str]:
    """Share of the samples that were found."""
    shares = (0.1, 0.2, 0.3, 0.4, 0.5)
    yield "| hidden layers of 128 | " + " | ".join(f"B = {round(128 * s)}" for s in shares) + " |"
    yield "|---|" + "---|" * len(shares)
    pool = photos(options, 2000, 10, seed=1)
    for depth, steps in itertools.product((2, 3, 4), (0, 1500)):
        cells = []
        for share in shares:
            B = round(128 * share)
            model = trained(mlp(3072, *[128] * depth, 10), *pool, steps)
            x, y = photos(options, B, 10)
            row = attacked(model, x, y, unsum.capture(model, x, y), batch_size=B, time_limit=60)
            cells.append(f"{row.found / B:.0%}{' exact' if row.exact else ''}")
        yield f"| {depth}, {'trained' if steps else 'untrained'} | " + " | ".join(cells) + " |"


def kinds(options: argparse.Namespace) -> Iterator[str]:
    yield "| 3072-256-256-C, B = 32 | " + HEADER + "|---|---|---|---|---|---|---|"
    for name, activation in ACTIVATIONS.items():
        for C in (2, 10):
            x, y = photos(options, 32, C)
            model = mlp(3072, 256, 256, C, activation=activation)
            row = attacked(model, x, y, unsum.capture(model, x, y), batch_size=32, time_limit=60)
            yield f"| {name}, C = {C} {row}"
    x, y = photos(options, 32, 10)
    model = mlp(3072, 256, 256, 10)
    update = unsum.capture(model, x, y)
    for name, defense in (
        ("clipped to 0.1", unsum.defend.Clip(0.1)), ("float16", unsum.defend.Float16()),
        ("bfloat16", unsum.defend.BFloat16()), ("noise of 1e-6", unsum.defend.Noise(1e-6)),
        ("noise of 1e-4", unsum.defend.Noise(1e-4)),
    ):  # fmt: skip
        yield f"| {name} {attacked(model, x, y, defense(update), batch_size=32, time_limit=60)}"


def lenets(options: argparse.Namespace) -> Iterator[str]:
    yield "| LeNet, 400-120-84-10 | B | " + HEADER + "|---|---|---|---|---|---|---|---|"
    pool = photos(options, 4000, 10, seed=1)
    for steps in (0, 300, 3000):
        model = trained(lenet(), *pool, steps)
        for B in options.batches or (8, 16, 32):
            x, y = photos(options, B, 10)
            row = attacked(model, x, y, unsum.capture(model, x, y), batch_size=B)
            yield f"| {f'{steps} steps trained' if steps else 'untrained'} | {B} {row}"


def unrolled(options: argparse.Namespace) -> Iterator[str]:
    """The number of steps is not told; that of all samples is, with the rate and, where there is
    one, the momentum."""
    yield "| network | steps × samples | rate | " + HEADER + "|---|---|---|---|---|---|---|---|---|"
    pool = photos(options, 4000, 10, seed=1)
    networks = {
        "3072-256-256-10": lambda: mlp(3072, 256, 256, 10),
        "LeNet, untrained": lenet,
        "LeNet, 300 steps trained": lambda: trained(lenet(), *pool, 300),
    }
    for name, steps, B, rate, momentum, epochs in (
        ("3072-256-256-10", 4, 8, 0.05, 0.0, 1), ("3072-256-256-10", 8, 8, 0.1, 0.0, 1),
        ("3072-256-256-10", 8, 8, 0.01, 0.0, 1), ("3072-256-256-10", 16, 4, 0.05, 0.0, 1),
        ("3072-256-256-10", 16, 4, 0.01, 0.0, 1), ("3072-256-256-10", 8, 4, 0.05, 0.9, 1),
        ("3072-256-256-10", 4, 8, 0.05, 0.0, 2), ("LeNet, untrained", 4, 8, 0.1, 0.0, 1),
        ("LeNet, 300 steps trained", 4, 8, 0.1, 0.0, 1),
        ("LeNet, 300 steps trained", 4, 8, 0.01, 0.0, 1),
        ("LeNet, 300 steps trained", 4, 8, 0.01, 0.9, 1),
    ):  # fmt: skip
        model = networks[name]()
        x, y = photos(options, steps * B, 10)
        known = unsum.capture_local(
            model, x, y, learning_rate=rate, batch_size=B, momentum=momentum, epochs=epochs
        )
        training = unsum.LocalTraining(learning_rate=rate, momentum=momentum)
        update = known.of_training(training, dict(model.named_parameters()))
        row = attacked(
            model, x, y, update, by_step=(B, rate, momentum), batch_size=steps * B, time_limit=300
        )
        told = f", momentum {momentum}" if momentum else f", {epochs} epochs" if epochs > 1 else ""
        yield f"| {name} | {steps} × {B}{told} | {rate} {row}"


def read_in_steps(
    model: nn.Module, name: str, x: Tensor, y: Tensor, B: int, rate: float, momentum: float
) -> Tensor:
    """(N, n) what a layer reads in the step that sees a sample first: the layers below it are
    trained, too."""
    trained_so_far, read = copy.deepcopy(model), []
    optimizer = torch.optim.SGD(trained_so_far.parameters(), rate, momentum=momentum)
    for some, labels in zip(x.split(B), y.split(B), strict=True):
        read.append(read_by(trained_so_far, name, some))
        optimizer.zero_grad()
        nn.functional.cross_entropy(trained_so_far(some), labels).backward()
        optimizer.step()
    return torch.cat(read)


def rows_of_tables(options: argparse.Namespace) -> Iterator[str]:
    yield "| network | B | " + HEADER + "|---|---|---|---|---|---|---|---|"
    for (n, width, C), B in itertools.product(
        ((12, 64, 2), (30, 128, 2), (54, 256, 7)), options.batches or (8, 16, 32)
    ):
        x = torch.randn(B, n, generator=torch.Generator().manual_seed(B))
        y = torch.randint(C, (B,), generator=torch.Generator().manual_seed(1))
        model = mlp(n, width, width, C)
        row = attacked(model, x, y, unsum.capture(model, x, y), batch_size=B)
        yield f"| {n}-{width}-{width}-{C} | {B} {row}"


def dropout(options: argparse.Namespace) -> Iterator[str]:
    """Masks are the client's; a sample counts as found when what the first layer read, dropped or
    not, came back."""
    yield (
        "| network, dropout after every hidden layer | p | B | "
        + HEADER
        + "|---|---|---|---|---|---|---|---|---|"
    )
    for width, p, batches in (
        (256, 0.1, (16, 32, 64)),
        (256, 0.5, (16, 32, 40, 48)),
        (512, 0.5, (64,)),
    ):
        for B in options.batches or batches:
            x, y = photos(options, B, 10)
            torch.manual_seed(0)
            hidden = [
                nn.Linear(3072, width),
                nn.ReLU(),
                nn.Dropout(p),
                nn.Linear(width, width),
                nn.ReLU(),
                nn.Dropout(p),
            ]
            model = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(width, 10))
            row = attacked(
                model, x, y, unsum.capture(model, x, y), dropped=True, batch_size=B, time_limit=60
            )
            yield f"| 3072-{width}-{width}-10 | {p} | {B} {row}"
    for B in options.batches or (16,):
        model = torchvision.models.alexnet().classifier
        x = torch.relu(torch.randn(B, 9216, generator=torch.Generator().manual_seed(B)))
        y = torch.randint(1000, (B,), generator=torch.Generator().manual_seed(1))
        torch.manual_seed(1)
        update = unsum.capture(model, x, y)
        torch.manual_seed(1)
        row = attacked(model, nn.functional.dropout(x, 0.5), y, update, dropped=True, batch_size=B)
        yield (
            "| AlexNet's dense part, 9216-4096-4096-1000, dropout before each hidden layer | 0.5 | "
            f"{B} {row}"
        )


def spear(options: argparse.Namespace) -> Iterator[str]:
    """Six layers; widths and batches that SPEAR is reported with, and beyond."""
    yield "| network | B | " + HEADER + "|---|---|---|---|---|---|---|---|"
    for width, batches in ((200, (20, 25, 64, 80)), (400, (50, 150)), (2000, (100,))):
        for B in options.batches or batches:
            x, y = photos(options, B, 10)
            model = mlp(3072, *[width] * 5, 10)
            row = attacked(model, x, y, unsum.capture(model, x, y), batch_size=B, time_limit=300)
            yield f"| 3072-{width}-{width}-{width}-{width}-{width}-10 | {B} {row}"


def gpu(options: argparse.Namespace) -> Iterator[str]:
    """Wall seconds, after a small network that wakes the device up; a line below each row says
    where they went."""
    end = time.perf_counter() + options.time_limit
    model = mlp(3072, 64, 64, 10).to(options.device)
    x, y = (part.to(options.device) for part in photos(options, 16, 10))
    unsum.separate(model, unsum.capture(model, x, y), "spans", batch_size=16)
    yield f"awake after {options.time_limit - end + time.perf_counter():.1f} s\n"
    yield "| network | B | " + HEADER.replace("CPU ", "") + "|---|---|---|---|---|---|---|---|"
    for width, B in ((256, 64), (512, 128), (2048, 512), (512, 192), (2048, 700)):
        left = end - time.perf_counter()
        if left < 1 or (options.batches and B not in options.batches):
            continue
        model = mlp(3072, width, width, 10).to(options.device)
        x, y = (part.to(options.device) for part in photos(options, B, 10))
        update = unsum.capture(model, x, y)
        with phases(options.device) as spent:
            start = time.perf_counter()
            row = attacked(model, x, y, update, batch_size=B, time_limit=left)
            row = replace(row, seconds=time.perf_counter() - start)
        yield f"| 3072-{width}-{width}-10 | {B} {row}"
        yield (
            "<!-- "
            + ", ".join(f"{name} {seconds:.2f} s in {n}" for name, (n, seconds) in spent.items())
            + " -->"
        )


@contextmanager
def phases(device: str) -> Iterator[dict[str, tuple[int, float]]]:
    """(calls, wall seconds) of the parts of the search; those inside each other count in both."""
    spent: dict[str, tuple[int, float]] = {}
    plain = {
        (module, name): getattr(module, name)
        for module, names in (
            (
                method,
                ("choose_pair", "search", "deflate", "refined", "_polished", "_settled", "judge"),
            ),
            (search, ("reflected", "descend", "predicted_errors")),
        )
        for name in names
    }

    def timed(name: str, function: Callable[..., object]) -> Callable[..., object]:
        def run(*args: object, **options: object) -> object:
            start = time.perf_counter()
            result = function(*args, **options)
            if device != "cpu":
                torch.cuda.synchronize()
            calls, seconds = spent.get(name, (0, 0.0))
            spent[name] = calls + 1, seconds + time.perf_counter() - start
            return result

        return run

    for (module, name), function in plain.items():
        setattr(module, name, timed(name.strip("_"), function))
    try:
        yield spent
    finally:
        for (module, name), function in plain.items():
            setattr(module, name, function)


def vgg(options: argparse.Namespace) -> Iterator[str]:
    yield "| 25088-4096-4096-1000 | " + HEADER + "|---|---|---|---|---|---|---|"
    for B in options.batches or (16, 64):
        torch.manual_seed(0)
        model = mlp(25088, 4096, 4096, 1000)
        x = torch.relu(torch.randn(B, 25088, generator=torch.Generator().manual_seed(B)))
        y = torch.randint(1000, (B,), generator=torch.Generator().manual_seed(1))
        update = unsum.capture(model, x, y)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        row = attacked(model, x, y, update, batch_size=B)
        taken = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20
        size = sum(g.numel() * g.element_size() for g in update.gradients.values()) / 2**30
        yield (
            f"| B = {B}: {taken:.1f} GB more than before the attack, the gradient takes {size:.1f} "
            f"GB {row}"
        )


if __name__ == "__main__":
    main()
