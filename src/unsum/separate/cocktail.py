"""Cocktail Party at the last layer: the head's gradient as a mixture of features, unmixed by
independent component analysis.

∇W = Gᵀ F: every class row mixes the B samples' features. Nothing but the batch size is used, no
label and no softmax: components of the row space are sought that are as far from Gaussian as ReLU's
sparse features are.

What is identifiable: F up to the order, sign and scale of its rows, since Gᵀ D⁻¹ · D F is the same
gradient for every diagonal D. Rows of G sum to zero for every D, so that says nothing; the bias
does: ∇b = Gᵀ 1 is linear in the scales and fixes all of them, sign included. Without a bias
gradient the features keep a guessed scale. The labels then follow from Y = softmax(F Wᵀ + b) − B G.
Samples of one label are no special case here, and soft labels neither; B ≤ C − 1. There is no
certificate: how independent features are is unknown.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from unsum.errors import UnsumError
from unsum.head import Factors, Head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.running.deadline import out_of_time
from unsum.separate.method import SEPARATORS, uncertified

_UNTRIED = "further steps of unmixing"
_ROUNDING = 1e-6  # of the largest singular value: what lies below is no sample
DOMAINS = ("differences", "values")
_SETTLED = 1e-7  # change of the unmixing at which it ends
_GAUSSIAN = 0.3745672  # E[log cosh ν] of a standard normal ν


@SEPARATORS.register(
    "cocktail",
    summary="the head's gradient unmixed by independent component analysis (Cocktail Party)",
    needs="the batch size, below the number of classes; a bias gradient for the scale",
)
def cocktail(
    head: Head,
    knowledge: Knowledge,
    *,
    seed: int,
    domain: str = "differences",
    iterations: int = 0,
    learning_rate: float = 1e-2,
    contrast: float = 100.0,
    decorrelation: float = 1.0,
    temperature: float = 5.0,
    sign: float = 0.0,
) -> Leak:
    """Features by the fixed point of the contrast; `iterations` adds steps of Adam on the published
    objective."""
    B = knowledge.known_batch_size
    if B is None:
        raise UnsumError(
            "The attack 'cocktail' needs the batch size; give batch_size=, or use 'exact', which "
            "finds it."
        )
    if min(head.classes - 1, head.W.shape[1]) < B:
        raise UnsumError(
            f"'cocktail' cannot unmix {B} samples from {head.classes} classes; it needs more "
            "classes than samples."
        )
    factors = head.factorize(rank=B)
    rank = int((factors.singular_values > _ROUNDING * factors.singular_values[0]).sum())
    if rank < B:
        raise UnsumError(
            f"The gradient is of {rank} different samples and not of {B}; give that batch size."
        )
    rows = filtered(factors.A, domain)
    M = whitening(rows, B)
    Z, uncentered = (M @ rows).float(), (M @ factors.A).float()
    V = fixed_point(Z, torch.Generator().manual_seed(seed))
    if iterations:
        V = descend(
            V, Z, uncentered, iterations=iterations, learning_rate=learning_rate, contrast=contrast,
            decorrelation=decorrelation, temperature=temperature, sign=sign,
        )  # fmt: skip
    features, G, notes = _with_scale(head, factors, V.double() @ M)
    weight = 1 if head.reduction == "sum" else B
    logits = features @ head.W.double().T + (0 if head.b is None else head.b.double())
    targets = (logits.softmax(1) - weight * G).clamp_min(0)
    targets = targets / targets.sum(1, keepdim=True).clamp_min(1e-30)
    return uncertified("cocktail", head, logits, targets, features, notes)


def _with_scale(head: Head, factors: Factors, T: Tensor) -> tuple[Tensor, Tensor, list[str]]:
    """Features (B, H) and G (B, C) from the components T A (B, H), with the scale that the bias
    fixes or a guess."""
    T = T * torch.where((T @ factors.A).sum(1, keepdim=True) < 0, -1.0, 1.0)
    notes = ["Independent component analysis carries no certificate."]
    Q = factors.U @ torch.linalg.inv(T)
    if head.grad_b is None:
        notes.append(
            "Without a bias gradient the scale of every sample's features is a guess, and its "
            "label with it."
        )
        size = (T @ factors.A).square().mean(1).sqrt()
        return upright(T @ factors.A / size[:, None]), (Q * size).T, notes
    T, G = scaled(T, factors.U, head.grad_b)
    negative = int(((T @ factors.A).sum(1) < 0).sum())
    if negative:
        notes.append(
            f"{negative} samples come out mostly negative, which features after ReLU are not: take "
            "them for wrong."
        )
    return T @ factors.A, G.T, notes


def filtered(rows: Tensor, domain: str, picture: tuple[int, ...] = ()) -> Tensor:
    """The rows in which components are sought: differences (in both directions where rows are
    pictures), or centered values.

    Linear filters commute with the mixing. Differences of neighboring entries of two photos, or of
    two feature maps, are sparse and hardly correlated, which is what the analysis asks for; the
    values themselves share brightness and channel means.
    """
    if domain not in DOMAINS:
        raise UnsumError(f"Components are sought in differences or in values, not in {domain!r}.")
    if domain == "values":
        return rows - rows.mean(1, keepdim=True)
    if len(picture) == 3:
        pictures = rows.view(-1, *picture)
        return torch.cat([pictures.diff(dim=axis).flatten(1) for axis in (-1, -2)], 1)
    return rows.diff(dim=1)


def whitening(rows: Tensor, B: int) -> Tensor:
    """(B, R) so that whitening @ rows has B uncorrelated rows of unit power, through the small Gram
    matrix, in float64."""
    gram = rows.double() @ rows.T.double() / rows.shape[1]
    values, vectors = torch.linalg.eigh(gram)
    if not float(values[-B]) > 1e-14 * float(values[-1]):
        raise UnsumError(
            f"The gradient is not a mixture of {B} different samples; give a smaller batch size."
        )
    return (vectors[:, -B:] / values[-B:].sqrt()).T


def fixed_point(Z: Tensor, generator: torch.Generator, iterations: int = 200) -> Tensor:
    """(B, B) unmixing with orthonormal rows by FastICA's symmetric iteration with g = tanh, the
    slope of log cosh.

    v ← E[z g(vᵀz)] − E[g′(vᵀz)] v for all rows at once, then the nearest orthogonal matrix. A few
    tens of products replace the thousands of gradient steps that were published; the stationary
    points are those of the same contrast.
    """
    V: Tensor = torch.linalg.qr(torch.randn(len(Z), len(Z), generator=generator))[0].to(Z)
    for _ in range(iterations):
        slope = (V @ Z).tanh_()
        moved = slope @ Z.T / Z.shape[1] - (1 - slope.square().mean(1, keepdim=True)) * V
        left, _, right = torch.linalg.svd(moved)
        turned = left @ right
        change = float((1 - (turned * V).sum(1).abs()).max())
        V = turned
        if change < _SETTLED or out_of_time(_UNTRIED):
            break
    return V


def negentropy(s: Tensor) -> Tensor:
    """(B,) (E[log cosh s] − E[log cosh ν])² of rows of zero mean and unit power, ν standard normal:
    0 for a Gaussian row.

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
    """The mean over rows of the weaker sign's share: pictures and ReLU's features are
    non-negative."""
    return torch.minimum(x.clamp_min(0).mean(1), (-x).clamp_min(0).mean(1)).mean()


