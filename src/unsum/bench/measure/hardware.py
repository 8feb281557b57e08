"""What a cell was measured on, in words and without the machine's name."""

from __future__ import annotations

import os
import platform
from functools import lru_cache
from pathlib import Path

import torch

from unsum.bench.material import Material


def hardware(material: Material) -> str:
    """The machine that computes, without its name."""
    if material.device.startswith("cuda"):
        return f"{torch.cuda.get_device_name(material.device)}"
    return (
        f"{_processor()}, {os.cpu_count()} cores, {material.threads} thread{'s' if material.threads > 1 else ''} used"
    )


@lru_cache(maxsize=1)
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
