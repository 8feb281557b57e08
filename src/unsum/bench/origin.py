"""Where a result comes from, for the line under every table."""

from __future__ import annotations

import torch

from unsum.bench.declare import Cell
from unsum.bench.key import code_version
from unsum.bench.material import Material
from unsum.bench.measure import Outcome
from unsum.version import __version__


def origin(cell: Cell, material: Material, outcome: Outcome, command: str) -> dict[str, str]:
    """Code, data, hardware and command of one cell, in words."""
    embedded = material.data is None or cell.data == "embedded"
    return {
        "unsum": __version__,
        "code": code_version(),
        "torch": torch.__version__,
        "data": "embedded photos" if embedded else material.data_name,
        "data_sha256": material.data_fingerprint(cell),
        "hardware": outcome.hardware,
        "command": command,
    }
