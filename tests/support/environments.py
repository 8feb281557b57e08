"""Environments of their own for frameworks that pin older releases of what unsum is developed
with."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

from support import pages

HEAVY = ("torch", "torchvision", "torchmetrics", "triton", "nvidia", "cuda", "numpy", "scipy")


def environment(folder: Path, *packages: str, extras: str = "") -> Path:
    """A new environment with unsum from this tree, `packages` and pytest; skipped where it cannot
    be made and need not be."""
    required = os.environ.get("UNSUM_REQUIRE_UV") == "1"
    if shutil.which("uv") is None:
        _give_up(
            "No uv on the PATH; install it (pip install uv) to test the integrations.", required
        )
    # The large packages in the versions that are here already, out of uv's cache: seconds instead
    # of gigabytes.
    versions = {
        f"{d.name}=={d.version}"
        for d in distributions()
        if d.name and d.name.lower().startswith(HEAVY)
    }
    (folder / "versions.txt").write_text("\n".join(sorted(versions)))
    python = folder / "venv" / "bin" / "python"
    commands = (
        ["uv", "venv", "--quiet", "--python", sys.executable, str(folder / "venv")],
        ["uv", "pip", "install", "--quiet", "--python", str(python), "--constraint",
        str(folder / "versions.txt"),
         "pytest", *packages, "--editable", f"{pages.ROOT}{extras}"],
    )  # fmt: skip
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
        if done.returncode:
            _give_up(f"The environment cannot be made: {done.stderr.strip()[-500:]}", required)
    return python


def _give_up(reason: str, required: bool) -> None:
    if required:
        pytest.fail(reason)
    pytest.skip(reason)
