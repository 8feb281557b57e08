"""The peak memory of one cell: the process's own where the system lets it be reset (Linux), and the GPU's."""

from __future__ import annotations

import resource
import sys
from contextlib import suppress
from pathlib import Path

import torch

_MEGABYTE = 1 << 20


def reset(device: str) -> None:
    """Begin to count anew."""
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):  # elsewhere than on Linux the figure is the process's highest so far
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark falls to the present size


def peak_megabytes(device: str) -> float:
    """Since `reset`: of the process, or of the GPU where the cell computed there."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated() / _MEGABYTE
    try:
        status = Path("/proc/self/status").read_text("ascii", errors="ignore")
        return int(status.split("VmHWM:")[1].split()[0]) / 1024
    except (OSError, IndexError, ValueError):
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return used / (_MEGABYTE if sys.platform == "darwin" else 1024)
