"""What speaks for many answers at once: predicted errors, and every doubt of `unsum.certify` that a plain batch can raise.

A doubt is only counted here. Whoever has one is solved again by itself, and told in words. Where something is bounded instead of
computed, or asked of more pairs of samples than needed, it is on the side of doubt.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsum.certify.candidate import EXPLAINED, FAR
from unsum.certify.claim import FALSE_ERROR, TRUSTED_ERROR
from unsum.certify.doubts.faint import SURE as FAINT
from unsum.certify.doubts.labels import SATURATED
from unsum.certify.doubts.merged import CHANCE, COPIES, TOGETHER, UNEVEN, outside_share, probes, usual
from unsum.certify.doubts.mixing import SURE, WRONG_LABEL
from unsum.certify.doubts.nuisance import NOTHING, RESOLVED, TRUSTED
from unsum.certify.further import STEP
from unsum.certify.scatter import SPARE
from unsum.head import Head
from unsum.separate.at_once.gradients import Observations
from unsum.separate.at_once.solving import ManyEquations, Points, solve_factored


def noise_weights(head: Head, seen: Observations, equations: ManyEquations, T: Tensor) -> Tensor:
    """(n, C) from the noise model at a solution, as `Observation.weights_at`."""
    sizes = T.norm(dim=2, keepdim=True)
    P = torch.softmax(T @ equations.K + equations.b, dim=2)
    rounding = ((P * (1 + 0.5 * sizes * head.row_norms(head.W))).square() + equations.Y.square()).sqrt()
    client = torch.finfo(head.W.dtype).eps / 2 * equations.alpha * (rounding * sizes).square().sum(1).sqrt()
    return torch.rsqrt(seen.level.square() + client.square())


def weigh(head: Head, seen: Observations, equations: ManyEquations, T: Tensor) -> tuple[Tensor, Tensor]:
    """(n, B) predicted errors, and (n,) bool: whether the answer explains its gradient and nobody has a doubt."""
    here = Points(equations, T)
    B, R = T.shape[1:]
    C = equations.weight.shape[1]
    spare = (C - 1) * (R + 1) - B * R
    misfit = (here.costs / max(spare, 1)).sqrt()
    floor, size = misfit.clamp_min(1.0), T.norm(dim=2).clamp_min(1e-300)
    prior = size.pow(-2).repeat_interleave(R, dim=1) * floor[:, None].square()
    solver = _Followed(here, prior)
    errors = solver.scatter(B, R, floor) + _outside(here, seen, equations.alpha)
    errors = (errors.clamp_min(0).sqrt() / size).nan_to_num(nan=torch.inf)
    predicted, lengths = errors.amax(1), T.norm(dim=2)
    leaves = 1 - here.P.amax(2)
    fine = [
        torch.full_like(solver.sound, spare >= SPARE) & solver.sound,
        (misfit < EXPLAINED) & (predicted < TRUSTED_ERROR) & (predicted * misfit.square() < TRUSTED_ERROR),
        lengths.amax(1) <= FAR * lengths.median(1).values,
        (here.G.abs().amax((1, 2)) >= FAINT) & (leaves.amax(1) > SATURATED),
        _hidden_spread(head, seen, here) <= FALSE_ERROR,
        _hidden_lengths(here, solver, floor) <= FALSE_ERROR,
        _hidden_mixing(here, solver, floor) < WRONG_LABEL,
        _left_open(here, solver, floor, _weights(here)) <= TRUSTED,
        _left_open(here, solver, floor, _temperature(here)) <= TRUSTED,
    ]
    return errors, torch.stack(fine).all(0)


class _Followed:
    """(JᵀJ + prior)⁻¹, factored in the units of its own diagonal; `sound` where it is positive definite."""

    def __init__(self, here: Points, prior: Tensor) -> None:
        N = here.normal_matrix() + torch.diag_embed(prior)
        self.scale = N.diagonal(dim1=1, dim2=2).rsqrt()
        factor, failed = torch.linalg.cholesky_ex(self.scale[:, :, None] * N * self.scale[:, None])
        self.sound = failed == 0
        self.factor = torch.where(self.sound[:, None, None], factor, torch.eye(factor.shape[1]).to(factor))

    def __call__(self, pulled: Tensor) -> Tensor:
        """(n, m, …) how T follows m columns whose JᵀD are `pulled`."""
        return (self.scale[:, :, None] * solve_factored(self.factor, self.scale[:, :, None] * pulled.mT)).mT

    def scatter(self, B: int, R: int, floor: Tensor) -> Tensor:
        """(n, B) variance of every sample, summed over the directions of T."""
        one = torch.eye(B * R, dtype=self.scale.dtype, device=self.scale.device).expand(len(floor), -1, -1)
        half = torch.linalg.solve_triangular(self.factor, one, upper=False)
        variance = half.square().sum(1) * self.scale.square()
        return variance.view(-1, B, R).sum(2) * floor[:, None].square()


def _outside(here: Points, seen: Observations, alpha: float) -> Tensor:
    """(n, B) variance by the noise of A itself, as `scatter` has it: the squared rows of a pseudo-inverse."""
    sent = alpha * here.G.mT / seen.level[:, :, None]
    size = sent.norm(dim=1).clamp_min(1e-300)
    unit = sent / size[:, None]
    inverse = torch.linalg.inv_ex(unit.mT @ unit)[0].diagonal(dim1=1, dim2=2)
    squares: Tensor = inverse.clamp_min(1.0) / size.square()  # of unit columns none is below
    return squares * seen.A.shape[2]


def _hidden_spread(head: Head, seen: Observations, here: Points) -> Tensor:
    """(n,) as `merged.hidden_spread`: the largest relative distance at which a few samples may pass as one."""
    n, R, H = seen.A.shape
    C = here.P.shape[2]
    most = min(TOGETHER - 1, H - R, C - 1 - R)
    if most < 1:
        return here.costs.new_full((n,), torch.inf)
    mean = here.P.mean(1).to(head.W.dtype) @ head.W
    squares = head.row_norms(head.W).square() - 2 * (mean @ head.W.T).double() + mean.square().sum(1)[:, None].double()
    answer = here.P * squares.clamp_min(0).sqrt()[:, None]
    response = here.equations.alpha * here.T.square().sum(2, keepdim=True) * answer * ((1 - R / H) / H) ** 0.5
    strength = response / seen.level[:, None]
    V = probes(head)
    bent = here.P[:, :, None] * (V - (here.P @ V.T)[..., None])
    own = here.G / seen.level[:, None]
    strength = strength * outside_share(bent / seen.level[:, None, None], own)[..., None]
    rows = strength.square().sum(2).square() / strength.pow(4).sum(2).clamp_min(1e-300)
    rows = rows.nan_to_num(nan=1.0).clamp(1, C).long()
    norm, largest = seen.rest[:, :1, None], seen.rest[:, 1:, None] + CHANCE
    d = torch.arange(1, most + 1, device=rows.device, dtype=torch.float64)
    bound = torch.minimum(norm * d.sqrt(), largest * d) / _usual_of(rows, most)
    alone = UNEVEN if here.T.shape[1] == 1 else 1.0
    return alone * (bound.amax(2) / strength.norm(dim=2).clamp_min(1e-300)).amax(1).sqrt()


def _usual_of(rows: Tensor, most: int) -> Tensor:
    """(n, B, most) `usual` of so many rows times 1 … most."""
    found = rows.unique()
    table = torch.zeros(int(found[-1]) + 1, most, dtype=torch.float64)
    for row in found.tolist():
        table[row] = torch.tensor([usual(row * d) for d in range(1, most + 1)], dtype=torch.float64)
    return table.to(rows.device)[rows]


def _hidden_lengths(here: Points, follow: _Followed, floor: Tensor) -> Tensor:
    """(n,) as `merged.hidden_lengths`: of siblings that differ in their length alone."""
    equations, h, R = here.equations, STEP, here.T.shape[2]
    grown = here.T @ equations.K
    up, down = (torch.softmax(grown * s + equations.b, dim=2) - equations.Y for s in (1 + h, 1 - h))
    first, second = (up - down) / (2 * h), (up - 2 * here.G + down) / h**2
    change = 0.5 * second[..., None] * here.extended[:, :, None]
    change[..., :R] += first[..., None] * here.T[:, :, None]
    D = equations.weight[:, None, :, None] * equations.alpha * change
    pulled = here.pull(D)
    seen = (D.square().sum((2, 3)) - (pulled * follow(pulled)).sum(2)).clamp_min(0)
    variance = floor[:, None] / (seen + floor[:, None].square()).sqrt()
    return ((COPIES - 1) * variance.nan_to_num(nan=1.0).amax(1)).sqrt()


def _hidden_mixing(here: Points, follow: _Followed, floor: Tensor) -> Tensor:
    """(n,) as `mixing.hidden_mixing`, of all pairs of samples of different labels: how much of them may be exchanged."""
    equations, B = here.equations, here.T.shape[1]
    first, second = torch.triu_indices(B, B, 1, device=here.T.device)
    if len(first) == 0:
        return torch.zeros_like(floor)
    labels = equations.Y.argmax(2)
    apart = labels[:, first] != labels[:, second]
    i, k = torch.stack([first, second], 1).flatten(), torch.stack([second, first], 1).flatten()
    turned = equations.alpha * (equations.Y[:, i] - equations.Y[:, k]) * equations.weight[:, None]
    D = turned[..., None] * here.extended[:, i, None]
    pulled = here.pull(D)
    moves, flat = follow(pulled), D.flatten(2)
    information = flat @ flat.mT - pulled @ moves.mT
    pairs = torch.arange(len(first), device=i.device)
    each = torch.stack([2 * pairs, 2 * pairs + 1], 1)
    blocks = information[:, each[:, :, None], each[:, None, :]]
    one = torch.eye(2, dtype=flat.dtype, device=flat.device)
    blocks = torch.where(apart[..., None, None], blocks + floor[:, None, None, None].square() * one, one)
    half, off = (blocks[..., 0, 0] - blocks[..., 1, 1]) / 2, blocks[..., 0, 1]
    least = (blocks[..., 0, 0] + blocks[..., 1, 1]) / 2 - (half.square() + off.square()).sqrt()
    deviations = floor[:, None] * least.clamp_min(1e-30).rsqrt()
    along = (flat @ here.residual.flatten(1)[..., None])[..., 0] - (moves @ here.gradient()[..., None])[..., 0]
    said = torch.linalg.solve_ex(blocks, along.view(*apart.shape, 2, 1))[0].abs().amax((2, 3))
    most = torch.where(apart, (said + SURE * deviations).nan_to_num(nan=torch.inf), 0.0)
    return most.amax(1)


def _weights(here: Points) -> Tensor:
    """(n, B, C, R + 1) per unit of each sample's log weight, as `nuisance` has it."""
    equations = here.equations
    change = here.G[..., None] * here.extended[:, :, None]
    return equations.weight[:, None, :, None] * equations.alpha * change


