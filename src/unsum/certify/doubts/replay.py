"""What the gradient of a recovered batch, computed anew, leaves of the one that was sent.

A sample that the model has memorized sends next to nothing. It may be missing, or made up, and the whole gradient hardly changes:
a small relative difference confirms nothing. So the rest is weighed against what every single sample sends, tensor by tensor,
and it may be no larger than rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.certify.question import name_some

TRACE = 1e-5  # of the gradient: who sends less than this and is missing makes no claim false
VISIBLE = 3.0  # times the largest rest that rounding explains: what a sample must send to be seen in it
_PART = 2.0  # times what is left: rounding has nothing to do with a sample, and does not make up for it
_WHOLE = 1e-6  # of a whole number, at the least: a divisor that is as near to it counts samples


@dataclass(frozen=True)
class Replay:
    """Norms of t tensors: what was `sent`, what the replay `left` of it, and how much of that `rounding` explains at most.

    `parts` (n, t) is what each of n samples sends. All in units of the gradient that was sent.
    """

    sent: Tensor
    left: Tensor
    rounding: Tensor
    parts: Tensor

    @property
    def explains(self) -> bool:
        """Whether rounding explains all that is left, in every tensor; NaN explains nothing."""
        return bool((self.left <= self.rounding).all())

    @property
    def residual(self) -> float:
        return float(self.left.norm() / self.sent.norm().clamp_min(1e-300))

    @property
    def unseen(self) -> float:
        """The largest share of the gradient that a sample may send and still be missing: it would be a part of what is left."""
        return _PART * self.residual

    @property
    def level(self) -> Tensor:
        """(t,) what a sample must send to be seen."""
        return VISIBLE * torch.maximum(self.left, self.rounding)

    def shows(self) -> Tensor:
        """(n, t) in which tensors each sample is seen."""
        return self.parts > self.level


def doubt_rest(replay: Replay) -> list[str]:
    """The doubt that the answer is not what was sent: more is left than rounding explains."""
    if replay.explains:
        return []
    worst = float((replay.left / replay.rounding.clamp_min(1e-300)).max())
    return [
        f"The answer's own gradient misses what was sent by {worst:.1g} times what rounding explains: "
        "there is noise in it (rounded weights leave some in their difference), or a sample is wrong or missing."
    ]


def doubt_invisible(seen: Tensor, what: str) -> list[str]:
    """The doubt about samples (n,) whose own gradient drowns in what is left: they may be made up."""
    hidden = (~seen).nonzero()[:, 0].tolist()
    if not hidden:
        return []
    return [f"{what} {name_some(hidden)} would send hardly more than rounding: nothing tells that it was there."]


def doubt_exchanged(features: Tensor, labels: Tensor, inputs: Tensor, weight: float, level: float) -> list[str]:
    """The doubt that two samples' labels were exchanged: α (e_y − e_y') (f − f')ᵀ is all that would show in the head.

    `features` (n, H) with `labels` (n,), each of `weight` α, in a head where `level` is seen. Samples of equal `inputs` (n,),
    which are numbered, have nothing to exchange.
    """
    apart = 2**0.5 * weight * torch.cdist(features, features, compute_mode="donot_use_mm_for_euclid_dist")
    close = (apart <= level) & (labels[:, None] != labels) & (inputs[:, None] != inputs)
    alike = close.any(1).nonzero()[:, 0].tolist()
    return [f"Samples {name_some(alike)} are so alike that their labels may be exchanged."] if alike else []


def doubt_missing(replay: Replay, number: int, granted: int | None, scale: float | None) -> list[str]:
    """The doubt that a sample without a trace is missing.

    `number` samples were found. `granted` is how many there were, where somebody said so. `scale` is the gradient's, compared
    with the mean over those that were found; None where a mean does not count them. A plain mean over more has a larger
    divisor. That the divisor fits proves nothing: the gradient may have been multiplied.
    """
    if granted is not None:
        return [f"{number} samples were found, {granted} granted."] if granted != number else []
    total = number / max(scale or 1.0, number * 1e-9)
    if number < round(total) <= 2 * number + 8 and abs(total / round(total) - 1) < max(_WHOLE, replay.unseen):
        return [f"The mean is one over {round(total)} samples, {number} were found: the others left no trace."]
    if replay.unseen < TRACE:
        return []
    return [
        f"A sample that sends {100 * replay.unseen:.1g} % of the gradient, as memorized ones do, may be missing without a trace; "
        "the batch size would tell."
    ]
