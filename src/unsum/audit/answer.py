"""Audit: the answer as users get it, ready to be gated on or written."""

from __future__ import annotations

from pathlib import Path

from unsum.audit.gate import Gate, check_level
from unsum.audit.leakage import DEFAULT_LEVEL
from unsum.audit.report import write_report
from unsum.audit.result import AuditResult


class Audit(AuditResult):
    """What the attack made of one update, beside the truth where the round was simulated.

    Examples:
        >>> import torch, unsum
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Linear(64, 20)
        >>> data = torch.randn(3, 64), torch.tensor([4, 4, 1])
        >>> report = unsum.audit(model, data)
        >>> report.verdict.headline, report.gate(0.2).exit_code
        ('This update gives away every sample of the batch.', 1)
    """

    def gate(self, level: float = DEFAULT_LEVEL) -> Gate:
        """Whether any sample leaks more than `level`, from 0 to below 1: `.result`, `.exit_code` and `.reason` say."""
        check_level(level)
        return Gate(level, self.rows)

    def write(self, folder: str | Path, *, force: bool = False) -> Path:
        """Write `report.html`, `report.md`, `result.json` and, where there are pictures, `pictures.png`.

        An existing folder is written to only with `force`.
        """
        return write_report(self, Path(folder), force=force)
