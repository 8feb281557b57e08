"""What an audit found, as data: what was audited, every sample beside what came back of it, and the
verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from unsum.attack.options import AttackOptions
from unsum.audit.compare import Comparison
from unsum.audit.distribution import LabelDistribution
from unsum.audit.leakage import Shares, Tried, vouched
from unsum.audit.provenance import Provenance, versions
from unsum.audit.table_rows import TableRows
from unsum.audit.text_verdict import Texts
from unsum.audit.verdict import Sizes, Verdict, judge, judge_captured
from unsum.audit.wording import one_line, percent, plain
from unsum.ceiling.result import Ceiling
from unsum.client.augment import target_rows
from unsum.data import Batch
from unsum.errors import UnsumError
from unsum.leak import Leak
from unsum.local_training import LocalTraining
from unsum.losses import Loss
from unsum.score import SampleScore
from unsum.score.labels import LabelsRead, is_distribution
from unsum.score.occurred import RowsNamed

_KINDS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


@dataclass(frozen=True)
class LayerDepth:
    """A layer with weights, and whether what it read is known: it came back, or a layer below came
    back and the model tells."""

    name: str
    read: bool = False


@dataclass(frozen=True)
class DepthRead:
    """How deep into the network the attack read: its layers from the input to the head; empty where
    nothing below the head."""

    layers: Sequence[LayerDepth] = ()
    numbers: int = 0  # of each sample, that the deepest one read

    @classmethod
    def of(cls, model: nn.Module, leak: Leak) -> DepthRead:
        counts = {name: maps[0].numel() for name, maps in leak.inner.items() if len(maps)}
        names = [name for name, module in model.named_modules() if isinstance(module, _KINDS)]
        if leak.inputs is not None and len(leak.inputs) and names:
            counts.setdefault(names[0], leak.inputs[0].numel())
        deepest = next((i for i, name in enumerate(names) if name in counts), None)
        if deepest is None:
            return cls()
        layers = [LayerDepth(name, i >= deepest) for i, name in enumerate(names)]
        return cls(layers, counts[names[deepest]])

    @property
    def deepest(self) -> LayerDepth:
        return next(layer for layer in self.layers if layer.read)

    @property
    def sentence(self) -> str:
        where = (
            "the model's own input"
            if self.layers[0].read
            else f"what the layer {self.deepest.name!r} read"
        )
        return (
            f"The attack read down to {where}: {self.numbers:,} numbers of each sample. Its notes "
            "say how sure it is."
        )

    def to_dict(self) -> list[dict[str, object]]:
        return [{"layer": layer.name, "read": layer.read} for layer in self.layers]


_ATTACK = (  # of a leak
    *(
        "method",
        "batch_size",
        "distinct",
        "counts_certain",
        "exact",
        "predicted_error",
        "residual",
        "scale",
        "seconds",
    ),
    "notes",
)
SCHEMA_VERSION = "2.0"  # of result.json and sweep.json; described in schema/result.schema.json


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
    loss: str | None = None  # as declared
    # local training as declared, see LocalTraining; None for one plain step
    training: dict[str, Any] | None = None
    provenance: Provenance = field(default_factory=Provenance)

    @classmethod
    def of(
        cls,
        model: str,
        leak: Leak,
        options: AttackOptions,
        *,
        samples: int,
        train: bool,
        defenses: str,
        command: str,
        training: LocalTraining | None = None,
        provenance: Provenance | None = None,
    ) -> Setting:
        """Of an attack that ran, on this machine."""
        rule = "" if options.label_rule is None else f", labels by {options.label_rule}"
        device = torch.device(options.device or "cpu")
        threads = torch.get_num_threads()
        machine = f"{device.type}, {threads} {'thread' if threads == 1 else 'threads'}"
        return cls(
            model=model,
            batch_size=samples,
            classes=leak.targets.shape[1],
            mode="train" if train else "eval",
            defenses=defenses,
            attack=leak.method + rule,
            seed=options.seed,
            device=torch.cuda.get_device_name(device) if device.type == "cuda" else machine,
            command=command,
            versions=versions(),
            loss=options.loss.name if isinstance(options.loss, Loss) else options.loss,
            training=None if training is None else asdict(training),
            provenance=provenance or Provenance(),
        )


@dataclass(frozen=True)
class SampleRow:
    """A true sample beside what was found of it; without the truth, a sample as the attack found
    it."""

    title: str
    label: str | None  # the true one
    found_label: str | None
    shares: Shares  # measured; without the truth what the certificate vouches for; NaN: unknown
    score: SampleScore | None  # None without the truth
    original: Tensor | None
    recovered: Tensor | None
    by: str = ""  # the attack that got the most of it
    ceiling: float = math.nan  # what nobody can exceed; NaN: not known
    noun: str = "sample"

    @property
    def leakage(self) -> float:
        return self.shares.most

    @property
    def leaked(self) -> str:
        """How much of what, as a sentence has it."""
        own = f"{percent(self.shares.sample)} of the {self.noun}"
        if self.shares.read != "features":
            return own
        if percent(self.leakage) == own.partition(" of ")[0] == percent(0.0):
            return own
        beside = "" if math.isnan(self.shares.sample) else f" and {own}"
        return f"{percent(self.leakage)} of its features{beside}"

    @property
    def label_correct(self) -> bool:
        return self.score is not None and self.score.label_correct == 1.0

    def to_dict(self) -> dict[str, Any]:
        figures = {} if self.score is None else asdict(self.score)
        texts = {"title": self.title, "label": self.label, "found_label": self.found_label}
        shares = {"features_leakage": self.shares.features, "sample_leakage": self.shares.sample}
        read = {"read": self.noun if self.shares.read == "sample" else self.shares.read or None}
        found = {**read, **shares, "by": self.by or None, **figures}
        return {**texts, **found, "leakage": self.leakage, "ceiling": self.ceiling}


@dataclass(frozen=True)
class AuditResult:
    """What the attack made of one update, beside the truth where the round was simulated.

    An update captured elsewhere has no truth: `truth` is None, `samples`, `scores` and `shares` are
    empty, and every output shows what the attack found and how far it vouches for it.
    """

    setting: Setting
    truth: Batch | None
    leak: Leak
    samples: list[SampleScore]
    scores: dict[str, float]
    seconds: float
    # of every true sample, by the strongest attacks
    shares: list[Shares] = field(default_factory=list)
    by: list[str] = field(default_factory=list)  # which got the most of it
    tried: list[Tried] = field(default_factory=list)
    undecided: str = ""  # why samples that no attack found may leak all the same
    # where there is no truth to take them from
    class_names: list[str] = field(default_factory=list)
    comparison: Comparison = field(default_factory=Comparison)
    texts: Texts | None = None  # of a language model's update, in the place of labels
    depth: DepthRead = field(default_factory=DepthRead)
    table: TableRows | None = None  # of a table's batch
    labels: LabelsRead | None = (
        # by the attack that has most of them, as a multiset; None where the truth is not known
        None
    )
    # rows of embeddings that were named, beside the truth
    occurred: list[RowsNamed] = field(default_factory=list)
    bound: Ceiling | None = None  # what nobody can exceed
    unbounded: str = ""  # why there is no ceiling
    # a sentence where `truth` is not the client's own samples but what a defense made of them
    trained_on: str = ""

    def __post_init__(self) -> None:
        """Every sample carries its leakage: `report.samples[i].leakage` is `report.leakages[i]`."""
        if self.leakages:
            own = [
                replace(row, leakage=value)
                for row, value in zip(self.samples, self.leakages, strict=True)
            ]
            object.__setattr__(self, "samples", own)

    @property
    def verdict(self) -> Verdict:
        if self.texts is not None and self.texts.true:
            return self.texts.judge(self.leak, self.shares, self.occurred, self.bound)
        if self.truth is None:
            return judge_captured(self.leak, self.undecided, self.sizes, self.bound)
        besides = self.labels if self.labeled else None, self.occurred, self.bound
        return judge(self.leak, self.samples, self.shares, self.undecided, self.sizes, *besides)

    @property
    def sizes(self) -> Sizes:
        """Of a sample and its features."""
        return Sizes(noun="text") if self.texts is not None else Sizes.of(self.leak, self.truth)

    @property
    def leakages(self) -> list[float]:
        """Of every true sample; NaN: unknown."""
        return [share.most for share in self.shares]

    @property
    def ceilings(self) -> list[float]:
        """Of every true sample, what nobody can exceed; NaN: not known."""
        if self.bound is None:
            return [math.nan] * len(self.samples)
        limits: list[float] = self.bound.samples.tolist()
        return limits

    @property
    def kind(self) -> str:
        """What one sample is called."""
        return "sample" if self.texts is None else "text"

    @property
    def labeled(self) -> bool:
        """Whether samples have labels: others have masks, or numbers to predict."""
        if self.truth is None or self.texts is not None:
            return True
        targets = self.truth.targets
        numbers = (
            targets.is_floating_point()
            and targets[0].numel() == 1
            and not bool(((targets == 0) | (targets == 1)).all())
        )
        return bool(self.truth.class_names) and not numbers

    @property
    def granted(self) -> list[str]:
        return self.leak.knowledge.granted()

    @property
    def rows(self) -> list[SampleRow]:
        """One for every true sample; where the truth is not known, one for every sample that was
        found.

        Where only the labels of local steps were counted, or the client trained otherwise than the
        attack takes it to have, samples that the attack made up of a sum are none.
        """
        if self.truth is None and self.leak.made_up and self.texts is None:
            return []
        if self.truth is None and self.distribution is not None and self.verdict.level == "labels":
            return []
        found = self.leak.batch_size if self.texts is None else len(self.texts.found)
        return [self._row(i) for i in range(found if self.truth is None else len(self.samples))]

    @property
    def distribution(self) -> LabelDistribution | None:
        """How many samples each class has, where local steps were counted, beside the truth where
        that is known."""
        counts = self.leak.label_counts
        if counts is None or self.texts is not None:
            return None
        true = (
            None
            if self.truth is None
            else target_rows(self.truth.targets, len(counts.counts)).argmax(1).tolist()
        )
        return LabelDistribution.of(counts, self.class_name, true)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the pictures, in plain types; what could not be measured is null."""
        content = {
            "schema": SCHEMA_VERSION,
            "kind": "audit",
            "verdict": self.verdict.to_dict(),
            "numbers": {"features": self.sizes.features or None, "sample": self.sizes.sample},
            "granted": self.granted,
            "setting": asdict(self.setting),
            "attack": {name: getattr(self.leak, name) for name in _ATTACK},
            "tried": [asdict(one) for one in self.tried],
            "depth": self.depth.to_dict(),
            "truth_known": self.truth is not None,
            "labels": None if self.labels is None else self.labels.to_dict(),
            "distribution": None if self.distribution is None else self.distribution.to_dict(),
            "occurred": [named.to_dict() for named in self.occurred],
            "scores": self.scores,
            "samples": [row.to_dict() for row in self.rows],
            "table": None if self.table is None else self.table.to_dict(),
            "trained_on": self.trained_on or None,
            "ceiling": None if self.bound is None else self.bound.to_dict(),
            "ceiling_missing": self.unbounded or None,
            "comparison": self.comparison.to_dict(),
            "seconds": self.seconds,
        }
        return finite(content)

    def true_label(self, i: int) -> str:
        if self.truth is None:
            raise UnsumError("This update came without the truth, so no true label is known.")
        if self.texts is not None:
            return self.texts.true[i]
        if not self.labeled:
            return _in_words(self.truth.targets[i])
        return self._named(
            target_rows(self.truth.targets[i : i + 1], self.leak.targets.shape[1])[0]
        )

    def found_label(self, i: int) -> str | None:
        """What the attack takes true sample `i` for; without the truth, its own sample `i`."""
        found = i if self.truth is None else self.samples[i].found
        if (
            self.labels is not None
            and self.labeled
            and self.truth is not None
            and self.texts is None
        ):
            place = self.samples[i].label_from
            return None if place is None else self._named(self.labels.rows[place])
        if found is None:
            return None
        if bool(self.leak.targets[found].isnan().any()):  # of a network that is no classifier
            return "estimated" if self.leak.knowledge.targets_of_any_kind is None else "granted"
        return (
            self._named(self.leak.targets[found]) if self.texts is None else self.texts.found[found]
        )

    def _named(self, row: Tensor) -> str:
        """A target row in words: its class, all its labels where they are no probabilities, or a
        single output's number."""
        if len(row) == 1 and self.truth is not None and len(self.truth.class_names) == 2:
            return self.class_name(int(row > 0.5))  # one output that tells two classes apart
        if len(row) == 1:
            return f"{float(row):.3g}"
        if is_distribution(row):
            return self.class_name(int(row.argmax()))
        return (
            ", ".join(self.class_name(c) for c in (row > 0.5).nonzero()[:, 0].tolist())
            or "no label"
        )

    def class_name(self, number: int) -> str:
        names = self.class_names if self.truth is None else self.truth.class_names
        return names[number] if number < len(names) else f"class {number}"

    def _row(self, i: int) -> SampleRow:
        truth, label = self.truth, self.found_label(i)
        score = None if truth is None else self.samples[i]
        found = i if score is None else score.found
        measured = self.shares[i] if self.shares else Shares()
        return SampleRow(
            title=f"recovered {self.kind} {i + 1}" if truth is None else one_line(truth.titles[i]),
            label=None if truth is None else one_line(self.true_label(i)),
            found_label=None if label is None else one_line(label),
            shares=vouched(self.leak, i) if truth is None else measured,
            score=score,
            original=None if truth is None or self.texts is not None else truth.images[i],
            recovered=None
            if found is None or self.leak.images is None
            else self.leak.images[found],
            by=self.by[i] if self.by else "",
            ceiling=math.nan if truth is None else self.ceilings[i],
            noun=self.sizes.noun,
        )


def _in_words(target: Tensor) -> str:
    """The target of a network that is no classifier."""
    if target.numel() == 1:
        return f"{target.item():.3g}"
    what = "numbers" if target.is_floating_point() else "class numbers"
    return f"{' × '.join(map(str, target.shape))} {what}"


def finite(value: Any) -> Any:
    """The same as JSON can hold it: without NaN, infinity and the characters that are not text."""
    if isinstance(value, dict):
        return {plain(key): finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return plain(value) if isinstance(value, str) else value
