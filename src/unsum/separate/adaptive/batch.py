"""Labels, counts and scale of a batch whose gradient was tampered with: from its large rows and
what is left of ∇b.

A label's row of ∇W holds its samples' features, every other row only the small share softmax gives
it. And ∇b_c = s (p̄_c − n_c/B): for a label that is −s n_c/B but for the probability, which is
about 1/C early on.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.labels.feature_prior import FeaturePrior
from unsum.labels.ilrg import whole_counts
from unsum.labels.templates import MOST, count_evidence
from unsum.notes import Code, Note
from unsum.separate.adaptive.recognize import RecognizedDefense

_SURE = 5.0  # standard deviations below zero that make a bias gradient a label's
_WHOLE = 0.2  # distance from a whole number within which a count is one
# [1] noise in the sum of the labels' bias gradients from which these do not show the scale.
# Arbitrary
_LOUD = 0.1
_REPEATS = 4  # samples per label, at most, that are looked for where nobody says how many there are


@dataclass(frozen=True)
class Groups:
    """Groups of samples of one label: what a damaged gradient tells apart for certain."""

    labels: Tensor  # (g,) ascending, no two alike
    counts: Tensor  # (g,) samples of each
    scale: float  # the gradient was multiplied by this
    size_known: bool  # whether the number of samples was granted
    notes: list[str]
    # (B,) that each label is right; empty: all are.
    chances: Tensor = field(default_factory=lambda: torch.zeros(0))

    @property
    def sure(self) -> Tensor:
        """(B,) the chance that each member's label is right."""
        return (
            self.chances
            if len(self.chances)
            else torch.ones_like(self.members, dtype=torch.float64)
        )

    @property
    def size(self) -> int:
        return int(self.counts.sum())

    @property
    def members(self) -> Tensor:
        """(B,) the label of every sample, ascending."""
        return torch.repeat_interleave(self.labels, self.counts)

    def alpha(self, reduction: str) -> float:
        """The factor in front of P − Y."""
        return self.scale / self.size if reduction == "mean" else self.scale


def find_batch(
    head: Head,
    knowledge: Knowledge,
    defense: RecognizedDefense,
    prior: FeaturePrior | None = None,
    most: int | None = None,
) -> Groups | None:
    """The groups, by the granted labels, by the likelihood of their counts under noise, or by the
    rows; None where no row stands out. Where no batch size is granted, `most` samples at most."""
    granted = knowledge.targets(head.classes)
    if granted is not None:
        labels, counts = granted.argmax(1).to(head.W.device).unique(return_counts=True)
        return Groups(labels, counts, _scale(head, defense, labels), True, [])
    if defense.kind == "noise" and prior is not None and (knowledge.batch_size or 0) <= MOST:
        return _likeliest(head, knowledge, defense, prior, most)
    # (C,) squared norm of every row beyond what the noise adds to it; of signs, how many are
    # negative.
    energy = head.row_norms(head.grad_W).square() - head.grad_W.shape[1] * defense.sigma**2
    if defense.kind == "sign":
        energy = (head.grad_W < 0).sum(1).double()
    labels = _label_rows(head, defense, energy, knowledge.batch_size or most)
    if len(labels) == 0:
        return None
    scale = _scale(head, defense, labels)
    mass, how = _masses(head, defense, energy, labels, scale)
    counts = _counts(mass, knowledge.batch_size, head.reduction, most)
    notes = [
        f"Labels are the classes of the largest rows; how many samples carry each comes from {how}."
    ]
    return Groups(labels, counts, scale, knowledge.batch_size is not None, notes)


def _likeliest(
    head: Head,
    knowledge: Knowledge,
    defense: RecognizedDefense,
    prior: FeaturePrior,
    most: int | None,
) -> Groups:
    """The counts of every class with the chance of each."""
    found = count_evidence(head, prior, defense.sigma, knowledge.batch_size, most)
    members, chances = found.chosen
    labels, counts = members.unique(return_counts=True)
    scale = _scale(head, defense, labels)
    if defense.sigma_b * len(labels) ** 0.5 > _LOUD:
        scale = found.scale
    notes: list[str] = [
        Note(
            f"Labels were named by matched filters; {float(chances.sum()):.1f} of {len(members)} "
            "are expected to be right.",
            Code.EXPECTED,
        )
    ]
    known = knowledge.batch_size is not None
    return Groups(labels, counts, scale, known, notes, chances)


