"""Samples extracted one after another: for trained models, whose peaked softmax the regression cannot follow.

Starts come from the label rows (∇W_y / ∇b_y is nearly the features of a sample that carries y alone) and from the corners
of the simplex. Whatever a start leads to is checked on its own, and what is found is subtracted: rows of labels that
another sample's prediction had hidden come to light.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.separate.exact.equation import Equation, Unknowns
from unsum.separate.exact.levenberg import solve
from unsum.separate.exact.observation import Observation
from unsum.separate.exact.simplex import hunt_corners
from unsum.separate.exact.single import SingleSamples

_ACCEPTED = 8.0  # misfit of a sample, in units of the noise
_SAME_SAMPLE = 0.25  # relative distance below which two answers of one label may be one sample found twice
_VISIBLE = 30.0  # deviations of ∇b that make a row's sign certain


@dataclass
class Remainder:
    """What is left of the gradient after the samples found so far."""

    U: Tensor  # (C, R)
    grad_b: Tensor  # (C,)
    T: Tensor  # (n, R) found
    labels: Tensor  # (n,)

    def subtract(self, observation: Observation, T: Tensor, labels: Tensor, alpha: float) -> None:
        E = torch.softmax(T @ observation.K + observation.b, dim=1)
        E = E - torch.nn.functional.one_hot(labels, observation.classes)
        self.U = self.U - alpha * E.T @ T
        self.grad_b = self.grad_b - alpha * E.sum(0)
        self.T, self.labels = torch.cat([self.T, T]), torch.cat([self.labels, labels])


def extract(observation: Observation, rounds: int = 24) -> tuple[Tensor, Tensor, float] | None:
    """T (n, R), labels (n,) and α for as many samples of hard label as can be found, at most R."""
    if observation.grad_b is None or observation.classes < 2 * observation.rank + 1:
        return None
    R = observation.rank
    singles = SingleSamples(observation, _label_weights(observation))
    left = Remainder(
        observation.U,
        observation.grad_b,
        observation.U[:0],
        torch.zeros(0, dtype=torch.long, device=observation.U.device),
    )
    alpha = _find_alpha(observation, singles)
    if alpha is None:
        return None
    hidden = torch.zeros_like(observation.b, dtype=torch.bool)
    for _ in range(rounds):
        if len(left.T) == R:
            break
        if _accept(observation, singles, left, *_label_starts(observation, left), alpha):
            continue
        T, worst = _corner_starts(observation, singles, left, alpha, hidden)
        if _accept(observation, singles, left, T, singles.labels(T), alpha):
            hidden = torch.zeros_like(hidden)
        else:
            hidden = hidden | worst
    return left.T, left.labels, alpha


def _label_weights(observation: Observation) -> Tensor:
    """Row weights that know that a label row's p − 1 carries the rounding of 1, however small it is."""
    assert observation.grad_b is not None
    size = observation.U.norm() / observation.grad_b.norm()
    rounding = observation.client_precision * size / observation.rank * (observation.grad_b < 0)
    return torch.rsqrt(observation.weight.pow(-2) + rounding.square())


def _find_alpha(observation: Observation, singles: SingleSamples) -> float | None:
    """α from the samples themselves: each label row's start, refined without the coupling, says q·t = 1/α."""
    assert observation.grad_b is not None
    left = Remainder(observation.U, observation.grad_b, observation.U[:0], observation.U[:0, 0].long())
    T, labels = _label_starts(observation, left)
    if len(T) == 0:
        return None
    T = singles.refine(T, labels, None)
    couplings = singles.couplings(T, labels)[singles.misfits(T, labels) < _ACCEPTED]
    couplings = couplings[couplings > 0.2 * couplings.max()] if len(couplings) else couplings
    if len(couplings) == 0:
        return None
    return _snapped(1 / float(couplings.median()), observation)


def _snapped(alpha: float, observation: Observation) -> float:
    """1/B exactly where α is that close to it: a mean over the batch that nothing has scaled."""
    if observation.reduction != "mean":
        return 1.0 if abs(alpha - 1) < 2e-3 else alpha
    B = max(round(1 / alpha), observation.rank)
    return 1 / B if abs(alpha * B - 1) < 2e-3 and 2 * observation.rank >= B else alpha


def _label_starts(observation: Observation, left: Remainder) -> tuple[Tensor, Tensor]:
    """The ratio of every row whose ∇b is surely negative: a label, near the sample that carries it."""
    limit = _VISIBLE / (observation.weight * observation.beta)
    labels = (left.grad_b < -limit).nonzero()[:, 0]
    return left.U[labels] / left.grad_b[labels][:, None], labels


def _corner_starts(
    observation: Observation, singles: SingleSamples, left: Remainder, alpha: float, hidden: Tensor
) -> tuple[Tensor, Tensor]:
    """Corners of what is left, before and after solving for all of them together; and the rows that fit worst."""
    missing = observation.rank - len(left.T)
    limit = _VISIBLE / (observation.weight * observation.beta)
    inside = (left.grad_b > limit) & ~hidden
    if int(inside.sum()) <= missing + 1:
        return left.U[:0], torch.zeros_like(hidden)
    basis = torch.linalg.svd(singles.D[:, None] * left.U, full_matrices=False)[2][:missing]
    U = left.U @ basis.T
    ratios = U[inside] / left.grad_b[inside][:, None]
    corners = ratios[hunt_corners(ratios, missing)]
    labelled = (left.grad_b < -limit) | hidden
    extended = torch.cat([U, observation.beta * left.grad_b[:, None]], dim=1)
    equation = Equation(basis @ observation.K, observation.b, extended, singles.D * ~labelled, observation.beta)
    start = Unknowns(corners, corners.new_zeros(()), corners.new_tensor(math.log(alpha)))
    solved = solve(equation, start, iterations=40).at
    relative = equation.residual(solved).norm(dim=1) / singles.D * observation.weight
    starts = torch.cat([solved.T, corners]) @ basis
    return starts[torch.isfinite(starts).all(1)], relative > 0.2 * relative.max()


def _accept(
    observation: Observation, singles: SingleSamples, left: Remainder, T: Tensor, labels: Tensor, alpha: float
) -> bool:
    """Refine the starts, keep those that are samples and new, and subtract them; whether any was found."""
    if len(T) == 0:
        return False
    T = singles.refine(T, labels, alpha)
    misfits, couplings = singles.misfits(T, labels), alpha * singles.couplings(T, labels)
    kept: list[int] = []
    for index in misfits.argsort().tolist():
        if not (misfits[index] < _ACCEPTED and abs(float(couplings[index]) - 1) < 0.1):
            continue
        same = torch.cat([left.T[left.labels == labels[index]], T[[k for k in kept if labels[k] == labels[index]]]])
        distance = (same - T[index]).norm(dim=1) / T[index].norm()
        if len(same) == 0 or float(distance.min()) > _SAME_SAMPLE:
            kept.append(index)
    kept = kept[: observation.rank - len(left.T)]
    if kept:
        left.subtract(observation, T[kept], labels[kept], alpha)
    return bool(kept)
