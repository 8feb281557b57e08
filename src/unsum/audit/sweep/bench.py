"""One strength on the bench: the round is played and the small task is trained, both under the same
chain of defenses."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from unsum.audit.round import ClientCase, Round, play
from unsum.audit.sweep.task import Accuracy, Pictures, scale_to, train
from unsum.client import capture
from unsum.defend import Defense
from unsum.errors import UnsumError
from unsum.head import find_head
from unsum.running.progress import SILENT, Progress
from unsum.score.labels import LabelsRead
from unsum.update import Update


@dataclass(frozen=True)
class SampleLeak:
    """What came back of one sample."""

    title: str
    leakage: float
    label_correct: bool
    feature_error: float
    feature_cosine: float
    psnr: float  # NaN where there is no picture


@dataclass(frozen=True)
class Point:
    """One strength. Where the attack refused the update, `refused` says why and there are no
    samples."""

    defenses: str  # the whole chain
    strength: float | None  # None for a switch, and for no defense at all
    samples: list[SampleLeak]
    exact: bool = False
    method: str = ""
    seconds: float = 0.0
    refused: str = ""
    accuracy: Accuracy | None = None
    untrained: str = ""  # why there is no accuracy
    labels: LabelsRead | None = None  # by the attack that has most of them
    ceiling: float = math.nan  # the largest of all samples, that nobody can exceed; NaN: not known
    ceiling_mean: float = math.nan  # the mean over the samples
    # The most leaked sample, and what came back of it.
    pictures: tuple[Tensor, Tensor | None] | None = field(default=None, repr=False)

    @property
    def worst(self) -> float:
        """The leakage of the sample that leaked most; NaN where nothing was measured."""
        return max(
            (row.leakage for row in self.samples if not math.isnan(row.leakage)), default=math.nan
        )

    @property
    def mean(self) -> float:
        return mean_of([row.leakage for row in self.samples if not math.isnan(row.leakage)])

    @property
    def psnr(self) -> float:
        return mean_of([row.psnr for row in self.samples])

    @property
    def labels_right(self) -> int:
        return sum(row.label_correct for row in self.samples)

    @property
    def labels_named(self) -> str:
        """How many labels are right, and whether a guess has as many: who names every class has all
        of them right."""
        if self.refused:
            return "–"
        lucky = self.labels_right > 0 and self.labels is not None and not self.labels.given_away
        return f"{self.labels_right} of {len(self.samples)}{' (luck)' if lucky else ''}"

    @property
    def labels_read(self) -> bool:
        """Whether the labels are given away, whatever else is not."""
        return self.labels is not None and self.labels.given_away

    def over(self, level: float) -> int:
        """How many samples are not under the level; those of which nobody knows are not."""
        return sum(not row.leakage < level for row in self.samples)

    def proven(self, level: float) -> bool:
        """Whether nobody can read the level of any sample, whatever is tried.

        A ceiling is of samples. Where their features were read all the same, nothing is called
        proven.
        """
        return self.ceiling < level and not any(row.leakage >= level for row in self.samples)

    @property
    def known_ceiling(self) -> float:
        """The largest ceiling or, where only that was measured, the mean; NaN where neither was."""
        return self.ceiling_mean if math.isnan(self.ceiling) else self.ceiling

    def verdict(self, level: float) -> str:
        """The three outcomes of an audit, of a row: a label that was read leaks, whatever is proven
        of the samples."""
        if any(row.leakage >= level for row in self.samples):
            return "leaks"
        if self.labels_read:
            return "labels leak"
        if self.proven(level):
            return "protected"
        return "not decidable" if self.refused else "unproven"

    def under(self, level: float) -> bool:
        """Whether every sample was measured, and is under the level."""
        return bool(self.samples) and not self.over(level)

    def to_dict(self) -> dict[str, Any]:
        return {
            "defenses": self.defenses,
            "strength": self.strength,
            "largest_leakage": self.worst,
            "mean_leakage": self.mean,
            "ceiling": self.ceiling,
            "mean_ceiling": self.ceiling_mean,
            "labels_right": self.labels_right,
            "labels_read": self.labels_read,
            "certificate": self.exact,
            "attack": self.method,
            "seconds": self.seconds,
            "refused": self.refused or None,
            "accuracy": asdict(self.accuracy) if self.accuracy else None,
            "accuracy_missing": self.untrained or None,
            "samples": [asdict(row) for row in self.samples],
        }


@dataclass(frozen=True, eq=False)
class Bench(ClientCase):
    """What stays the same for every strength; `pictures` are the small task, where accuracy is
    asked for."""

    pictures: Pictures | None = None
    progress: Progress = SILENT

    def sent(self, chain: Sequence[Defense] = ()) -> Update:
        """One step of the client. Refuses at once what the client itself cannot do, rather than
        after the other strengths."""
        torch.manual_seed(self.options.seed)
        return capture(
            self.model, *self.samples, train=self.train, defenses=chain, loss=self.options.loss
        )

    @cached_property
    def scale(self) -> float:
        """What makes the small task's gradients as large as this client's."""
        return (
            1.0
            if self.pictures is None
            else scale_to(self.pictures, self.sent(), self.options.seed)
        )

    def play(self, chain: list[Defense]) -> Round:
        """The round under these defenses. Raises what it cannot do."""
        self._say(chain, "attacking")
        return play(self, chain)

    def head_size(self) -> float:
        """The root mean square of the last layer's gradient, entry by entry, without any
        defense."""
        name = find_head(self.model)[0]
        return float(
            self.sent()
            .gradients[f"{name}.weight" if name else "weight"]
            .double()
            .square()
            .mean()
            .sqrt()
        )

    def size(self) -> float:
        """The norm of the whole update, without any defense."""
        return float(
            torch.stack([g.double().norm() for g in self.sent().gradients.values()]).norm()
        )

    def defended(self, chain: list[Defense], strength: float | None) -> Point:
        """The same as a point; what the attack refuses becomes part of the answer."""
        start = time.perf_counter()
        try:
            played = self.play(chain)
        except UnsumError as reason:
            seconds = time.perf_counter() - start
            return Point(
                shown(chain),
                strength,
                [],
                seconds=seconds,
                refused=str(reason),
                **self.trained(chain),
            )
        return self.point(played, chain, strength)

    def point(self, played: Round, chain: list[Defense], strength: float | None = None) -> Point:
        """A round that was played already."""
        leak, rows = played.leak, played.samples
        point = Point(
            shown(chain),
            strength,
            [],
            seconds=leak.seconds,
            labels=played.labels,
            **self.trained(chain),
        )
        # not decidable: no measurement speaks for this strength
        if all(map(math.isnan, played.leakages)):
            return replace(point, refused=played.undecided)
        samples = [
            SampleLeak(
                title,
                leakage,
                row.label_correct == 1.0,
                row.feature_error,
                row.feature_cosine,
                row.psnr,
            )
            for title, leakage, row in zip(self.batch.titles, played.leakages, rows, strict=True)
        ]
        worst = max(
            range(len(rows)),
            key=lambda i: -1 if math.isnan(played.leakages[i]) else played.leakages[i],
        )
        original, found = played.truth.images[worst], rows[worst].found
        pictures = None
        if original.ndim == 3 and leak.images is not None:
            pictures = original, None if found is None else leak.images[found]
        return replace(
            point, samples=samples, exact=leak.exact, method=leak.method, pictures=pictures
        )

    def trained(self, chain: list[Defense]) -> dict[str, Any]:
        """The accuracy, or the reason why there is none, as a point has them."""
        if self.pictures is None:
            return {"untrained": "It was not asked for."}
        self._say(chain, "training")
        try:
            accuracy = train(self.pictures, chain, scale=self.scale, seed=self.options.seed)
            return {"accuracy": accuracy, "untrained": ""}
        except UnsumError as reason:
            return {"untrained": str(reason)}

    def _say(self, chain: list[Defense], what: str) -> None:
        self.progress.say(f"{shown(chain) if chain else 'No defense'}: {what}")


def shown(chain: Iterable[Defense]) -> str:
    """The chain as reports print it."""
    return " | ".join(repr(defense) for defense in chain) or "none"


def mean_of(values: list[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan
