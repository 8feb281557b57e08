"""What was not declared, read off the first step: the learning rate, or the number of samples.

A sample of the first step can be found without either: p − y = U q lies in the span of the
movement, and then q·t = 1/α with α = η reach / size. So one of the two tells the other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsum.equation.observation import Observation
from unsum.separate.exact.extraction import FITS
from unsum.separate.exact.hypotheses import hard_targets
from unsum.separate.exact.regression import fit_class_line
from unsum.separate.exact.single import SingleSamples

# 1 − p of its label: where the model is surer, a root far out, at which everything vanishes, looks
# like a sample
_UNSURE = 1e-2
_WHOLE = 0.3  # how far a label row's number of samples may be from a whole one
# times the size of a usual row's ratio, or of the samples before: samples are not larger
USUAL = 6.0


def size_of_step(observation: Observation, samples: float, epochs: int) -> int:
    """The first step's samples, where each epoch has directions of its own (`samples`), or all
    epochs share them.

    Shared ones add up, so that α is that of a step of fewer samples. Label rows hold whole numbers
    of samples only for one of the two. A step never holds more samples than the movement has
    directions: a false α would say so.
    """
    samples = min(samples, observation.rank)
    apart, shared = max(1, round(samples)), max(1, round(samples * epochs))
    if apart * epochs < observation.rank:  # more directions than visits
        return shared
    line = fit_class_line(observation)
    fits = (
        hard_targets(line, apart, _WHOLE) is None and hard_targets(line, shared, _WHOLE) is not None
    )
    return shared if fits and shared <= observation.rank else apart


def first_alpha(observation: Observation, classes: Tensor) -> float | None:
    """α of the first step's samples; None where none of them shows."""
    singles = SingleSamples(observation, observation.weight)
    starts = [torch.zeros_like(observation.U)]
    if observation.grad_b is not None:
        usual = usual_ratio(observation.U, observation.grad_b)
        starts.append(ratios(observation.U, observation.grad_b, usual))
    found = []
    for start in starts:
        T = singles.refine(start[classes], classes, None, steps=60)
        P = torch.softmax(T @ observation.K + observation.b, dim=1)
        sure = P.gather(1, classes[:, None])[:, 0]
        couplings = singles.state(T, classes).coupling
        fits = (singles.misfits(T, classes) < FITS) & (1 - sure > _UNSURE) & (couplings > 0)
        if observation.grad_b is not None:
            fits &= T.norm(dim=1) < USUAL * usual
        found.append(couplings[fits])
    every = torch.cat(found)
    return 1 / float(every.median()) if len(every) else None


def ratios(U: Tensor, grad_b: Tensor, usual: float) -> Tensor:
    """(C, R) rows over the bias's, none of them longer than is usual."""
    every = U / grad_b[:, None]
    return every / (every.norm(dim=1, keepdim=True) / usual).clamp_min(1)


def usual_ratio(U: Tensor, grad_b: Tensor) -> float:
    return float((U.norm(dim=1) / grad_b.abs().clamp_min(1e-300)).median())