def _temperature(here: Points) -> Tensor:
    """(n, 1, C, R + 1) per unit of a temperature's logarithm."""
    equations = here.equations
    logits = here.T @ equations.K + equations.b
    bent = here.P * (logits - (here.P * logits).sum(2, keepdim=True))
    change = (-here.G - bent).mT @ here.extended
    return (equations.weight[:, :, None] * equations.alpha * change)[:, None]


def _left_open(here: Points, follow: _Followed, floor: Tensor, D: Tensor) -> Tensor:
    """(n,) as `nuisance.left_open`: the largest relative error of features that unknowns behind the columns D leave open."""
    n, B, R = here.T.shape
    norms = D.flatten(2).norm(dim=2)
    unit = D / norms.clamp_min(1e-300)[:, :, None, None]
    pulled = here.pull(unit)
    moves, flat = follow(pulled), unit.flatten(2)
    seen = flat @ flat.mT - pulled @ moves.mT
    values, vectors = torch.linalg.eigh((0.5 * (seen + seen.mT)).nan_to_num())
    values = torch.where(values > RESOLVED, values, 0.0)
    squared = floor[:, None, None].square()
    prior = vectors.mT @ torch.diag_embed(norms.clamp_min(1e-300).pow(-2)) @ vectors
    covariance = torch.linalg.inv_ex(torch.diag_embed(values) + squared * prior)[0] * squared
    steps = (vectors.mT @ moves).view(n, -1, B, R)
    variance = torch.einsum("nkij,nkl,nlij->ni", steps, covariance, steps)
    errors = (variance.clamp_min(0).sqrt() / here.T.norm(dim=2).clamp_min(1e-300)).nan_to_num(nan=torch.inf).amax(1)
    return torch.where(
        (norms > NOTHING).all(1), errors, torch.inf
    )  # who has a column that changes nothing is asked alone
