"""What an audit found, as data: what was audited, every sample beside what came back of it, and the verdict."""

from __future__ import annotations

import math
import os
import platform
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import Tensor

from unsum.attack.options import AttackOptions
from unsum.audit.compare import Comparison
from unsum.audit.leakage import vouched
from unsum.audit.verdict import Verdict, judge, judge_captured
from unsum.audit.wording import one_line, plain
from unsum.data import Batch
from unsum.errors import UnsumError, first_line, shown
from unsum.leak import Leak
from unsum.score import SampleScore
from unsum.version import __version__

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

    @classmethod
    def of(
        cls, model: str, leak: Leak, options: AttackOptions, *, samples: int, train: bool, defenses: str, command: str
    ) -> Setting:
        """Of an attack that ran, on this machine."""
        rule = "" if options.label_rule is None else f", labels by {options.label_rule}"
        return cls(
            model=model,
            batch_size=samples,
            classes=leak.targets.shape[1],
            mode="train" if train else "eval",
            defenses=defenses,
            attack=leak.method + rule,
            seed=options.seed,
            device=_device_name(torch.device(options.device or "cpu")),
            command=command,
            versions={
                "unsum": __version__,
                "python": platform.python_version(),
                "torch": torch.__version__,
                "torchvision": torchvision.__version__,
            },
        )


@dataclass(frozen=True)
class SampleRow:
    """A true sample beside what was found of it; without the truth, a sample as the attack found it."""

    title: str
    label: str | None  # the true one
    found_label: str | None
    leakage: float  # measured; without the truth what the certificate vouches for, or NaN
    score: SampleScore | None  # None without the truth
    original: Tensor | None
    recovered: Tensor | None

    @property
    def label_correct(self) -> bool:
        return self.score is not None and self.score.label_correct == 1.0

    def to_dict(self) -> dict[str, Any]:
        figures = {} if self.score is None else asdict(self.score)
        texts = {"title": self.title, "label": self.label, "found_label": self.found_label}
        return {**texts, "leakage": self.leakage, **figures}


@dataclass(frozen=True)
class AuditResult:
    """What the attack made of one update, beside the truth where the round was simulated.

    An update captured elsewhere has no truth: `truth` is None, `samples`, `scores` and `leakages` are empty, and every output
    shows what the attack found and how far it vouches for it.
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
    def rows(self) -> list[SampleRow]:
        """One for every true sample; where the truth is not known, one for every sample that was found."""
        if self.truth is None:
            return [self._found(i) for i in range(self.leak.batch_size)]
        return [self._compared(self.truth, i) for i in range(len(self.samples))]

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
            "samples": [row.to_dict() for row in self.rows],
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

    def _compared(self, truth: Batch, i: int) -> SampleRow:
        score, found = self.samples[i], self.found_label(i)
        return SampleRow(
            title=one_line(truth.titles[i]),
            label=one_line(self.true_label(i)),
            found_label=None if found is None else one_line(found),
            leakage=self.leakages[i] if self.leakages else math.nan,
            score=score,
            original=truth.images[i],
            recovered=self._recovered(score.found),
        )

    def _found(self, i: int) -> SampleRow:
        return SampleRow(
            title=f"recovered sample {i + 1}",
            label=None,
            found_label=one_line(self.class_name(int(self.leak.labels[i]))),
            leakage=vouched(self.leak, i),
            score=None,
            original=None,
            recovered=self._recovered(i),
        )

    def _recovered(self, found: int | None) -> Tensor | None:
        return None if found is None or self.leak.images is None else self.leak.images[found]


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}, {torch.get_num_threads()} threads"


def check_folder(folder: Path, *, force: bool) -> None:
    """Refuse to overwrite, or what cannot be written to, before an audit is run rather than after."""
    try:
        standing = next(place for place in (folder, *folder.absolute().parents) if place.exists() or place.is_symlink())
    except OSError as error:  # a name that is too long, say
        raise UnsumError(f"{shown(str(folder))} cannot be a folder: {first_line(error)}; name another.") from error
    if standing.is_symlink() and not standing.exists():
        raise UnsumError(f"{shown(str(standing))} is a link that leads nowhere; name another folder with --out.")
    if folder.exists() and not folder.is_dir():
        raise UnsumError(f"{str(folder)!r} is a file; name a folder for the report.")
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
