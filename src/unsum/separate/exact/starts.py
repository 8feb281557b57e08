"""Where to start T: the regression's moments with a rotation that the label rows fix as far as they
can, or rows' ratios."""

from __future__ import annotations

import torch
from torch import Tensor

from unsum.equation.equation import NoFactorError
from unsum.equation.observation import Observation
from unsum.separate.exact.regression import ClassLine

_USUAL = 3.0  # times the size of a usual ratio, beyond which a row's own is none


def rotate_freely(line: ClassLine, B: int, generator: torch.Generator) -> Tensor:
    """T with the regression's mean and covariance and a random rotation among the samples."""
    values, vectors = torch.linalg.eigh(line.covariance * B)
    keep = min(B - 1, len(values))  # a batch's centered features have no more directions than that
    root: Tensor = values.flip(0)[:keep].clamp_min(0).sqrt()[:, None] * vectors.flip(1)[:, :keep].T
    noise = torch.randn(B, B, generator=generator, dtype=torch.float64).to(root.device)
    frame: Tensor = torch.linalg.qr(noise - noise.mean(0))[0][:, : root.shape[0]]
    return line.mean + frame @ root


def rotate_to_targets(line: ClassLine, Y: Tensor, generator: torch.Generator) -> Tensor:
    """T whose sums over each label, Σ_i Y_ic t_i, are those of the label rows; the rest of the
    rotation is random.

    With hard labels the label rows fix the mean of every group of equal labels, and only inside a
    group the start is random; with a label of its own a sample's start is already close.
    """
    B = len(Y)
    if line.scale == 0:
        raise NoFactorError("No gradient was multiplied by 0.")
    used = Y.amax(0) > 1e-9
    basis, values, classes = torch.linalg.svd(Y[:, used], full_matrices=True)
    fixed = int((values > 1e-6 * values[0]).sum())
    inverse = basis[:, :fixed] / values[:fixed] @ classes[:fixed]
    T: Tensor = inverse @ (line.sums[used] * (B / line.scale))
    centered = T - T.mean(0)
    within = B * line.covariance - centered.T @ centered
    free = min(B - fixed, within.shape[0])
    if free == 0:
        return T
    values, vectors = torch.linalg.eigh(within)
    root = values[-free:].clamp_min(0).sqrt()[:, None] * vectors[:, -free:].T
    noise = torch.randn(B - fixed, free, generator=generator, dtype=torch.float64).to(T.device)
    spread: Tensor = basis[:, fixed:] @ torch.linalg.qr(noise)[0] @ root
    return T + spread


def ratio_starts(
    observation: Observation,
    grad_b: Tensor,
    labels: Tensor,
    generator: torch.Generator,
    moved: float,
) -> Tensor:
    """(n, R) each label row's ratio, which is near the features of its samples, moved at random by
    so much of their spread."""
    ratios = observation.U / grad_b[:, None]
    fair = usual_rows(observation, grad_b)
    usual = ratios[fair].median(0).values
    T = torch.where(fair[labels][:, None], ratios[labels], usual)
    spread = (ratios[fair] - usual).norm(dim=1).mean() / observation.rank**0.5
    noise = torch.randn(T.shape, generator=generator, dtype=torch.float64).to(T.device)
    return T + moved * spread * noise


def usual_rows(observation: Observation, grad_b: Tensor) -> Tensor:
    """(C,) bool: rows whose ratio has a usual size; a ∇b near zero, or a row of zeros, has none."""
    sizes = (observation.U / grad_b[:, None]).norm(dim=1)
    usual: Tensor = sizes < _USUAL * sizes.nanmedian()
    return usual if bool(usual.any()) else torch.ones_like(usual)


def hunt_corners(rows: Tensor, count: int) -> Tensor:
    """Indices of `count` rows that span the simplex best: successive projection, as in separable
    factorization.

    A constant coordinate makes it affine. A trained model's softmax is peaked, so many rows sit
    almost on a corner.
    """
    constant = rows.new_full((len(rows), 1), float(rows.norm(dim=1).median()))
    left = torch.cat([rows, constant], dim=1)
    picked = []
    for _ in range(min(count, len(rows))):
        index = left.square().sum(1).argmax()
        corner = left[index] / left[index].norm().clamp_min(1e-300)
        left = left - (left @ corner)[:, None] * corner
        picked.append(index)
    return torch.stack(picked)