def _label_rows(
    head: Head, defense: RecognizedDefense, energy: Tensor, batch_size: int | None
) -> Tensor:
    """Rows above the widest gap in the energies, and those whose bias gradient is negative beyond
    doubt."""
    C, H = head.grad_W.shape
    floor = max(
        3 * defense.sigma**2 * (2 * H) ** 0.5, defense.threshold**2, 1e-12 * float(energy.max())
    )
    ordered, rows = energy.clamp_min(floor).sort(descending=True)
    most = min(C - 1, batch_size or max(C // 2, 1))
    gaps = (ordered[:-1] / ordered[1:])[:most]
    chosen = torch.zeros(C, dtype=torch.bool, device=energy.device)
    if float(ordered[0]) > floor:
        chosen[rows[: int(gaps.argmax()) + 1]] = True
    if head.grad_b is not None and defense.kind != "sign":
        chosen |= head.grad_b.double() < -max(
            _SURE * defense.sigma_b, 1e-3 * float(head.grad_b.abs().max())
        )
    if batch_size is not None and int(chosen.sum()) > batch_size:
        lowest = energy.masked_fill(~chosen, -torch.inf).argsort(descending=True)[:batch_size]
        chosen = torch.zeros_like(chosen).index_fill(0, lowest, True)
    return chosen.nonzero()[:, 0]


def _scale(head: Head, defense: RecognizedDefense, labels: Tensor) -> float:
    """What ∇b sums to over the labels, minus s for a whole batch; a plain 1 where that is what it
    must be anyway."""
    if head.grad_b is None or defense.kind == "sign" or head.reduction == "sum":
        return 1.0
    own = head.grad_b[labels].double()
    if bool((own == 0).any()):  # pruned: what is left says too little
        return 1.0
    # share of the probability that lies on the labels, about
    predicted = len(labels) / head.classes
    found = -float(own.sum()) / max(1 - predicted, 0.1)
    doubt = 0.02 + 2 * predicted + 4 * defense.sigma_b * len(labels) ** 0.5
    return 1.0 if abs(found - 1) < doubt or found <= 0 else found


def _masses(
    head: Head, defense: RecognizedDefense, energy: Tensor, labels: Tensor, scale: float
) -> tuple[Tensor, str]:
    """(g,) the share of the batch's targets in each label, and in words where it was read."""
    rows = energy[labels].clamp_min(1e-300)
    by_rows = rows.sqrt() / rows.sqrt().sum()
    if head.grad_b is None or defense.kind == "sign":
        return by_rows, "their size"
    own = -head.grad_b[labels].double() / scale + 1 / head.classes
    if head.reduction == "sum":
        return own, "the bias gradient"
    seen = own > max(3 * defense.sigma_b / scale, 1.5 / head.classes)
    if not bool(seen.any()):
        return by_rows, "their size"
    if bool(seen.all()):
        return own, "the bias gradient"
    # The rows that lost ∇b, in the measure of those that did not.
    unit = float((own[seen] / rows[seen].sqrt()).median())
    return torch.where(
        seen, own, unit * rows.sqrt()
    ), "the bias gradient where it survived, and from their size"


def _counts(
    mass: Tensor, batch_size: int | None, reduction: str, most: int | None = None
) -> Tensor:
    """(g,) whole numbers of at least 1 in proportion to `mass`."""
    if reduction == "sum":
        return mass.round().clamp_min(1).long()
    largest = min(_REPEATS * len(mass), most or _REPEATS * len(mass))
    sizes = range(len(mass), largest + 1) if batch_size is None else [batch_size]
    for size in sizes:
        counts = mass * size
        off, total = (counts - counts.round()).abs().max(), int(counts.round().clamp_min(1).sum())
        if batch_size is None and (float(off) > _WHOLE or total != size):
            continue
        return 1 + whole_counts(counts / counts.sum() * size - 1, size - len(mass))
    return torch.ones_like(mass).long()
