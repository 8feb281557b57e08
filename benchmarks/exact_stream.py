"""A head of 10 177 classes over 100 352 features: a gradient of 4 GB, read block by block from a memory-mapped file.

    uv run python benchmarks/exact_stream.py --folder /path/with/10/GB

Writes weights and gradient to safetensors files first (in another process, so that its memory does not count), then separates
the update and reports the memory that the attack itself took: anonymous pages, which cannot be given back, and the largest
resident size, which includes pages of the mapped files that the system keeps only while memory is free.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

import unsum
from unsum.deadline import time_limit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--classes", type=int, default=10_177)
    parser.add_argument("--features", type=int, default=100_352)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--prepare", action="store_true", help="only write the files")
    options = parser.parse_args()
    if options.prepare:
        prepare(options)
    else:
        subprocess.run([sys.executable, __file__, *sys.argv[1:], "--prepare"], check=True)
        attack(options)


def prepare(options: argparse.Namespace) -> None:
    """G has rank B, so the gradient is written as a product: no backward pass over a 4 GB layer is needed."""
    torch.manual_seed(0)
    C, H, B = options.classes, options.features, options.batch
    features = (torch.randn(H) + 0.5 * torch.randn(B, H)).relu()
    labels = torch.randint(C, (B,))
    layer = nn.Linear(H, C)
    with torch.no_grad():
        G = (layer(features).softmax(1) - nn.functional.one_hot(labels, C)) / B
        save_file(layer.state_dict(), options.folder / "model.safetensors")
        save_file({"features": features, "labels": labels}, options.folder / "truth.safetensors")
        del layer
        unsum.Update({"weight": G.T @ features, "bias": G.sum(0)}).save(options.folder / "update.safetensors")


def attack(options: argparse.Namespace) -> None:
    with torch.device("meta"):
        model = nn.Linear(options.features, options.classes)
    model.load_state_dict(load_file(options.folder / "model.safetensors"), assign=True)  # mapped, not copied
    before = memory()
    peaks = dict(before)
    stop = threading.Event()
    watcher = threading.Thread(target=watch, args=(peaks, stop))
    watcher.start()
    start = time.perf_counter()
    update = unsum.Update.load(options.folder / "update.safetensors")
    leak = unsum.separate(model, update)
    seconds = time.perf_counter() - start
    stop.set()
    watcher.join()

    truth = load_file(options.folder / "truth.safetensors")
    scores = unsum.score(leak, targets=truth["labels"], features=truth["features"])
    gradient = options.classes * options.features * 4 / 1e9
    print(f"gradient {gradient:.2f} GB, B = {options.batch}: {seconds:.1f} s, {leak!r}")
    print(f"worst feature error {scores['worst_feature_error']:.1e}, labels right {scores['label_correct']:.0%}")
    grown = peaks["RssAnon"] - before["RssAnon"]
    print(f"anonymous memory grew by {grown:.2f} GB ({grown / gradient:.2f} of the gradient)")
    print(f"largest resident size {peaks['VmRSS']:.2f} GB ({peaks['VmRSS'] / gradient:.2f}), mapped pages included")


def memory() -> dict[str, float]:
    """Resident and anonymous memory of this process in GB (Linux)."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(fields[name].split()[0]) / 1e6 for name in ("VmRSS", "RssAnon")}


def watch(peaks: dict[str, float], stop: threading.Event) -> None:
    while not stop.wait(0.02):
        for name, value in memory().items():
            peaks[name] = max(peaks[name], value)


if __name__ == "__main__":
    with time_limit(math.inf):  # figures must not depend on how fast the machine is
        main()
