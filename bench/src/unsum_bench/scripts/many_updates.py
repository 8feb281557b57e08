"""Updates per second, one after the other and many at once, in one run; and the memory that many
take.

    python -m unsum_bench.scripts.many_updates --updates 40
    python -m unsum_bench.scripts.many_updates --device cuda --updates 200 --one-by-one 20
    python -m unsum_bench.scripts.many_updates --memory 100 1000 10000
    python -m unsum_bench.scripts.many_updates --device cuda --files 1000 10000

The embedded model with 100 classes, 8 random photos a client, one gradient each. One after the
other is `unsum.attack` without pictures, as `attack_many` does it, on the device and on one CPU
thread; many are `unsum.attack_many` on one process, on a GPU with the algebra of many updates at
once, and on as many processes as there are cores. `--files` are as many names of DISTINCT files in
a folder, read from disk and written to SQLite. Every row is audited to the end, and all of them
must be certified, or the ratio would compare different work.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import unsum
from unsum.attack.chain import run_attack
from unsum.attack.options import AttackOptions
from unsum.audit.many.arrived import in_folder
from unsum.models import load_model
from unsum.running.progress import Progress

CLASSES, BATCH, SIDE = 100, 8, 128
DISTINCT = 16  # updates that are made; others are these again under other names


def clients(model: nn.Module, count: int) -> Iterator[unsum.Arrived]:
    torch.manual_seed(1)
    made = [
        unsum.capture(model, torch.rand(BATCH, 3, SIDE, SIDE), torch.randint(CLASSES, (BATCH,)))
        for _ in range(min(DISTINCT, count))
    ]
    for number in range(count):
        yield unsum.Arrived(f"client-{number:05}", made[number % len(made)])


def alone(model: nn.Module, updates: Iterable[unsum.Arrived], device: str) -> float:
    """Updates per second of separate calls; the first, which warms up, does not count."""
    options = AttackOptions(pictures=False, device=torch.device(device))
    network, seconds, sure = model.to(device), [], 0
    for one in updates:
        assert isinstance(one.update, unsum.Update)
        sent = one.update.map(lambda _name, tensor: tensor.to(device))
        start = time.perf_counter()
        leak = run_attack(network, sent, options)
        seconds.append(time.perf_counter() - start)
        sure += leak.exact
    model.to("cpu")
    assert sure == len(seconds), f"only {sure} of {len(seconds)} were certified"
    return (len(seconds) - 1) / sum(seconds[1:])


class Clock(Progress):
    def __init__(self) -> None:
        self.at: list[float] = []

    def part(self, done: int, total: int) -> None:  # noqa: ARG002 (only when counts)
        self.at.append(time.perf_counter())


def together(
    model: nn.Module, updates: Iterable[unsum.Arrived], first: int, device: str = "cpu", **how: Any
) -> tuple[float, float]:
    """(updates per second after the `first` ones, seconds until then): a start is paid once for all
    updates."""
    clock, start = Clock(), time.perf_counter()
    found = unsum.attack_many(model, updates, device=device, progress=clock, **how)
    states = found.counts()
    assert states == {"leaks": len(found)}, states
    assert all(finding.exact for finding in found)
    ready = clock.at[first - 1]
    return (len(clock.at) - first) / (clock.at[-1] - ready), ready - start


def megabytes(who: int) -> float:
    return resource.getrusage(who).ru_maxrss / 1024


def speed(options: argparse.Namespace) -> None:
    model = load_model("default", classes=CLASSES).model
    torch.set_num_threads(1)
    few = list(clients(model, options.one_by_one))
    print(
        "| | updates per second | over one CPU thread | over one after the other there | seconds "
        "to start |"
    )
    print("|---|--:|--:|--:|--:|", flush=True)
    base = there = 0.0

    def say(name: str, rate: float, start: float = 0.0) -> None:
        ratios = f"{rate / (base or rate):.2f} | {rate / (there or rate):.2f}"
        print(f"| {name} | {rate:.2f} | {ratios} | {start:.1f} |", flush=True)

    base = there = alone(model, few, "cpu")
    say("one after the other, one CPU thread", base)
    if options.device != "cpu":
        there = alone(model, few, options.device)
        say(f"one after the other, {options.device}", there)
        on_device = load_model("default", classes=CLASSES).model.to(options.device)
        many = list(clients(model, options.updates))
        for chunk in options.at_once:
            rate = together(on_device, many, chunk, options.device, at_once=chunk)
            say(f"many, one process, {options.device}, {chunk} at once", *rate)
    say("many, one process", *together(model, few, 1, processes=1))
    for count in options.processes:
        say(
            f"many, {count} processes",
            *together(model, clients(model, options.updates), count, processes=count),
        )


def memory(options: argparse.Namespace) -> None:
    model = load_model("default", classes=CLASSES).model
    print("| updates | seconds | a second | to start | peak MB, parent | peak MB, largest worker |")
    print("|--:|--:|--:|--:|--:|--:|", flush=True)
    for count in options.memory:
        start = time.perf_counter()
        processes = options.processes[-1]
        rate, ready = together(model, clients(model, count), processes, processes=processes)
        peaks = f"{megabytes(resource.RUSAGE_SELF):.0f} | {megabytes(resource.RUSAGE_CHILDREN):.0f}"
        print(
            f"| {count} | {time.perf_counter() - start:.0f} | {rate:.2f} | {ready:.1f} | {peaks} |",
            flush=True,
        )


def files(options: argparse.Namespace) -> None:
    """From a folder to a file, on the device: time, rate and memory by the number of updates."""
    model = load_model("default", classes=CLASSES).model
    print("| files | seconds | a second | peak MB of the process | peak MB of the GPU |")
    print("|--:|--:|--:|--:|--:|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "distinct"
        kept.mkdir()
        for one in clients(model, DISTINCT):
            assert isinstance(one.update, unsum.Update)
            one.update.save(kept / f"{one.client}.safetensors")
        made, model = sorted(kept.iterdir()), model.to(options.device)
        for count in options.files:
            names = Path(folder) / f"run-{count}"
            names.mkdir()
            for number in range(count):
                os.link(made[number % len(made)], names / f"client-{number:05}.safetensors")
            start = time.perf_counter()
            how = {
                "results": names / "found.sqlite",
                "device": options.device,
                "at_once": options.at_once[0],
            }
            found = unsum.attack_many(model, in_folder(names), **how)
            seconds = time.perf_counter() - start
            assert found.counts() == {"leaks": count}, next(iter(found))
            assert all(finding.exact for finding in found)
            on_gpu = torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else 0.0
            peaks = f"{megabytes(resource.RUSAGE_SELF):.0f} | {on_gpu:.0f}"
            print(f"| {count} | {seconds:.1f} | {count / seconds:.1f} | {peaks} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--updates", type=int, default=40, help="for several processes")
    parser.add_argument("--one-by-one", type=int, default=10, help="updates for one process")
    parser.add_argument("--processes", type=int, nargs="+", default=[os.cpu_count() or 1])
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--at-once",
        type=int,
        nargs="+",
        default=[80],
        help="updates of one computation on the device",
    )
    parser.add_argument(
        "--files", type=int, nargs="+", help="instead of speed: how many files, each in turn"
    )
    parser.add_argument(
        "--memory", type=int, nargs="+", help="instead of speed: how many updates, each in turn"
    )
    options = parser.parse_args()
    chip = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {chip}, PyTorch "
        f"{torch.__version__}\n"
    )
    (files if options.files else memory if options.memory else speed)(options)


if __name__ == "__main__":
    main()
