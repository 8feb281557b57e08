"""How long a sample's features are, once their direction and that of p − y are known.

Where y is 0, log(p − y) is linear in the length s, because p = softmax(s x + b) with the direction's own logits x: one
straight line per sample, drawn through the classes it is not labeled with.
"""

from __future__ import annotations

from torch import Tensor


def fit_lengths(x: Tensor, E: Tensor, b: Tensor) -> Tensor:
    """(n,) the s for which E ∝ softmax(s x + b) − y, from the classes with E > 0: nobody's label there."""
    weight, x, z = _centered(x, E, b)
    return (weight * x * z).sum(1) / (weight * x.square()).sum(1)


def disagreement(x: Tensor, E: Tensor, b: Tensor) -> Tensor:
    """(n,) by how much the logits x miss that line, relative: a head's rows look in all directions, so f errs by as much."""
    weight, x, z = _centered(x, E, b)
    return ((weight * (z - x).square()).sum(1) / (weight * x.square()).sum(1).clamp_min(1e-300)).sqrt()


def _centered(x: Tensor, E: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weights of the classes, and x and log E − b about their weighted means."""
    z = E.clamp_min(1e-300).log() - b
    weight = E.clamp_min(0).square()  # log E errs by the noise over E
    weight = weight / weight.sum(1, keepdim=True)
    return weight, x - (weight * x).sum(1, keepdim=True), z - (weight * z).sum(1, keepdim=True)
