"""Sweep: the answer as users get it, ready to be written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from unsum.audit.result import UNFINISHED, check_folder
from unsum.audit.sweep.report import render
from unsum.audit.sweep.result import SweepResult
from unsum.files.writing import write_text


class Sweep(SweepResult):
    __doc__ = SweepResult.__doc__

    def write(self, folder: str | Path, *, force: bool = False) -> Path:
        """Write `sweep.html` and `sweep.json`; an existing folder is written to only with `force`."""
        folder = Path(folder)
        check_folder(folder, force=force)
        page = render(self)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "sweep.html", page)
        write_text(folder / "sweep.json", json.dumps(self.to_dict(), indent=2) + "\n")
        shutil.rmtree(folder / UNFINISHED, ignore_errors=True)  # what an interrupted sweep had kept
        return folder / "sweep.html"
