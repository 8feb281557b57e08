"""Where a figure comes from, for the line under every table."""

from __future__ import annotations

import torch

from unsum.version import __version__
from unsum_bench.declare import Cell
from unsum_bench.material import Material, code_version
from unsum_bench.measure import Outcome


def origin(cell: Cell, material: Material, outcome: Outcome, command: str) -> dict[str, str]:
    """Code, data, hardware and command of one cell, in words."""
    return {
        "unsum": __version__,
        "code": code_version(),
        "torch": torch.__version__,
        "data": material.data_name(cell),
        "data_sha256": material.data_fingerprint(cell),
        "hardware": outcome.hardware,
        "command": command,
    }
