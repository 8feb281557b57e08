"""One strength on the bench: the round is audited and the small task is trained, both under the same chain of defenses."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from unsum.audit.result import Audit, Setting
from unsum.audit.run import Say, audit
from unsum.audit.sweep.pictures import Pictures
from unsum.audit.sweep.result import Point, SampleLeak
from unsum.audit.sweep.task import Accuracy, scale_to, train
from unsum.client import capture
from unsum.data import Batch
from unsum.defend import Defense
from unsum.errors import UnsumError


class Bench:
    """What stays the same for every strength."""

    def __init__(
        self,
        model: nn.Module,
        truth: Batch,
        pictures: Pictures | None,
        say: Say,
        *,
        client_trains: bool,
        device: torch.device,
        seed: int,
        attack_options: dict[str, Any],
    ) -> None:
        self._model, self._truth, self._pictures, self._say, self._seed = model, truth, pictures, say, seed
        self._options = {**attack_options, "train": client_trains, "device": device, "seed": seed}
        self._trains = client_trains
        images, targets = truth.images.to(device), truth.targets.to(device)
        self._batch = images, targets
        self.scale = 1.0
        if pictures is not None:
            torch.manual_seed(seed)
            self.scale = scale_to(pictures, capture(model, images, targets, train=client_trains), seed)

    def check(self, chain: list[Defense]) -> None:
        """Refuse at once what the client itself cannot do, rather than after the other strengths."""
        capture(self._model, *self._batch, train=self._trains, defenses=chain)

    def undefended(self) -> tuple[Point, Setting, list[str]]:
        """The reference, the setting that all strengths share, and what the attacker was granted. Raises what it cannot do."""
        self._say("No defense: attacking")
        result = audit(self._model, self._truth, **self._options)
        return self._point(result, [], None), result.setting, result.granted

    def audited(self, result: Audit, chain: list[Defense]) -> Point:
        """A round that was audited already."""
        return self._point(result, chain, None)

    def defended(self, chain: list[Defense], strength: float | None) -> Point:
        """The same with a defense; what the attack refuses becomes part of the answer."""
        name = shown(chain)
        self._say(f"{name}: attacking" if chain else "No defense: attacking")
        start = time.perf_counter()
        try:
            result = audit(self._model, self._truth, defenses=chain, **self._options)
        except UnsumError as reason:
            seconds = time.perf_counter() - start
            accuracy, untrained = self._training(chain)
            return Point(
                name, strength, [], seconds=seconds, refused=str(reason), accuracy=accuracy, untrained=untrained
            )
        return self._point(result, chain, strength)

    def _point(self, result: Audit, chain: list[Defense], strength: float | None) -> Point:
        rows = [self._sample(result, i) for i in range(len(result.samples))]
        worst = max(range(len(rows)), key=lambda i: rows[i].leakage)
        accuracy, untrained = self._training(chain)
        return Point(
            shown(chain),
            strength,
            rows,
            exact=result.leak.exact,
            method=result.leak.method,
            seconds=result.leak.seconds,
            pictures=_pictures(result, worst),
            accuracy=accuracy,
            untrained=untrained,
        )

    def _sample(self, result: Audit, i: int) -> SampleLeak:
        row = result.samples[i]
        return SampleLeak(
            title=self._truth.titles[i],
            leakage=result.leakages[i],
            label_correct=row.label_correct == 1.0,
            feature_error=row.feature_error,
            feature_cosine=row.feature_cosine,
            psnr=row.psnr,
        )

    def _training(self, chain: list[Defense]) -> tuple[Accuracy | None, str]:
        """The accuracy, or the reason why there is none."""
        if self._pictures is None:
            return None, "It was not asked for."
        self._say(f"{shown(chain)}: training" if chain else "No defense: training")
        try:
            return train(self._pictures, chain, scale=self.scale, seed=self._seed), ""
        except UnsumError as reason:
            return None, str(reason)


def shown(chain: Iterable[Defense]) -> str:
    """The chain as reports print it."""
    return " | ".join(repr(defense) for defense in chain) or "none"


def _pictures(result: Audit, i: int) -> tuple[Tensor, Tensor | None] | None:
    row = result.rows[i]
    if row.original is None or row.original.ndim != 3 or result.leak.images is None:
        return None
    return row.original, row.recovered
