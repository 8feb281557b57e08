"""Independent components of a gradient's rows: what Cocktail Party finds guests with, at the first layer and at the last.

Rows of a weight gradient are mixtures ∇W = Gᵀ S of the B samples S (inputs or features). Linear filters commute with the
mixing, so components may be sought in **differences of neighboring entries**: those of two photos, or of two feature
maps, are sparse and hardly correlated, while the values themselves share brightness and channel means. Sparse and
uncorrelated is what independent component analysis asks for. What it finds lacks order, sign and scale; see `scaled`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from unsum.errors import UnsumError

DOMAINS = ("differences", "values")
_SETTLED = 1e-7
_GAUSSIAN = 0.3745672  # E[log cosh ν] of a standard normal ν


def filtered(rows: Tensor, domain: str, picture: tuple[int, ...] = ()) -> Tensor:
    """The rows in which components are sought: differences (in both directions where rows are pictures), or centered values."""
    if domain not in DOMAINS:
        raise UnsumError(f"Components are sought in differences or in values, not in {domain!r}.")
    if domain == "values":
        return rows - rows.mean(1, keepdim=True)
    if len(picture) == 3:
        pictures = rows.view(-1, *picture)
        return torch.cat([pictures.diff(dim=axis).flatten(1) for axis in (-1, -2)], 1)
    return rows.diff(dim=1)


def whitening(rows: Tensor, B: int) -> Tensor:
    """(B, R) so that whitening @ rows has B uncorrelated rows of unit power, through the small Gram matrix, in float64."""
    gram = rows.double() @ rows.T.double() / rows.shape[1]
    values, vectors = torch.linalg.eigh(gram)
    if not float(values[-B]) > 1e-14 * float(values[-1]):
        raise UnsumError(f"The gradient is not a mixture of {B} different samples; give a smaller batch size.")
    whitening: Tensor = (vectors[:, -B:] / values[-B:].sqrt()).T
    return whitening


def fixed_point(Z: Tensor, generator: torch.Generator, iterations: int = 200) -> Tensor:
    """(B, B) unmixing with orthonormal rows by FastICA's symmetric iteration with g = tanh, the slope of log cosh.

    v ← E[z g(vᵀz)] − E[g′(vᵀz)] v for all rows at once, then the nearest orthogonal matrix. A few tens of products replace the
    thousands of gradient steps that were published; the stationary points are those of the same contrast.
    """
    V: Tensor = torch.linalg.qr(torch.randn(len(Z), len(Z), generator=generator))[0].to(Z)
    for _ in range(iterations):
        slope = (V @ Z).tanh_()
        moved = slope @ Z.T / Z.shape[1] - (1 - slope.square().mean(1, keepdim=True)) * V
        left, _, right = torch.linalg.svd(moved)
        turned = left @ right
        change = float((1 - (turned * V).sum(1).abs()).max())
        V = turned
        if change < _SETTLED:
            break
    return V


def negentropy(s: Tensor) -> Tensor:
    """(B,) (E[log cosh s] − E[log cosh ν])² of rows of zero mean and unit power, ν standard normal: 0 for a Gaussian row.

    >>> negentropy(torch.tensor([[-1.0, 1.0]])).round(decimals=5)  # a coin: (log cosh 1 − 0.37457)²
    tensor([0.0035])
    """
    size = s.abs()
    log_cosh = size + torch.log1p(torch.exp(-2 * size)) - math.log(2)
    return (log_cosh.mean(-1) - _GAUSSIAN).square()


def alike(unit: Tensor, temperature: float) -> Tensor:
    """mean_{i≠j} (e^{T |cos(v_i, v_j)|} − 1): no guest twice."""
    if len(unit) == 1:
        return unit.sum() * 0
    cosines = (unit @ unit.T).abs().fill_diagonal_(0)
    return torch.expm1(temperature * cosines).sum() / (len(unit) * (len(unit) - 1))


def weaker_sign(x: Tensor) -> Tensor:
    """The mean over rows of the weaker sign's share: pictures and ReLU's features are non-negative."""
    return torch.minimum(x.clamp_min(0).mean(1), (-x).clamp_min(0).mean(1)).mean()


def upright(x: Tensor) -> Tensor:
    """Every row with its prevailing sign."""
    return x * torch.where(x.sum(1, keepdim=True) < 0, -1.0, 1.0)


def scaled(x: Tensor, grad_W: Tensor, grad_b: Tensor) -> tuple[Tensor, Tensor]:
    """Components with the scale that the bias fixes, and the mixing Gᵀ (R, B) that goes with them, in float64.

    With S = diag(s) X the gradient is ∇W = Q X, Q = Gᵀ diag(s), and Q follows from X by least squares. Every sample's bias input
    is one, so ∇b = Gᵀ 1 = Q (1/s): a linear system in the B numbers 1/s, solved by its R ≥ B rows. Sign included.
    """
    X = x.double()
    Q = torch.linalg.lstsq(X.T, grad_W.double().T).solution.T
    inverse = torch.linalg.lstsq(Q, grad_b.double().unsqueeze(1)).solution.squeeze(1)
    # A component that the bias hardly feels gets no scale from it: the others' typical one is the better guess.
    typical = inverse.abs().median().clamp_min(1e-300)
    inverse = torch.where(inverse.abs() < 1e-3 * typical, typical, inverse)
    return X / inverse.unsqueeze(1), Q * inverse


def descend(
    V: Tensor,
    Z: Tensor,
    uncentered: Tensor,
    *,
    iterations: int,
    learning_rate: float,
    contrast: float,
    decorrelation: float,
    temperature: float,
    sign: float,
    smooth: float = 0.0,
    sparse: float = 0.0,
    picture: tuple[int, ...] = (),
) -> Tensor:
    """Rows of unit length after so many steps of Adam on the published objective, negentropy first; see `unsum.peel.cocktail`."""
    V = V.clone().requires_grad_()
    optimizer = torch.optim.Adam([V], lr=learning_rate, foreach=True)
    with torch.enable_grad():
        for _ in range(iterations):
            optimizer.zero_grad()
            unit = nn.functional.normalize(V, dim=1)
            loss = -contrast * negentropy(unit @ Z).sum() + decorrelation * alike(unit, temperature)
            if sign or smooth or sparse:
                x = unit @ uncentered
                loss = loss + sign * weaker_sign(x) + sparse * x.abs().mean()
                if len(picture) == 3 and smooth:
                    pictures = x.view(-1, *picture)
                    variation = sum(pictures.diff(dim=axis).abs().mean() for axis in (-1, -2))
                    loss = loss + smooth * variation
            loss.backward()
            optimizer.step()
    return nn.functional.normalize(V.detach(), dim=1)
