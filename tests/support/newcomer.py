"""A new user's machine: the wheel in an environment of its own, with what its own metadata asks for
and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

from support import pages


class Newcomer:
    """`venv` holds unsum as a wheel installs it; commands run there, far from the repository."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.venv = folder, folder / "venv"
        self.python = self.venv / "bin" / "python"
        # The versions that the other tests run with: from uv's cache, in seconds. Nothing else of
        # this environment comes along.
        ours = ("unsum", "unsum-bench")
        versions = sorted(
            {f"{d.name}=={d.version}" for d in distributions() if d.name and d.name not in ours}
        )
        (folder / "versions.txt").write_text("\n".join(versions))
        for source in (pages.ROOT, pages.ROOT / "bench"):
            self.uv("build", "--wheel", "--out-dir", str(folder), str(source))
        (self.wheel,), (self.bench,) = folder.glob("unsum-*.whl"), folder.glob("unsum_bench-*.whl")
        self.uv("venv", "--python", sys.executable, str(self.venv))

    def install(self, extras: str = "", *, bench: bool = False) -> None:
        versions = str(self.folder / "versions.txt")
        wheels = [f"{self.wheel}{extras}", *[str(self.bench)] * bench]
        self.uv("pip", "install", "--python", str(self.python), "--constraint", versions, *wheels)

    def uv(self, *arguments: str) -> None:
        self.run(["uv", "--quiet", *arguments], self.folder)

    def run(self, command: list[str], folder: Path, **environment: str) -> str:
        """The output of a command; everything that would tie it to the repository is taken out of
        its environment."""
        ties = (
            "VIRTUAL_ENV", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX",
            "UV_PROJECT_ENVIRONMENT",
        )  # fmt: skip
        kept = {name: value for name, value in os.environ.items() if name not in ties}
        path = f"{self.venv / 'bin'}{os.pathsep}{kept['PATH']}"
        done = subprocess.run(
            command,
            cwd=folder,
            env=kept | {"PATH": path} | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout
