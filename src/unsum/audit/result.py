"""Audit: one audited round, ready to be shown, saved or gated on."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from unsum.audit.pictures import picture_grid
from unsum.audit.verdict import Verdict, judge, judge_captured
from unsum.data import Batch
from unsum.errors import UnsumError
from unsum.leak import Leak
from unsum.score import SampleScore


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

    An update captured elsewhere has no truth: `truth` is None, `samples` and `scores` are empty, and every output shows what the
    attack found and how far it vouches for it.
    """

    setting: Setting
    truth: Batch | None
    leak: Leak
    samples: list[SampleScore]
    scores: dict[str, float]
    seconds: float
    class_names: list[str] = field(default_factory=list)  # where there is no truth to take them from

    @property
    def verdict(self) -> Verdict:
        if self.truth is None:
            return judge_captured(self.leak)
        return judge(self.leak, self.samples)

    @property
    def granted(self) -> list[str]:
        return self.leak.knowledge.granted()

    def to_dict(self) -> dict[str, Any]:
        """Everything but the pictures, in plain types; what could not be measured is null."""
        leak = self.leak
        content = {
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
            "samples": [self._sample(i) for i in range(self.rows)],
            "seconds": self.seconds,
        }
        plain: dict[str, Any] = finite(content)
        return plain

    @property
    def rows(self) -> int:
        """How many samples there are to show: the true ones or, without the truth, those that were found."""
        return self.leak.batch_size if self.truth is None else len(self.samples)

    def title(self, i: int) -> str:
        return f"recovered sample {i + 1}" if self.truth is None else self.truth.titles[i]

    def _sample(self, i: int) -> dict[str, Any]:
        if self.truth is None:
            return {"title": self.title(i), "label": None, "found_label": self.found_label(i)}
        row = asdict(self.samples[i])
        return {"title": self.title(i), "label": self.true_label(i), "found_label": self.found_label(i), **row}

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
        """Write `report.html`, `result.json` and, where there are pictures, `pictures.png`.

        An existing folder is written to only with `force`.
        """
        from unsum.audit.report import render  # here, so that importing unsum does not import jinja2

        folder = Path(folder)
        check_folder(folder, force=force)
        page = render(self)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "report.html").write_text(page, encoding="utf-8")
        if self.leak.images is not None:
            picture_grid(self).save(folder / "pictures.png")
        (folder / "result.json").write_text(json.dumps(self.to_dict(), indent=2) + "\n", encoding="utf-8")
        return folder / "report.html"


def check_folder(folder: Path, *, force: bool) -> None:
    """Refuse to overwrite, before an audit is run rather than after."""
    if folder.exists() and not folder.is_dir():
        raise UnsumError(f"{str(folder)!r} is a file; name a folder for the report.")
    if folder.exists() and any(folder.iterdir()) and not force:
        raise UnsumError(
            f"The folder {str(folder)!r} exists already; add --force to overwrite it, or name another with --out."
        )


def finite(value: Any) -> Any:
    """JSON knows neither NaN nor infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return value
