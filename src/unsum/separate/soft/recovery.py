"""Soft-label recovery: one sample's smoothed, mixed or hard label and its features, out of the
head's gradient alone.

The sample lies on a ray of features (`ray`); how far along it, a prior on the label's shape decides
(`Spread`). L-BFGS searches from both sides of zero (`descend`), particles search where it finds
nothing (`swarm`); of several roots the one nearest to zero is taken. Success is a loss below 1e-9
or, in a noisy gradient, one that the noise explains. This is the published search, and it never
looks at the bias gradient. That one tells the length at once and for any label:
`bias_gradient=True`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from unsum.errors import UnsumError, check_name, unknown_name
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.separate.method import SEPARATORS, relative_misfit, uncertified
from unsum.separate.soft.ray import Ray, find_ray
from unsum.separate.soft.search import (
    CLEAN,
    DISTINCT,
    NOISY,
    SUCCESS,
    Spread,
    bottom,
    descend,
    swarm,
)

AUTO = "auto"
_SEARCHES = (AUTO, "lbfgs", "swarm")
# of the published 4, 2 and 1 the one with which the search reaches the most confident predictions
COEFFICIENT = 1.0
_HARD = 1e-3  # a label that is this close to a hard one is called hard
_NOISE_FACTOR = 2.0  # how far above what noise leaves a loss may lie and still be explained by it


@dataclass(frozen=True)
class Found:
    """A length λ, the kind of label it was searched for, and how it was found."""

    loss: Spread
    length: float
    value: float
    how: str
    given: bool = False  # by the bias gradient, which needs no prior on the label

    @property
    def explained(self) -> bool:
        """The published success, or a loss that noise alone explains. Never the truth."""
        allowed = _NOISE_FACTOR * self.loss.noise_floor(self.length) if self.loss.ray.noisy else 0.0
        return self.value < max(SUCCESS, allowed)


@SEPARATORS.register(
    "soft",
    summary="one sample's smoothed or mixed label and its features (soft-label recovery)",
    needs="a gradient of one sample; 3 classes",
)
def soft(
    head: Head,
    knowledge: Knowledge,
    *,
    seed: int,
    kind: str = AUTO,
    search: str = AUTO,
    coefficient: float = COEFFICIENT,
    bias_gradient: bool = False,
) -> Leak:
    """ŷ(λ) = softmax(W f(λ) + b) − ∇W_i[a]/f(λ)[a], f(λ) = λ v, at the λ that makes it a smoothed
    or mixed label.

    Args:
        kind: `smoothing` or `mixup` (a hard label is either); `auto` takes smoothing where that
            explains the gradient and mixup, which leaves one number more open, where it does not.
        search: `lbfgs` or `swarm`, or the published order `auto`: L-BFGS, and particles where it
            finds nothing. A noisy gradient is left to particles.
        coefficient: κ of v = ∇W_r/κ, published as 4, 2 or 1. |λ*| = κ/|p_r − y_r| is searched up to
            70, so that κ = 1 reaches samples with |p_r − y_r| down to 0.014 and κ = 4 only down to
            0.057.
        bias_gradient: read λ off the head's bias gradient where there is one, instead of the
            published search.
    """
    check_name("search", search, _SEARCHES)
    losses = _losses(kind, find_ray(head, knowledge.known_batch_size, coefficient))
    ray = losses[0].ray
    if bias_gradient and ray.bias_length is not None:
        how, length = "read off the bias gradient", ray.bias_length
        candidates = [Found(loss, length, loss.at(length), how, True) for loss in losses]
        found = next((one for one in candidates if one.explained), candidates[-1])
    elif ray.noisy and search != "lbfgs":
        found = _through_noise(losses, seed)
    else:
        descended = None if search == "swarm" else _by_descent(losses)
        found = descended or (_lowest([], losses) if search == "lbfgs" else _by_swarm(losses, seed))
    return _leak(head, knowledge, found, sum(loss.evaluations for loss in losses))


def _losses(kind: str, ray: Ray) -> list[Spread]:
    if kind != AUTO and kind not in DISTINCT:
        raise unknown_name("kind of soft label", kind, [AUTO, *DISTINCT])
    classes = len(ray.u)
    if kind == "mixup" and classes < 4:
        raise UnsumError(
            f"A mixed label can be told only among at least 4 classes, not {classes}; use "
            "kind='smoothing'."
        )
    kinds = list(DISTINCT) if kind == AUTO else [kind]
    return [Spread(ray, name) for name in kinds if classes - DISTINCT[name] >= 2]


def _by_descent(losses: list[Spread]) -> Found | None:
    """The root nearest to zero of the first kind that has one."""
    for loss in losses:
        roots = []
        for side in (1.0, -1.0):
            hit = descend(loss, side)
            root = None if hit is None else bottom(loss, hit)
            if root is not None:
                roots.append(
                    Found(loss, root, loss.at(root), f"found by L-BFGS from λ = {side:+.0f}")
                )
        if roots:
            return min(roots, key=lambda found: abs(found.length))
    return None


def _by_swarm(losses: list[Spread], seed: int) -> Found:
    """The first success from zero outward; without one the lowest minimum that was seen."""
    seen: list[Found] = []
    for number, interval in enumerate(CLEAN.intervals()):
        for loss in losses:
            found = _found(loss, swarm(loss, CLEAN, interval, seed + number))
            if found and found[0].explained:
                return found[0]
            seen += found
    return _lowest(seen, losses)


def _through_noise(losses: list[Spread], seed: int) -> Found:
    """The lowest minimum of all intervals, for the first kind of label that leaves no more than
    noise; else the lowest of all."""
    seen: list[Found] = []
    for loss in losses:
        minima = [
            swarm(loss, NOISY, interval, seed + number)
            for number, interval in enumerate(NOISY.intervals())
        ]
        seen += [found for minimum in minima for found in _found(loss, minimum)]
        best = _lowest([found for found in seen if found.loss is loss], [loss])
        if best.explained:
            return best
    return _lowest(seen, losses)


def _found(loss: Spread, minimum: float | None) -> list[Found]:
    return (
        []
        if minimum is None
        else [Found(loss, minimum, loss.at(minimum), "found by particle swarm")]
    )


def _lowest(seen: list[Found], losses: list[Spread]) -> Found:
    """The lowest of the minima; λ = 1 stands in where there is none, and is explained by
    nothing."""
    return min(
        seen, key=lambda found: found.value, default=Found(losses[-1], 1.0, float("inf"), "nowhere")
    )


def _leak(head: Head, knowledge: Knowledge, found: Found, evaluations: int) -> Leak:
    ray, loss = found.loss.ray, found.loss
    lengths = ray.u.new_tensor([found.length])
    targets = ray.labels(lengths).to(head.W.device)
    logits = (lengths[:, None] * ray.k + ray.b).to(head.W.device)
    features = found.length * ray.v[None]
    # ŷ itself explains the gradient at every λ; only a label of the assumed shape, its equal
    # entries made equal, can fail to.
    equal = targets[0].argsort(descending=True)[DISTINCT[loss.kind] :]
    shaped = targets.index_fill(1, equal, float(targets[0, equal].mean()))
    residual = relative_misfit(head, logits, shaped, features)
    error = math.nan if found.explained or found.given else math.inf
    notes = _notes(found, targets[0], evaluations, knowledge)
    return uncertified(
        "soft", head, logits, targets, features, notes, residual=residual, predicted_error=error
    )


def _notes(found: Found, label: Tensor, evaluations: int, knowledge: Knowledge) -> list[str]:
    place = (
        f"λ = {found.length:.6g}, {found.how}, loss {found.value:.1e} after {evaluations} "
        "evaluations."
    )
    if found.explained:
        first = f"{_describe(found.loss.kind, label)}: {place}"
    elif found.given:
        first = (
            f"A label that is neither smoothed nor mixed, or a gradient that was scaled: {place}"
        )
    else:
        first = (
            "Not recovered, the label may be neither smoothed nor mixed or the gradient scaled; "
            f"lowest minimum: {place}"
        )
    notes = [
        first,
        (
            "Soft-label recovery carries no certificate: how far its features are off is not "
            "predicted."
        ),
    ]
    if knowledge.labels is not None:
        notes.append("The granted label was not used: this attack finds it.")
    return notes


def _describe(kind: str, label: Tensor) -> str:
    first, second = label.topk(2).values.tolist()
    if kind == "mixup":
        a, b = label.topk(2).indices.tolist()
        return f"Mixed label, {first:.4f} of class {a} and {second:.4f} of class {b}"
    epsilon = float(label.sum() - first) * len(label) / (len(label) - 1)
    if abs(epsilon) < _HARD:
        return f"Hard label, class {int(label.argmax())}"
    return f"Smoothed label of class {int(label.argmax())}, ε = {epsilon:.4f}"
