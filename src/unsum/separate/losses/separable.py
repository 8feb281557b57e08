"""Where to start for losses with G_ic = φ(l_ic) − y_ic, exact for the squared error.

To first order in the logits a class c that nobody carries has U_c = α (φ(b_c) s + φ′(b_c) M k_c), s
= Σ t_i, M = Σ t_i t_iᵀ: a linear regression over classes. Rows off it are labels, and what they
miss is d_c = α Σ_{i∋c} t_i. In the metric of α M the samples are orthogonal and of squared length
α, so z_c = (α M)^{-1/2} d_c is √α times a corner of a rotated hypercube: rows of one positive
sample are the samples themselves, and of the others known samples can be taken away until one is
left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from unsum.equation.observation import Observation
from unsum.losses import Separable
from unsum.separate.exact.regression import least_squares

_ONE = 0.15  # how far from 1 the squared length of a lone sample may be
_SAME = 0.9  # cosine from which two directions are one sample
_LABEL = 0.25  # of a lone sample's squared length: rows that miss more are labels
_REFITS = 3  # of the line to the rows that turn out free
_REWEIGHTINGS = 60  # of least squares, towards the least sum of distances
# of φ around what the last one found, and points of its mean over normal logits
_LINEARIZATIONS, _NODES = 5, 9
_RANDOM = 4  # starts with another rotation of the samples that no row tells, or moved by
_JITTER = 0.3  # of their length


def starts(
    observation: Observation, loss: Separable, generator: torch.Generator
) -> Iterator[tuple[Tensor, float]]:
    """T (B, R) and α to start from, for B = R samples: with the plain α first, then with the one
    that the label rows suggest."""
    R = observation.rank
    if observation.classes < R + 3:
        return
    # α of R samples if nothing scaled the gradient.
    whole = loss.divisor(observation.U.new_zeros(R, observation.classes))
    plain = (1 if observation.reduction == "mean" else R * observation.classes) / whole
    design, line = _settled(observation, loss, plain)
    for alpha, fixed in ((plain, True), (0.0, False)):
        for _ in range(_REFITS):
            values, vectors = torch.linalg.eigh(0.5 * (line[1:] + line[1:].T))
            kept = values.clamp_min(1e-9 * float(values.abs().max()))
            root = (vectors * kept.sqrt()) @ vectors.T  # the symmetric one of α M, the line's slope
            z = (design @ line - observation.U) @ torch.linalg.pinv(root)  # √α times corners
            squares = z.square().sum(1)
            # also where it is no number: no row stands out as a label's
            if not float(squares.max()) > 0:
                return
            # a row that one sample alone is positive in: the least square that clearly is a label
            if not fixed:
                alpha = float(squares[squares > 0.05 * squares.max()].min())
            free = squares < _LABEL * alpha
            if int(free.sum()) > design.shape[1]:
                line = least_squares(
                    design[free], observation.U[free], torch.ones_like(squares[free])
                )
        directions = _directions(z[~free] / math.sqrt(alpha), R)
        for number in range(_RANDOM):
            T = _completed(directions, R, generator) @ root / math.sqrt(alpha)
            # Where nothing is left to chance: start farther away, to see where that leads.
            if number and len(directions) == R:
                noise = torch.randn(T.shape, generator=generator, dtype=torch.float64).to(T.device)
                T = T + _JITTER * T.norm(dim=1, keepdim=True) / R**0.5 * noise
            yield T, alpha


def _settled(observation: Observation, loss: Separable, alpha: float) -> tuple[Tensor, Tensor]:
    """The regression with φ linearized over the spread of the logits that it finds itself, not only
    around the bias."""
    K, b, B = observation.K, observation.b, observation.rank
    mean, variance = b, torch.zeros_like(b)
    for _ in range(_LINEARIZATIONS):
        value, slope = (
            _over_spread(loss.link, mean, variance),
            _over_spread(loss.slope, mean, variance),
        )
        design = torch.cat([(value - slope * (mean - b))[:, None], (slope * K).T], dim=1)
        line = _least_distances(design, observation.U)
        M, s = 0.5 * (line[1:] + line[1:].T) / alpha, line[0] / alpha
        mean = b + (s @ K) / B
        variance = ((K * (M @ K)).sum(0) / B - (mean - b).square()).clamp_min(0)
    return design, line


def _over_spread(function: Callable[[Tensor], Tensor], mean: Tensor, variance: Tensor) -> Tensor:
    """The mean of a function over normal logits, by Gauss–Hermite quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    total = torch.zeros_like(mean)
    for node, weight in zip(nodes.tolist(), (weights / weights.sum()).tolist(), strict=True):
        total = total + weight * function(mean + node * variance.sqrt())
    return total


def _least_distances(design: Tensor, values: Tensor) -> Tensor:
    """The line of least summed distances of rows, not squares: labels may be many, as long as most
    rows are free."""
    root = torch.ones_like(design[:, 0])
    line = least_squares(design, values, root)
    for _ in range(_REWEIGHTINGS):
        distance = (values - design @ line).norm(dim=1)
        root = distance.clamp_min(1e-6 * distance.max() + 1e-300).rsqrt()
        line = least_squares(design, values, root / root.max())
    return line


def _directions(corners: Tensor, most: int) -> Tensor:
    """(n, R) orthonormal directions of samples: lone corners first, then what known ones leave of
    the others."""
    found = corners[:0]
    for _ in range(most):
        inside = corners @ found.T if len(found) else corners[:, :0]
        left = corners - inside.round().clamp(0, 1) @ found
        squares = left.square().sum(1)
        alone = ((squares - 1).abs() < _ONE).nonzero()[:, 0]
        fresh = [
            i
            for i in alone.tolist()
            if not len(found) or float((found @ left[i]).abs().max()) < 1 - _SAME + 0.2
        ]
        if not fresh:
            break
        best = min(fresh, key=lambda i: abs(float(squares[i]) - 1))
        same = left[alone][(left[alone] @ left[best]) > _SAME]
        direction = same.mean(0)
        direction = direction - found.T @ (found @ direction)
        found = torch.cat([found, (direction / direction.norm())[None]])
    return found


def _completed(directions: Tensor, R: int, generator: torch.Generator) -> Tensor:
    """An orthogonal matrix whose first rows are `directions`, the others random."""
    random = torch.randn(R - len(directions), R, generator=generator, dtype=torch.float64).to(
        directions.device
    )
    rows = torch.cat([directions, random])
    Q, triangle = torch.linalg.qr(rows.T)
    signs = triangle.diagonal().sign()
    return (Q * torch.where(signs == 0, torch.ones_like(signs), signs)).T
