"""One strength on the bench: the round is played and the small task is trained, both under the same chain of defenses."""

from __future__ import annotations

import time
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from unsum.attack.options import AttackOptions
from unsum.audit.point import Point, SampleLeak
from unsum.audit.round import Round, play
from unsum.audit.sweep.pictures import Pictures
from unsum.audit.sweep.task import Accuracy, scale_to, train
from unsum.client import capture
from unsum.data import Batch
from unsum.defend import Defense
from unsum.errors import UnsumError
from unsum.progress import Progress


class Bench:
    """What stays the same for every strength."""

    def __init__(
        self,
        model: nn.Module,
        batch: Batch,
        options: AttackOptions,
        progress: Progress,
        *,
        client_trains: bool,
        pictures: Pictures | None = None,
    ) -> None:
        self._model, self._batch, self._options, self._progress = model, batch, options, progress
        self._trains, self._pictures = client_trains, pictures
        self.scale = 1.0
        if pictures is not None:
            torch.manual_seed(options.seed)
            self.scale = scale_to(pictures, capture(model, *self._sent(), train=client_trains), options.seed)

    def check(self, chain: list[Defense]) -> None:
        """Refuse at once what the client itself cannot do, rather than after the other strengths."""
        capture(self._model, *self._sent(), train=self._trains, defenses=chain)

    def undefended(self) -> Round:
        """The reference. Raises what it cannot do."""
        self._progress.say("No defense: attacking")
        return play(self._model, self._batch, [], self._options, train=self._trains)

    def defended(self, chain: list[Defense], strength: float | None) -> Point:
        """The same with a defense; what the attack refuses becomes part of the answer."""
        name = shown(chain)
        self._progress.say(f"{name}: attacking" if chain else "No defense: attacking")
        start = time.perf_counter()
        try:
            played = play(self._model, self._batch, chain, self._options, train=self._trains)
        except UnsumError as reason:
            seconds = time.perf_counter() - start
            accuracy, untrained = self._training(chain)
            return Point(
                name, strength, [], seconds=seconds, refused=str(reason), accuracy=accuracy, untrained=untrained
            )
        return self.point(played, chain, strength)

    def point(self, played: Round, chain: list[Defense], strength: float | None = None) -> Point:
        """A round that was played already."""
        rows = [self._sample(played, i) for i in range(len(played.samples))]
        worst = max(range(len(rows)), key=lambda i: rows[i].leakage)
        accuracy, untrained = self._training(chain)
        return Point(
            shown(chain),
            strength,
            rows,
            exact=played.leak.exact,
            method=played.leak.method,
            seconds=played.leak.seconds,
            pictures=_pictures(played, worst),
            accuracy=accuracy,
            untrained=untrained,
        )

    def _sent(self) -> tuple[Tensor, Tensor]:
        device = torch.device(self._options.device or "cpu")
        return self._batch.images.to(device), self._batch.targets.to(device)

    def _sample(self, played: Round, i: int) -> SampleLeak:
        row = played.samples[i]
        return SampleLeak(
            title=self._batch.titles[i],
            leakage=played.leakages[i],
            label_correct=row.label_correct == 1.0,
            feature_error=row.feature_error,
            feature_cosine=row.feature_cosine,
            psnr=row.psnr,
        )

    def _training(self, chain: list[Defense]) -> tuple[Accuracy | None, str]:
        """The accuracy, or the reason why there is none."""
        if self._pictures is None:
            return None, "It was not asked for."
        self._progress.say(f"{shown(chain)}: training" if chain else "No defense: training")
        try:
            return train(self._pictures, chain, scale=self.scale, seed=self._options.seed), ""
        except UnsumError as reason:
            return None, str(reason)


def shown(chain: Iterable[Defense]) -> str:
    """The chain as reports print it."""
    return " | ".join(repr(defense) for defense in chain) or "none"


def _pictures(played: Round, i: int) -> tuple[Tensor, Tensor | None] | None:
    images, found = played.leak.images, played.samples[i].found
    original = played.truth.images[i]
    if original.ndim != 3 or images is None:
        return None
    return original, None if found is None else images[found]
