"""Hard labels of many batches, and points to start from: `regression`, `hypotheses` and `starts` of
the exact solver at once."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from unsum.separate.at_once.gradients import Observations
from unsum.separate.exact.hypotheses import PLAIN_SCALE, WHOLE
from unsum.separate.exact.regression import CLEAN, OUTLIER


@dataclass(frozen=True)
class Lines:
    """What the regression over classes says of n gradients; `fits` where that is a batch of hard
    labels and no scale."""

    # (n,) bool: every label row's mass is a whole number of samples, and their sum the rank
    fits: Tensor
    labels: Tensor  # (n, B)
    sums: Tensor  # (n, C, R) as in `ClassLine`
    covariance: Tensor  # (n, R, R)
    scale: Tensor  # (n,)

    def take(self, kept: Tensor) -> Lines:
        return Lines(*(getattr(self, field.name)[kept] for field in fields(self)))


def fit_lines(seen: Observations, b: Tensor) -> Lines:
    """U_c / ∇b_c = a + M k_c over the classes nobody carries, as `regression` fits it to one
    gradient."""
    grad_b, B = seen.grad_b, seen.K.shape[1]
    positive = grad_b > 1e-9 * grad_b.abs().amax(1, keepdim=True)
    ratios = seen.U / torch.where(positive, grad_b, 1.0)[:, :, None]
    inside, center, slope = _robust(seen.K.mT, ratios, grad_b.clamp_min(0).sqrt(), positive)
    covariance = _positive_part(slope)
    p_bar = torch.softmax(b, dim=0).expand_as(grad_b)
    spread = 0.5 * ((covariance @ seen.K) * seen.K).sum(1)
    for _ in range(5):
        mean = center + (slope @ (seen.K @ p_bar[:, :, None]))[:, :, 0]
        p_bar = torch.softmax(b + (mean[:, None] @ seen.K)[:, 0] + spread, dim=1)
    scale = (grad_b * inside).sum(1) / (p_bar * inside).sum(1)
    mass = B * torch.where(inside, 0.0, p_bar - grad_b / scale[:, None])
    counts = mass.round().clamp_min(0)
    clean = (grad_b.abs() * seen.weight).median(1).values * seen.beta > CLEAN
    whole = (counts.sum(1) == B) & ((mass - counts).abs().amax(1) <= WHOLE)
    plain = (scale > 0) & (scale.log().abs() < PLAIN_SCALE)
    places = (
        torch.arange(B, device=b.device, dtype=counts.dtype).expand(len(counts), -1).contiguous()
    )
    labels = torch.searchsorted(counts.cumsum(1), places, right=True).clamp_max(counts.shape[1] - 1)
    sums = (scale[:, None] * p_bar)[:, :, None] * (center[:, None] + seen.K.mT @ slope) - seen.U
    return Lines(
        clean & whole & plain & covariance.flatten(1).isfinite().all(1),
        labels,
        sums,
        covariance,
        scale,
    )


def start_points(lines: Lines, Y: Tensor, generator: torch.Generator) -> Tensor:
    """(n, B, R) with the sums that the label rows tell; inside a group of one label the rotation is
    random."""
    B = Y.shape[1]
    alike = Y @ Y.mT
    together = alike / alike.sum(2, keepdim=True)  # the mean over samples of one label
    T = together @ (Y @ lines.sums) * (B / lines.scale)[:, None, None] / alike.sum(2, keepdim=True)
    centered = T - T.mean(1, keepdim=True)
    values, vectors = torch.linalg.eigh(B * lines.covariance - centered.mT @ centered)
    root = values.flip(1).clamp_min(0).sqrt()[:, :, None] * vectors.flip(2).mT
    noise = torch.randn(Y.shape[0], B, B, generator=generator, dtype=torch.float64).to(Y.device)
    frame = torch.linalg.qr(noise - together @ noise)[0]
    free = B - (Y.amax(1) > 0).sum(1)  # directions that labels do not fix
    kept = torch.arange(B, device=Y.device) < free[:, None]
    spread: Tensor = (frame * kept[:, None, :]) @ root[:, :B]
    return T + spread


def _robust(
    k: Tensor, values: Tensor, root: Tensor, allowed: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Least squares over the rows `inside`, dropping outliers until they settle: these rows, a (n,
    R), M (n, R, R)."""
    C, R = k.shape[1:]
    inside, least = allowed, max(R + 2, C // 2)
    center, slope = _symmetric(k, values, root * inside)
    moving = torch.ones_like(inside[:, 0])
    for _ in range(20):
        deviation = (values - center[:, None] - k @ slope) * root[:, :, None]
        spread = _median(deviation.abs(), inside[:, :, None].expand_as(deviation)).clamp_min(1e-300)
        score = (deviation / spread[:, None]).square().mean(2).sqrt()
        settled = allowed & (score <= OUTLIER * _median(score, inside)[:, None])
        moving = moving & (settled.sum(1) >= least) & (settled != inside).any(1)
        if not bool(moving.any()):
            break
        inside = torch.where(moving[:, None], settled, inside)
        center, slope = _symmetric(k, values, root * inside)
    return inside, center, slope


def _symmetric(k: Tensor, values: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
    """As `regression` solves it: S M + M S = Q + Qᵀ in the eigenvectors of S."""
    share = (root.square() / root.square().sum(1, keepdim=True).clamp_min(1e-300))[:, :, None]
    center_k, center_v = (share * k).sum(1), (share * values).sum(1)
    k, v = k - center_k[:, None], values - center_v[:, None]
    eigenvalues, V = torch.linalg.eigh(((share * k).mT @ k).nan_to_num(posinf=0.0, neginf=0.0))
    Q = V.mT @ ((share * k).mT @ v) @ V
    sums = eigenvalues[:, :, None] + eigenvalues[:, None]
    largest, usual = sums.amax((1, 2)), sums.mean((1, 2))
    rows = (root > 0).sum(1)
    ridge = torch.where(rows > 1.2 * k.shape[2] + 2, 1e-13 * largest, 0.3 * usual)[:, None, None]
    slope = V @ ((Q + Q.mT) / (sums + ridge + 1e-300)) @ V.mT
    return center_v - (slope @ center_k[:, :, None])[:, :, 0], slope


def _positive_part(slope: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(slope.nan_to_num(posinf=0.0, neginf=0.0))
    return (vectors * values.clamp_min(0)[:, None]) @ vectors.mT


def _median(values: Tensor, inside: Tensor) -> Tensor:
    """Over dimension 1, of those inside."""
    ordered = torch.where(inside, values, torch.inf).sort(1).values
    middle = (inside.sum(1, keepdim=True) - 1).clamp_min(0) // 2
    return ordered.gather(1, middle)[:, 0]
