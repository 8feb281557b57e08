"""Where a result comes from, for the line under every table."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch

from unsum.bench.declare import Cell
from unsum.bench.key import code_version
from unsum.bench.material import Material
from unsum.version import __version__


def origin(cell: Cell, material: Material, command: str) -> dict[str, str]:
    """Code, data, hardware and command of one cell, in words."""
    embedded = material.data is None or cell.data == "embedded"
    return {
        "unsum": __version__,
        "code": code_version(),
        "torch": torch.__version__,
        "data": "embedded photos" if embedded else material.data_name,
        "data_sha256": material.data_fingerprint(cell),
        "hardware": hardware(material),
        "command": command,
    }


def hardware(material: Material) -> str:
    """The machine that computes, without its name."""
    if material.device.startswith("cuda"):
        return f"{torch.cuda.get_device_name(material.device)}"
    return (
        f"{_processor()}, {os.cpu_count()} cores, {material.threads} thread{'s' if material.threads > 1 else ''} used"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
