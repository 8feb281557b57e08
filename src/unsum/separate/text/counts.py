"""How many of the client's positions stand behind each prefix, and which tokens follow it.

With the features F of all prefixes known, ∇W = Gᵀ F is linear: Gᵀ = ∇W F⁺. A prefix that n
positions share has g = α (n p − Σ e_y), so rows that no label disturbs tell a = α n, and what a p
exceeds g by tells α times the count of each next token. Counts are whole numbers, which tells α.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.head import Head

_TOP = 32  # likeliest tokens of a prefix, whose median ratio starts the estimate
_LABEL = 0.4  # of one label's mass: what is missing beyond this is a label
_PRESENT = 0.02  # of the heaviest prefix: lighter ones carry no label
_FAINT = 0.2  # relative deviation of a weight from which it says nothing
_WHOLE = 0.2  # how far from a whole number a count may be
_CARRIED = 8.0  # units in the last place of the gradient by which a class's weights may be off
_SINGLE = 1e-2  # of a text's gradient: what its only label leaves of it at most
_MIXED = 8  # copies of one text with different labels that are told apart
_MOST = 64  # positions that may share every single prefix


@dataclass(frozen=True)
class Counts:
    """For n prefixes: positions behind each, next tokens with their counts, and what one position
    weighs."""

    positions: list[int]
    labels: list[dict[int, int]]
    alpha: float
    whole: bool  # every count was one


def count(head: Head, F: Tensor, tied_rows: Tensor) -> Counts | None:
    """Positions and labels behind features F (n, H); rows of tokens in `tied_rows` hold more than
    the head's gradient.

    None where those are all rows: nothing is left to weigh prefixes by.
    """
    if len(tied_rows) >= head.classes:
        return None
    G = head.projected(torch.linalg.pinv(F.double()).T).T  # (n, V)
    L = head.logits(F.double())
    P = torch.softmax(L if head.b is None else L + head.b.double(), dim=1)
    clean = torch.ones(head.classes, dtype=torch.bool, device=F.device)
    clean[tied_rows] = False
    weights, deviations, missing = _weigh(G, P, clean)
    measured = deviations < _FAINT * weights.clamp_min(_PRESENT * float(weights.max()))
    alpha, whole = _unit(weights[measured])
    positions = (weights / alpha).round().clamp_min(0)
    positions[~measured] = 0
    labels = [
        _labels(row / alpha, int(number)) for row, number in zip(missing, positions, strict=True)
    ]
    return Counts(positions.int().tolist(), labels, alpha, whole)


def count_classes(head: Head, F: Tensor) -> Counts:
    """The same for a class of each whole text, with features F (n, H) of texts that may have been
    in the batch.

    g = α (n p − Σ e_y) has few rows, and a label disturbs most of them. So every class is tried as
    the only label: then g = a (p − e_y), and a is a whole multiple of α. A text with several labels
    needs α from the others.
    """
    G = head.projected(torch.linalg.pinv(F.double()).T).T  # (n, C)
    L = head.logits(F.double())
    P = torch.softmax(L if head.b is None else L + head.b.double(), dim=1)
    along = (G * P).sum(1, keepdim=True) - G  # g · (p − e_y)
    squares = P.square().sum(1, keepdim=True) - 2 * P + 1
    weights = along / squares.clamp_min(1e-300)
    rest = (G.square().sum(1, keepdim=True) - weights.clamp_min(0) * along).clamp_min(0).sqrt()
    best = rest.argmin(1)
    rows = torch.arange(len(F), device=F.device)
    weight, missed, size = weights[rows, best].clamp_min(0), rest[rows, best], G.norm(dim=1)
    rounding = _CARRIED * torch.finfo(head.grad_W.dtype).eps * float(head.grad_W.double().norm())
    rounding = rounding * torch.linalg.pinv(F.double()).norm(dim=0)  # (n,) of g
    there = size > rounding
    single = there & (missed < _SINGLE * size) & (rounding < _FAINT * size)
    alpha, whole = _unit(weight[single])
    several = (there & ~single).nonzero()[:, 0].tolist()
    mixed: dict[int, dict[int, int]] = {}
    unit = alpha
    # texts of one label alone do not tell α where each of them is there twice
    for share in range(1, _MIXED + 1):
        tried = {row: _mixed(share * G[row] / alpha, P[row]) for row in several}
        if all(tried.values()):
            mixed, unit = tried, alpha / share
            break
    labels = [
        {int(best[row]): round(float(weight[row]) / unit)} if single[row] else mixed.get(row, {})
        for row in range(len(F))
    ]
    return Counts(
        [sum(row.values()) for row in labels], labels, unit, whole and len(mixed) == len(several)
    )


def _mixed(g: Tensor, p: Tensor) -> dict[int, int]:
    """Whole numbers m of labels with n p − m = g, for the smallest n."""
    for n in range(1, _MIXED + 1):
        m = n * p - g
        if float((m - m.round()).abs().max()) < _WHOLE / 2 and float(m.min()) > -_WHOLE:
            return {int(y): round(float(m[y])) for y in m.round().nonzero()[:, 0]}
    return {}


def _weigh(G: Tensor, P: Tensor, clean: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(n,) weights a with their deviations, and (n, V) the mass that labels take from a p, zero in
    rows that are not clean."""
    likely = (
        torch.where(clean, P, torch.zeros_like(P)).topk(min(_TOP, int(clean.sum())), dim=1).indices
    )
    weights = (G.gather(1, likely) / P.gather(1, likely).clamp_min(1e-300)).median(dim=1).values
    flat = clean.expand_as(P)
    for _ in range(3):
        heaviest = float(weights.max())
        present = weights[weights > _PRESENT * heaviest]
        unit = float(present.min()) if len(present) else heaviest
        flat = clean & (weights[:, None] * P - G < _LABEL * unit)
        p = P * flat
        weights = (p * G).sum(1) / p.square().sum(1).clamp_min(1e-300)
    left = (weights[:, None] * P - G) * clean
    noise = (left * flat).square().sum(1) / flat.sum(1).clamp_min(1)
    deviations = (noise / (P * flat).square().sum(1).clamp_min(1e-300)).sqrt()
    return weights, deviations, torch.where(clean, left, torch.zeros_like(left))


def _unit(weights: Tensor) -> tuple[float, bool]:
    """α: the largest unit of which every weight is a whole multiple, and whether one was found."""
    if len(weights) == 0 or float(weights.max()) <= 0:  # no prefix carries anything
        return 1.0, False
    present = weights[weights > _PRESENT * float(weights.max())]
    least = float(present.min())
    for share in range(1, _MOST + 1):
        multiples = present * (share / least)
        if float((multiples - multiples.round()).abs().max()) < _WHOLE / 2:
            return float(present.sum() / multiples.round().sum()), True
    return least, False


def _labels(masses: Tensor, number: int) -> dict[int, int]:
    """Tokens with the whole number of times that each follows, the heaviest first, for at most
    `number` positions."""
    found = (masses > 1 - _LABEL).nonzero()[:, 0]
    labels: dict[int, int] = {}
    for token in found[masses[found].argsort(descending=True)].tolist():
        times = min(round(float(masses[token])), number - sum(labels.values()))
        if times > 0:
            labels[token] = times
    return labels
