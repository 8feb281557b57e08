"""The answer in the common form, with what a person should know about it."""

from __future__ import annotations

import torch

from unsum.head import Head
from unsum.leak import Leak
from unsum.separate.adaptive.apart import ToldApart
from unsum.separate.adaptive.batch import Groups
from unsum.separate.adaptive.recognize import RecognizedDefense
from unsum.separate.misfit import relative_misfit

_GRID = 3**0.5  # rounding to a grid errs by up to half a step, which is √3 standard deviations of an even spread
_SHRUNK = 1.3  # times the noise that posterior means leave: they are smaller than what they are the means of
_MUCH = 0.05  # share of the gradient left over from which a person is told


def answer(head: Head, batch: Groups, defense: RecognizedDefense, samples: ToldApart, done: str) -> Leak:
    """A leak that claims no exactness: what a defense removed is estimated, not known."""
    targets = torch.nn.functional.one_hot(samples.labels, head.classes).double()
    features = samples.features
    residual = relative_misfit(head, samples.logits, targets, batch.scale * features)
    unexplained = _unexplained(head, defense, residual)
    return Leak(
        method="adaptive",
        targets=targets,
        logits=samples.logits,
        features=features.to(torch.promote_types(head.W.dtype, torch.float32)),
        residual=residual,
        predicted_error=max(float(samples.errors.max()), batch.size * unexplained),
        exact=False,
        scale=batch.scale,
        notes=[defense.sentence, done, *batch.notes, *_merged(samples), *_alone(batch), *_doubted(unexplained)],
    )


def _unexplained(head: Head, defense: RecognizedDefense, residual: float) -> float:
    """What the answer leaves of the gradient beyond the noise, relative; 0 where entries are missing, which leave more.

    Errors of a posterior hold for the batch that was taken for granted. With a label missed or made up the answer no longer
    explains the gradient; what is left of it may all belong to one sample, B times as large a part of that one.
    """
    size = float(head.row_norms(head.grad_W).norm())
    if not defense.is_noise or size == 0:
        return 0.0
    noise = defense.sigma * (_GRID if defense.kind == "grid" else _SHRUNK) * head.grad_W.numel() ** 0.5 / size
    return float(max(residual**2 - noise**2, 0.0) ** 0.5)


def _doubted(unexplained: float) -> list[str]:
    if unexplained < _MUCH:
        return []
    return [
        f"The answer leaves {100 * unexplained:.2g} % of the gradient unexplained beyond the noise: labels may be wrong."
    ]


def _merged(samples: ToldApart) -> list[str]:
    return [
        f"Samples {', '.join(map(str, group))} share a label and cannot be told apart after that; each is their mean."
        for group in samples.merged
    ]


def _alone(batch: Groups) -> list[str]:
    if batch.size_known or len(batch.labels) > 1:
        return []
    return ["All samples found share one label, so nothing tells how many there were; give batch_size= if you know it."]
