"""Findings on disk as they come: one JSON line each, and TensorBoard's curves where it is installed."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unsum.integrations.finding import ClientFinding

FILE = "leakage.jsonl"


class Journal:
    """Writes into `folder`, appending to what an earlier run left there; without a folder it writes nothing."""

    def __init__(self, folder: str | Path | None) -> None:
        self.folder = None if folder is None else Path(folder).absolute()  # servers may change where they stand
        self._curves: Any = None
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)

    def write(self, number: int, findings: Sequence[ClientFinding], figures: dict[str, float]) -> None:
        if self.folder is None:
            return
        with (self.folder / FILE).open("a", encoding="utf-8") as lines:
            lines.writelines(json.dumps(finding.to_dict()) + "\n" for finding in findings)
        curves = self._open_curves()
        if curves is None:
            return
        for name, value in figures.items():
            curves.add_scalar(f"unsum/{name}", value, number)
        for finding in findings:
            if math.isfinite(finding.leakage):
                curves.add_scalar(f"unsum/client/{finding.client}", finding.leakage, number)
        curves.flush()

    def _open_curves(self) -> Any:
        if self._curves is None:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                return None
            self._curves = SummaryWriter(str(self.folder))
        return self._curves


def figures_of(findings: Sequence[ClientFinding], seconds: float) -> dict[str, float]:
    """A round in numbers, as a strategy's metrics can hold them: whole numbers and finite ones only."""
    audited = [finding for finding in findings if finding.outcome == "audited"]
    leakages = [finding.leakage for finding in audited if math.isfinite(finding.leakage)]
    sure = [finding for finding in audited if finding.exact]
    figures: dict[str, float] = {
        "leak-audited": len(audited),
        "leak-not-audited": len(findings) - len(audited),
        "leak-exact": len(sure),
        "leak-exact-samples": sum(finding.batch_size or 0 for finding in sure),
        "leak-statistics": sum(finding.statistics_layers > 0 for finding in audited),
        "leak-seconds": float(seconds),
    }
    return figures | ({"leak-worst": float(max(leakages))} if leakages else {})
