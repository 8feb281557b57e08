"""What the federated tutorials' network (examples/lenet.py) gives away in pictures, a batch of 32
at a time.

python -m unsum_bench.scripts.lenet train  --photos cifar10-train.npz --steps 300 \\
    --out trained.safetensors
python -m unsum_bench.scripts.lenet batches --photos cifar10-test.npz --inverse lenet-inverse \\
    [--weights trained.safetensors]
python -m unsum_bench.scripts.lenet picture --inverse lenet-inverse \\
    --out docs/images/lenet-audit.png

`train` makes the trained network: SGD with momentum on batches of 32, as the tutorials train.
`batches` audits batches of photos that trained nothing. `picture` audits 32 crops of the embedded
photos, two of each, and draws them.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

import unsum
from unsum.audit.pictures import picture_grid
from unsum.data import Batch, client_batch, embedded_batch, open_data, photo_count, read_photos
from unsum.models import load_model
from unsum.running.deadline import time_limit

NET = Path(__file__).parents[4] / "examples" / "lenet.py"
BATCH, CLASSES = 32, 10


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    tasks = {"train": train, "batches": batches, "picture": picture}
    parser.add_argument("task", choices=tasks)
    parser.add_argument("--photos", type=Path, help="a folder, tar or npz of photos in ten classes")
    parser.add_argument(
        "--weights", type=Path, help="of the trained network; by default it is untrained"
    )
    parser.add_argument("--inverse", type=Path, help="what `unsum train-inverse --layer fc1` wrote")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    tasks[options.task](options)


def network(options: argparse.Namespace) -> nn.Module:
    return load_model(f"{NET}:build", classes=CLASSES, weights=options.weights).model


def train(options: argparse.Namespace) -> None:
    model, photos = network(options), read_photos(options.photos, size=32)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    generator = torch.Generator().manual_seed(0)
    for _ in range(options.steps):
        some = torch.randint(len(photos), (BATCH,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(
            model(photos.images[some] / 255), photos.labels[some]
        ).backward()
        optimizer.step()
    save_file(model.state_dict(), options.out)


def batches(options: argparse.Namespace) -> None:
    """A line for each batch: samples and labels found, the certificate, PSNR, seconds."""
    model, source = network(options), open_data(options.photos)
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}\n")
    print(
        "| batch | found | labels | exact | PSNR, mean (least to largest) | seconds "
        "|\n|---|---|---|---|---|---|"
    )
    means = []
    for seed in range(options.draws):
        report, seconds = audited(
            model, client_batch(source, BATCH, image_size=32, seed=seed), options.inverse
        )
        scores = [sample.psnr for sample in report.samples]
        means.append(statistics.fmean(scores))
        found = sum(sample.feature_error < 1e-2 for sample in report.samples)
        right = sum(sample.label_correct == 1 for sample in report.samples)
        spread = f"{means[-1]:.1f} ({min(scores):.1f} to {max(scores):.1f})"
        print(
            f"| {seed} | {found} | {right} | {report.leak.exact} | {spread} | {seconds:.1f} |",
            flush=True,
        )
    print(f"\n{statistics.fmean(means):.2f} dB on average.")


def picture(options: argparse.Namespace) -> None:
    report, _ = audited(network(options), crops(), options.inverse)
    print(report.verdict.headline, f"{report.scores['psnr']:.1f} dB, exact: {report.leak.exact}")
    drawn = picture_grid(report)
    drawn.resize((drawn.width // 2, drawn.height // 2)).quantize(256).save(
        options.out, optimize=True
    )


def audited(model: nn.Module, batch: Batch, inverse: Path) -> tuple[unsum.Audit, float]:
    start = time.perf_counter()
    granted = unsum.Attacker(inverse=inverse, batch_size_known=True)
    return unsum.audit(model, batch, attacker=granted), time.perf_counter() - start


def crops() -> Batch:
    """The left and the right half of every embedded photo's middle, 32²; labels go around."""
    whole = embedded_batch(photo_count(), image_size=64)
    images = torch.cat([whole.images[:, :, 16:48, :32], whole.images[:, :, 16:48, 32:]])
    titles = [f"{title}, {side}" for side in ("left", "right") for title in whole.titles]
    return Batch(
        images, torch.arange(BATCH) % CLASSES, titles, [f"class {c}" for c in range(CLASSES)]
    )


if __name__ == "__main__":
    with time_limit(math.inf):  # figures must not depend on how fast the machine is
        main()
