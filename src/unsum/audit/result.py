"""Audit: one audited round, ready to be shown, saved or gated on."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unsum.audit.comparison import Comparison
from unsum.audit.leakage import DEFAULT_LEVEL
from unsum.audit.pictures import picture_grid
from unsum.audit.plain import plain
from unsum.audit.rows import Row, rows
from unsum.audit.verdict import Verdict, judge, judge_captured
from unsum.data import Batch
from unsum.errors import UnsumError
from unsum.files.writing import write_text, write_whole
from unsum.leak import Leak
from unsum.score import SampleScore

if TYPE_CHECKING:
    from unsum.audit.gate import Gate

UNFINISHED = "unfinished"  # the folder of a sweep that was interrupted, inside the report's
SCHEMA_VERSION = "1.1"  # of result.json and sweep.json; described in schema/result.schema.json


@dataclass(frozen=True)
class Setting:
    """What was audited and how, enough to run it again."""

    model: str
    batch_size: int
    classes: int
    mode: str  # the client's BatchNorm mode: train or eval
    defenses: str
    attack: str
    seed: int
    device: str
    command: str
    versions: dict[str, str]


@dataclass(frozen=True)
class Audit:
    """What the attack made of one update, beside the truth where the round was simulated.

    An update captured elsewhere has no truth: `truth` is None, `samples`, `scores` and `leakages` are empty, and every output
    shows what the attack found and how far it vouches for it.

    Examples:
        >>> import torch, unsum
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Linear(64, 20)
        >>> data = torch.randn(3, 64), torch.tensor([4, 4, 1])
        >>> report = unsum.audit(model, data)
        >>> report.verdict.headline, report.gate(0.2).exit_code
        ('This update gives away every sample of the batch.', 1)
    """

    setting: Setting
    truth: Batch | None
    leak: Leak
    samples: list[SampleScore]
    scores: dict[str, float]
    seconds: float
    leakages: list[float] = field(default_factory=list)  # of every true sample, see unsum.audit.leakage
    class_names: list[str] = field(default_factory=list)  # where there is no truth to take them from
    comparison: Comparison = field(default_factory=Comparison)
    trained_on: str = ""  # a sentence where `truth` is not the client's own samples but what a defense made of them

    @property
    def verdict(self) -> Verdict:
        if self.truth is None:
            return judge_captured(self.leak)
        return judge(self.leak, self.samples, self.leakages)

    @property
    def granted(self) -> list[str]:
        return self.leak.knowledge.granted()

    @property
    def rows(self) -> list[Row]:
        return rows(self)

    def gate(self, level: float = DEFAULT_LEVEL) -> Gate:
        """Whether any sample leaks more than `level`, from 0 to below 1: `.result`, `.exit_code` and `.reason` say."""
        from unsum.audit.gate import Gate, check_level

        check_level(level)
        return Gate(level, self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the pictures, in plain types; what could not be measured is null."""
        leak = self.leak
        content = {
            "schema": SCHEMA_VERSION,
            "kind": "audit",
            "verdict": asdict(self.verdict),
            "granted": self.granted,
            "setting": asdict(self.setting),
            "attack": {
                "method": leak.method,
                "batch_size": leak.batch_size,
                "exact": leak.exact,
                "predicted_error": leak.predicted_error,
                "residual": leak.residual,
                "scale": leak.scale,
                "seconds": leak.seconds,
                "notes": leak.notes,
            },
            "truth_known": self.truth is not None,
            "scores": self.scores,
            "samples": [_sample(row) for row in self.rows],
            "trained_on": self.trained_on or None,
            "comparison": self.comparison.to_dict(),
            "seconds": self.seconds,
        }
        fit: dict[str, Any] = finite(content)
        return fit

    def true_label(self, i: int) -> str:
        if self.truth is None:
            raise UnsumError("This update came without the truth, so no true label is known.")
        target = self.truth.targets[i]
        return self.class_name(int(target if target.ndim == 0 else target.argmax()))

    def found_label(self, i: int) -> str | None:
        """What the attack takes true sample `i` for; without the truth, its own sample `i`."""
        found = i if self.truth is None else self.samples[i].found
        return None if found is None else self.class_name(int(self.leak.labels[found]))

    def class_name(self, number: int) -> str:
        names = self.class_names if self.truth is None else self.truth.class_names
        return names[number] if number < len(names) else f"class {number}"

    def write(self, folder: str | Path, *, force: bool = False) -> Path:
        """Write `report.html`, `report.md`, `result.json` and, where there are pictures, `pictures.png`.

        An existing folder is written to only with `force`.
        """
        from unsum.audit.markdown import render_markdown
        from unsum.audit.report import render  # here, so that importing unsum does not import jinja2

        folder = Path(folder)
        check_folder(folder, force=force)
        page = render(self)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "report.html", page)
        write_text(folder / "report.md", render_markdown(self))
        if self.leak.images is not None:
            write_whole(folder / "pictures.png", lambda part: picture_grid(self).save(part, format="PNG"))
        else:
            (folder / "pictures.png").unlink(missing_ok=True)  # those of an earlier audit would pass for this one's
        write_text(folder / "result.json", json.dumps(self.to_dict(), indent=2) + "\n")
        return folder / "report.html"


def _sample(row: Row) -> dict[str, Any]:
    figures = {} if row.score is None else asdict(row.score)
    return {
        "title": row.title,
        "label": row.label,
        "found_label": row.found_label,
        "leakage": row.leakage,
        **figures,
    }


def check_folder(folder: Path, *, force: bool) -> None:
    """Refuse to overwrite, or what cannot be written to, before an audit is run rather than after."""
    if folder.exists() and not folder.is_dir():
        raise UnsumError(f"{str(folder)!r} is a file; name a folder for the report.")
    standing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not standing.is_dir() or not os.access(standing, os.W_OK | os.X_OK):
        raise UnsumError(f"Nothing can be written to {str(standing)!r}; name another folder with --out.")
    if folder.exists() and any(file.name != UNFINISHED for file in folder.iterdir()) and not force:
        raise UnsumError(
            f"The folder {str(folder)!r} exists already; add --force to overwrite it, or name another with --out."
        )


def finite(value: Any) -> Any:
    """The same as JSON can hold it: without NaN, infinity and the characters that are not text."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {finite(key): finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return value
