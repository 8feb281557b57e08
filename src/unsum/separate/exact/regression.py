"""Labels first: a robust regression over classes finds label rows, their counts, and T up to a
rotation.

For a class c that nobody is labeled with, U_c / ∇b_c = Σ_i w_ic t_i with weights w_ic ∝ p_ic. To
first order in the logits that is a line, a + M k_c, whose slope M is the covariance of the t_i.
Rows off that line are labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unsum.equation.observation import Observation

# (design, values, square roots of the weights) → line
Fit = Callable[[Tensor, Tensor, Tensor], Tensor]

# Of a usual row, tried in turn: what a smoothed label's floor took is not known.
_LIFTS = (0.15, 0.3, 0.5, 0.75, 1.0, 1.5, 2.5, 4.0)
OUTLIER = 8.0  # median deviations off the line that make a row a label
CLEAN = 30.0  # deviations of a usual entry of ∇b, from which rows are divided by it


@dataclass(frozen=True)
class ClassLine:
    """What the regression found."""

    labeled: Tensor  # (C,) bool: rows somebody may be labeled with
    mean: Tensor  # (R,) mean of the t_i
    covariance: Tensor  # (R, R) of the t_i
    scale: float  # α B: what a gradient averaged over the batch was multiplied by
    mass: Tensor  # (C,) share of the batch's targets in each class: count / B for hard labels
    sums: Tensor  # (C, R) scale · Σ_i Y_ic t_i / B
    floor: float = 0.0  # of all targets, where one was assumed


def fit_class_line(observation: Observation) -> ClassLine:
    """Fit the line over the classes nobody carries, with ∇b as the rows' sizes where it is clean
    enough to divide by."""
    K, b, U, grad_b = observation.K, observation.b, observation.U, observation.grad_b
    if (
        grad_b is not None
        and float((grad_b.abs() * observation.weight).median()) * observation.beta > CLEAN
    ):
        return _fit_ratios(K, b, U, grad_b)
    return _fit_rows(K, b, U, grad_b, observation.weight)


def fit_lifted_lines(observation: Observation) -> Iterator[ClassLine]:
    """The same without ∇b for smoothed labels, whose floor e takes the same −α e Σ_i t_i from every
    row.

    That is a vector along the mean feature. Its length is not known, so several are given back in
    turn, in parts of a usual row.
    """
    K, b, U, weight = observation.K, observation.b, observation.U, observation.weight
    direction = _shared_direction(U, weight)
    along = U @ direction
    usual = float(along[along > 0].median()) if bool((along > 0).any()) else 0.0
    for part in _LIFTS:
        line = _fit_rows(K, b, U + part * usual * direction, None, weight)
        size = float(line.mean.norm()) * line.scale
        yield replace(line, floor=part * usual / size if size > 0 else 0.0)


def _fit_ratios(K: Tensor, b: Tensor, U: Tensor, grad_b: Tensor) -> ClassLine:
    """U_c / ∇b_c = a + M k_c."""
    positive = grad_b > 1e-9 * grad_b.abs().max()
    if 4 * len(K) >= len(b):
        positive = _likely_unlabeled(K, b, U, grad_b, positive)
    ratios = U / torch.where(positive, grad_b, torch.ones_like(grad_b))[:, None]
    design = torch.cat([torch.ones_like(b)[:, None], K.T], dim=1)
    inside, line = _robust_line(
        design, ratios, grad_b.clamp_min(0).sqrt(), positive, _symmetric_least_squares
    )
    intercept, slope = line[0], line[1:]
    covariance = _positive_part(slope)
    p_bar = torch.softmax(b, dim=0)
    mean = intercept
    for _ in range(5):
        mean = intercept + slope @ (K @ p_bar)
        p_bar = _mean_probabilities(K, b, mean, covariance)
    scale = float(grad_b[inside].sum() / p_bar[inside].sum())
    mass = torch.where(inside, torch.zeros_like(b), p_bar - grad_b / scale)
    sums = scale * p_bar[:, None] * (design @ line) - U
    return ClassLine(~inside, mean, covariance, scale, mass, sums)


def _likely_unlabeled(K: Tensor, b: Tensor, U: Tensor, grad_b: Tensor, positive: Tensor) -> Tensor:
    """Rows whose ∇b is no smaller than the mean feature explains; in a crowded batch a label's may
    be positive, too."""
    inside = positive
    for _ in range(5):
        mean = U[inside].sum(0) / grad_b[inside].sum()
        size = grad_b / torch.softmax(b + mean @ K, dim=0)
        inside = positive & (size > 0.5 * size[inside].median())
    return inside


def _fit_rows(K: Tensor, b: Tensor, U: Tensor, grad_b: Tensor | None, weight: Tensor) -> ClassLine:
    """Without a usable ∇b: U_c = s p̄_c (a + M k_c), where log p̄ is a line over classes, too."""
    direction, zeta, log_scale, inside = _fit_sizes(K, b, U, weight)
    mean, covariance = zeta * direction, torch.zeros_like(K @ K.T)
    design = torch.cat([torch.ones_like(b)[:, None], K.T], dim=1)
    scale = min(max(float(log_scale.exp()), 1e-50), 1e50)
    line = torch.zeros(len(mean) + 1, len(mean), dtype=b.dtype, device=b.device)
    for _ in range(10):
        p_bar = _mean_probabilities(K, b, mean, covariance)
        size = (scale * p_bar)[:, None].clamp_min(1e-100)
        inside, line = _robust_line(
            design, U / size, size[:, 0] * weight, inside, _symmetric_least_squares
        )
        covariance = _positive_part(line[1:])
        mean = line[0] + line[1:] @ (K @ p_bar)
    sums = size * (design @ line) - U
    mass = sums @ mean / (scale * mean.square().sum()) if grad_b is None else p_bar - grad_b / scale
    mass = torch.where(inside, torch.zeros_like(mass), mass)
    return ClassLine(~inside, mean, covariance, scale, mass / mass.sum().clamp_min(0.1), sums)


def _fit_sizes(
    K: Tensor, b: Tensor, U: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Direction and length ζ of the mean feature, the scale's logarithm, and the rows that fit.

    U_c · u ≈ s p̄_c ζ with p̄_c ∝ exp(b_c + ζ u·k_c): a line of slope ζ in u·k_c. For one sample it
    is exact.
    """
    direction = _shared_direction(U, weight)
    along = U @ direction
    positive = along > 0
    heights = along.clamp_min(1e-300).log() - b
    design = torch.stack([torch.ones_like(b), direction @ K], dim=1)
    inside, line = _robust_line(
        design, heights[:, None], torch.ones_like(b), positive, least_squares
    )
    zeta = line[1, 0].clamp_min(1e-6 * along.abs().max())
    log_total = torch.logsumexp(b + zeta * design[:, 1], dim=0)
    return direction, zeta, line[0, 0] - zeta.log() + log_total, inside