def upright(x: Tensor) -> Tensor:
    """Every row with its prevailing sign."""
    return x * torch.where(x.sum(1, keepdim=True) < 0, -1.0, 1.0)


def scaled(x: Tensor, grad_W: Tensor, grad_b: Tensor) -> tuple[Tensor, Tensor]:
    """Components with the scale that the bias fixes, and the mixing Gᵀ (R, B) that goes with them,
    in float64.

    With S = diag(s) X the gradient is ∇W = Q X, Q = Gᵀ diag(s), and Q follows from X by least
    squares. Every sample's bias input is one, so ∇b = Gᵀ 1 = Q (1/s): a linear system in the B
    numbers 1/s, solved by its R ≥ B rows. Sign included.
    """
    X = x.double()
    Q = torch.linalg.lstsq(X.T, grad_W.double().T).solution.T
    inverse = torch.linalg.lstsq(Q, grad_b.double().unsqueeze(1)).solution.squeeze(1)
    # A component that the bias hardly feels gets no scale from it: the others' typical one is the
    # better guess.
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
    """Rows of unit length after so many steps of Adam on the published objective, negentropy first;
    see `unsum.peel.cocktail`."""
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
            if out_of_time(_UNTRIED):
                break
    return nn.functional.normalize(V.detach(), dim=1)
