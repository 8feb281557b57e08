"""One cell → its outcome, and what that took on this machine. Whatever goes wrong stays in the
cell: a run goes on."""

from __future__ import annotations

import math
import os
import platform
import random
import re
import resource
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from unsum.errors import UnsumError
from unsum.running.deadline import time_limit
from unsum_bench.declare import Cell
from unsum_bench.material import Material
from unsum_bench.measure.attack import answer
from unsum_bench.measure.estimate import estimate
from unsum_bench.measure.many import many
from unsum_bench.measure.round import play
from unsum_bench.measure.scores import figures
from unsum_bench.measure.soft import soft
from unsum_bench.measure.twins import twins

__all__ = ["TIMES", "Outcome", "Status", "measure"]

Status = Literal["measured", "needs", "failed"]
TIMES = ("attack_seconds", "attack_cpu")  # values that no two runs share
_MEGABYTE = 1 << 20  # bytes


@dataclass(frozen=True)
class Outcome:
    """What became of a cell: its figures, what it lacks (a method's own refusal), or what went
    wrong."""

    status: Status
    values: dict[str, float] = field(default_factory=dict)
    sentence: str = ""
    traceback: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_mb: float = 0.0
    picture: bytes | None = None
    hardware: str = ""


def measure(cell: Cell, material: Material) -> Outcome:
    """The figures of one cell, the same in every run: all randomness starts from the cell's own
    seed."""
    torch.set_num_threads(material.threads)
    _seed(cell.seed)
    reset_memory(material.device)
    if material.device.startswith("cuda"):  # a client in full float32, as on a CPU
        torch.backends.cudnn.allow_tf32 = False
    start, cpu = time.perf_counter(), time.process_time()
    status: Status = "measured"
    values: dict[str, float] = {}
    picture, sentence, trace = None, "", ""
    try:
        with time_limit(math.inf):  # figures must not depend on how fast the machine is
            values, picture = _figures(cell, material)
    except UnsumError as reason:  # a method that says what it needs: an answer, not a failure
        status, sentence = "needs", str(reason)
    except Exception as error:
        status, sentence = "failed", f"{type(error).__name__}: {error}".splitlines()[0]
        # Stores are passed on: of a file's path what is above its package is nobody else's
        # business.
        trace = re.sub(r'File "[^"\n]*?/(?:site-packages|src)/', 'File "', traceback.format_exc())
    spent = (
        time.perf_counter() - start,
        time.process_time() - cpu,
        peak_megabytes(material.device),
    )
    return Outcome(status, values, sentence, trace, *spent, picture, hardware(material))


def _figures(cell: Cell, material: Material) -> tuple[dict[str, float], bytes | None]:
    if cell.data == "cifar" and material.cifar is None:
        raise UnsumError(
            "This cell is measured on photos of CIFAR-100; give their folder, tar or npz with "
            "--cifar."
        )
    of_many = {"estimate": estimate, "soft": soft, "twins": twins}
    if cell.attack.family in of_many or cell.draws > 1:
        return of_many.get(cell.attack.family, many)(cell, material), None
    played = play(cell, material)
    _seed(cell.seed)
    _wait(material.device)
    start, cpu = time.perf_counter(), time.process_time()
    found = answer(cell, played, material)
    _wait(material.device)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    values, picture = figures(cell, played, found)
    return values | {"attack_seconds": seconds, "attack_cpu": cpu}, picture


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def hardware(material: Material) -> str:
    """The machine that computes, without its name."""
    if material.device.startswith("cuda"):
        return f"{torch.cuda.get_device_name(material.device)}"
    threads = f"{material.threads} thread{'s' if material.threads > 1 else ''}"
    return f"{_processor()}, {os.cpu_count()} cores, {threads} used"


@lru_cache(maxsize=1)
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        return next(
            line.partition(":")[2].strip() for line in lines if line.startswith("model name")
        )
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def reset_memory(device: str) -> None:
    """Begin to count anew."""
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):  # elsewhere than on Linux the figure is the process's highest so far
        # the high-water mark falls to the present size
        Path("/proc/self/clear_refs").write_text("5")


def peak_megabytes(device: str) -> float:
    """Since `reset_memory`: of the process, or of the GPU where the cell computed there."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated() / _MEGABYTE
    try:
        status = Path("/proc/self/status").read_text("ascii", errors="ignore")
        return int(status.split("VmHWM:")[1].split()[0]) / 1024
    except (OSError, IndexError, ValueError):
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return used / (_MEGABYTE if sys.platform == "darwin" else 1024)