def _shared_direction(U: Tensor, weight: Tensor) -> Tensor:
    """(R,) the direction most rows share: label rows point the other way or elsewhere."""
    weighted = U * weight[:, None]
    typical = weighted / weighted.norm(dim=1, keepdim=True).clamp_min(1e-300)
    direction: Tensor = typical.sum(0)
    for _ in range(20):
        direction = direction / direction.norm().clamp_min(1e-300)
        direction = (typical * (typical @ direction).clamp_min(0)[:, None]).sum(0)
    return torch.nn.functional.normalize(direction, dim=0, eps=1e-300)


def _robust_line(
    design: Tensor, values: Tensor, root: Tensor, inside: Tensor, fit: Fit
) -> tuple[Tensor, Tensor]:
    """Least squares over the rows `inside`, dropping outliers until they settle."""
    if not bool(inside.any()):
        inside = torch.ones_like(inside)
    allowed, least = inside, max(design.shape[1] + 1, len(design) // 2)
    line = fit(design[inside], values[inside], root[inside])
    for _ in range(20):
        deviation = (values - design @ line) * root[:, None]
        spread = deviation[inside].abs().median(dim=0).values.clamp_min(1e-300)
        score = (deviation / spread).square().mean(1).sqrt()
        settled = allowed & (score <= OUTLIER * score[inside].median())
        if int(settled.sum()) < least or bool((settled == inside).all()):
            break
        inside = settled
        line = fit(design[inside], values[inside], root[inside])
    return inside, line


def least_squares(design: Tensor, values: Tensor, root: Tensor) -> Tensor:
    A, Y = design * root[:, None], values * root[:, None]
    gram = A.T @ A
    # Tikhonov at rounding level: a constant direction of K (a rank-deficient head) must not blow
    # up.
    ridge = 1e-13 * gram.diagonal().max() + 1e-12 * gram.diagonal() + 1e-300
    return torch.linalg.solve(gram + torch.diag(ridge), A.T @ Y)


def _symmetric_least_squares(design: Tensor, values: Tensor, root: Tensor) -> Tensor:
    """The same with a symmetric slope, as a covariance is: half as many unknowns, so half as many
    rows suffice.

    The normal equations are S M + M S = Q + Qᵀ, solved in the eigenvectors of S.
    """
    share = (root.square() / root.square().sum().clamp_min(1e-300))[:, None]
    center_k, center_v = (share * design[:, 1:]).sum(0), (share * values).sum(0)
    k, v = design[:, 1:] - center_k, values - center_v
    eigenvalues, V = torch.linalg.eigh(((share * k).T @ k).nan_to_num(posinf=0.0, neginf=0.0))
    Q = V.T @ ((share * k).T @ v) @ V
    sums = eigenvalues[:, None] + eigenvalues
    # With hardly more rows than directions the slope is more noise than covariance: shrink it.
    ridge = 1e-13 * sums.max() if len(k) > 1.2 * k.shape[1] + 2 else 0.3 * sums.mean()
    slope = V @ ((Q + Q.T) / (sums + ridge + 1e-300)) @ V.T
    return torch.cat([(center_v - slope @ center_k)[None], slope])


def _positive_part(slope: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(slope.nan_to_num(posinf=0.0, neginf=0.0))
    return (vectors * values.clamp_min(0)) @ vectors.T


def _mean_probabilities(K: Tensor, b: Tensor, mean: Tensor, covariance: Tensor) -> Tensor:
    """p̄ to second order: the logarithm of a mean of exponentials is mean plus half the
    variance."""
    return torch.softmax(b + mean @ K + 0.5 * ((covariance @ K) * K).sum(0), dim=0)
