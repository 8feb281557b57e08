"""Tables of `unsum bench` on a machine that has PyTorch and little else: the cells asked for, into
a store.

    python -m unsum_bench.scripts.rgla_tables rgla-8 rgla-10 --device cuda \\
        --data imagenet-samples-224.tar --cifar cifar100-test-5k.npz \\
        --weights resnet50-v1-imagenet.fp16.safetensors --inverse inverse.safetensors \\
        --alexnet alexnet-features.safetensors --minutes 9 --store part-1.sqlite

    python -m unsum_bench.scripts.rgla_tables soft-noise soft-success \\
        --data imagenet-samples-224.tar --known paper.sqlite --threads 8

The same cells, keys and store as `unsum bench run`, which needs the command line's libraries; LPIPS
with AlexNet from a file. Stores of several processes are joined by `unsum bench merge`. One line a
cell is printed as it is measured.

    python -m unsum_bench.scripts.rgla_tables rgla-10 --attack exact --batch 256 \\
        --data imagenet-samples-224.tar --weights resnet50-v1-imagenet.fp16.safetensors \\
        --known paper.sqlite --option exact:time_limit=120 --lines exact-256.jsonl
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import torch
import torchvision
from safetensors.torch import load_file

from unsum.errors import UnsumError
from unsum.models.lpips import weights_file
from unsum_bench.declare import Cell
from unsum_bench.material import Material, declaration_of, key_of, parse_option
from unsum_bench.measure import Outcome, measure
from unsum_bench.measure.many import batch_by_batch
from unsum_bench.origin import origin
from unsum_bench.plan import cells_of_all, chosen, of_attacks, parse_shard, share
from unsum_bench.store import Store

SHOWN = (
    "psnr",
    "psnr_se",
    "ssim",
    "lpips",
    "feature_error",
    "recovered",
    "loss_error_squared",
    "twins",
    "attack_seconds",
)


def main() -> None:
    options = _options()
    if options.alexnet:
        provide_alexnet(options.alexnet)
    material = Material(
        *(options.data, options.weights, options.inverse, tuple(map(parse_option, options.option))),
        *(options.device, options.threads, options.cifar),
    )
    cells = of_attacks(
        cells_of_all(chosen(options.tables), options.size), options.attack, options.without
    )
    if options.network:
        cells = [cell for cell in cells if cell.network.name in options.network]
    if options.batch:
        cells = [cell for cell in cells if cell.batch in options.batch]
    if options.draws:
        cells = [cell for cell in cells if cell.draws > 1]
    if options.known:
        with Store(options.known, read_only=True) as earlier:
            measured = earlier.declarations("measured")
        cells = [cell for cell in cells if declaration_of(cell) not in measured]
    cells = share(cells, parse_shard(options.share))
    end = time.monotonic() + 60 * options.minutes
    if options.lines:
        for cell in cells:
            write_lines(cell, material, options.lines, end)
        return
    command = " ".join(
        ["python", *(word if "/" not in word else Path(word).name for word in sys.argv)]
    )
    with _opened(options.store) as store:
        known = store.declarations("measured")
        missing = [cell for cell in cells if declaration_of(cell) not in known]
        print(f"{len(missing)} of {len(cells)} cells to measure", flush=True)
        for number, cell in enumerate(missing):
            if time.monotonic() > end:
                print(f"The time is over with {len(missing) - number} left", flush=True)
                break
            outcome = measure(cell, material)
            source = origin(cell, material, outcome, command)
            store.put(key_of(cell, material), declaration_of(cell), cell.content(), outcome, source)
            print(f"{number + 1}: {cell}: {_shown(outcome)}", flush=True)


def provide_alexnet(features: Path) -> None:
    """LPIPS takes AlexNet from torch.hub's folder; only its convolutions count, so a file of those
    will do."""
    torch.hub.set_dir(tempfile.mkdtemp())
    network = torchvision.models.alexnet(weights=None)
    network.features.load_state_dict(
        {name.removeprefix("features."): w for name, w in load_file(features).items()}
    )
    weights_file().parent.mkdir(parents=True)
    torch.save(network.state_dict(), weights_file())


def write_lines(cell: Cell, material: Material, path: Path, end: float) -> None:
    """One JSON object a batch, with the attack's own seconds, after those that the file has; none
    is begun after `end`."""
    torch.set_num_threads(material.threads)
    earlier = path.read_text("utf-8").splitlines() if path.exists() else []
    first = sum(json.loads(line)["cell"] == str(cell) for line in earlier)
    spent = {"wall": 0.0, "cpu": 0.0}
    before = dict(spent)
    with path.open("a", encoding="utf-8") as file:
        for number, figures in enumerate(batch_by_batch(cell, material, spent, first), first):
            seconds = {f"{name}_seconds": spent[name] - before[name] for name in spent}
            line = json.dumps({"cell": str(cell), "batch": number, **figures, **seconds})
            print(line, file=file, flush=True)
            print(line, flush=True)
            before = dict(spent)
            if time.monotonic() > end:
                break


def _opened(path: str) -> Store:
    """The store; of several processes that begin at once, one makes it and the others find it made
    a moment later."""
    try:
        return Store(path)
    except UnsumError:
        time.sleep(2)
        return Store(path)


def _shown(outcome: Outcome) -> str:
    if outcome.status != "measured":
        return f"{outcome.status}: {outcome.sentence} {outcome.traceback}".strip()
    figures = (f"{name} {outcome.values[name]:.4g}" for name in SHOWN if name in outcome.values)
    return f"{', '.join(figures)} ({outcome.seconds:.1f} s, {outcome.peak_mb:,.0f} MB)"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", nargs="+")
    parser.add_argument("--size", choices=["smoke", "small", "paper"], default="paper")
    for name, text in (
        ("data", "photos: a folder, tar or npz"),
        ("cifar", "photos of CIFAR-100"),
        ("weights", "ResNet-50 version 1"),
        (
            "inverse",
            (
                "an inverse of `unsum train-inverse` for that network; without it there are no "
                "pictures"
            ),
        ),
    ):
        parser.add_argument(f"--{name}", help=text)
    parser.add_argument("--alexnet", type=Path, help="AlexNet's convolutions, for LPIPS")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--attack", nargs="*", default=[], help="only the cells of these attacks")
    parser.add_argument(
        "--without", nargs="*", default=[], help="all but the cells of these attacks"
    )
    parser.add_argument("--network", nargs="*", default=[], help="only the cells of these networks")
    parser.add_argument(
        "--batch", type=int, nargs="*", default=[], help="only the cells of these batch sizes"
    )
    parser.add_argument(
        "--option", nargs="*", default=[], help="ATTACK:KEY=VALUE, such as exact:time_limit=120"
    )
    parser.add_argument("--known", help="a store whose measured cells are left out")
    parser.add_argument("--draws", action="store_true", help="only cells of many batches")
    parser.add_argument("--share", default="1/1", help="the I-th of N shares, I/N")
    parser.add_argument("--minutes", type=float, default=9.0, help="begin no cell after this time")
    parser.add_argument("--store", default="rgla-tables.sqlite")
    parser.add_argument(
        "--lines", type=Path, help="one JSON line for every batch into this file, and no store"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
