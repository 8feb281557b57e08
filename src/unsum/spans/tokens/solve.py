"""One picture, by linear algebra alone: two ways that share no tensor but the patch layer's.

**By positions.** ∇E = Dᵀ X, with the N patches X (N, n) and D = ∂loss/∂u (N, d). A trained position
embedding is added to u, so its gradient is D itself, and X is one least-squares solve while N ≤ d
(Lu et al., APRIL, CVPR 2022).

**By spans.** Without it: patches lie in the row space Â of ∇E, x_p = Âᵀ t_p, and normed tokens in
the row space V of the first attention's gradients. LayerNorm divides by a length, which a span does
not see, so the condition is linear:

    P⊥ (γ · centered(E Âᵀ t_p + e + offset_p) + s β) = 0

for every position p; the length s is unknown where β is not 0.

A second norm on the way adds one more unknown length. Where the patch layer is frozen, Â is all of
the pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unsum.errors import UnsumError
from unsum.spans.tokens.network import FirstNorms, PatchNetwork
from unsum.update import Update

_HEARD = 1e-12  # of a matrix's largest singular value: less is no direction of float64
_SAME = 1e-5  # of the longest position: two that are nearer are one to float32
_ROUNDED = (
    # times float32's rounding of a whole matrix, spread over its directions: what is no direction
    # of the samples
    4.0
)


@dataclass(frozen=True)
class Solved:
    """Patches X (B, N, n), the relative error that the solve predicts for all of them, and the
    tensors that were used.

    `spread` (B, N) is how far each patch's numbers are off by what its place shows; None where no
    place was looked for.
    """

    X: Tensor
    error: float
    used: tuple[str, ...]
    way: str
    spread: Tensor | None = None
    missing: int = 0  # patches that were not found, and are their picture's mean so far


def by_positions(network: PatchNetwork, update: Update, device: torch.device) -> Solved | None:
    """None where a gradient is missing or N > d."""
    name, weight = network.positions, f"{network.name}.weight"
    if (
        name is None
        or name not in update.gradients
        or weight not in update.gradients
        or network.count > network.width
    ):
        return None
    D = (
        update.gradients[name]
        .to(device)
        .double()
        .reshape(-1, network.width)[network.rows.to(device)]
    )
    gradient = update.gradients[weight].to(device).double().flatten(1)
    U, s, V = torch.linalg.svd(D, full_matrices=False)
    if not float(s[-1]) > _HEARD * float(s[0]):
        return None
    X = (U / s) @ (V @ gradient)
    rest = gradient - D.T @ X
    spare = max(network.width - network.count, 1) * gradient.shape[1]
    noise = rest.norm() / spare**0.5
    deviation = noise * ((1 / s).square().sum() * gradient.shape[1]).sqrt()
    return Solved(
        X[None], float(deviation / X.norm().clamp_min(1e-300)), (name, weight), "position embedding"
    )


def deviations(network: PatchNetwork, update: Update, delta: Tensor, X: Tensor) -> Tensor:
    """(B,) relative errors of pictures X (B, N, n) that rounding of ∇E = Dᵀ X allows, for δ (B, N,
    d): patches that send little, or the same as others do, are known least. Zero where ∇E was not
    sent, and infinite where it cannot tell them."""
    weight = f"{network.name}.weight"
    if weight not in update.gradients:
        return torch.zeros(len(X), dtype=torch.float64, device=X.device)
    D, gradient = delta.flatten(0, 1), update.gradients[weight].to(delta).flatten(1)
    U, s, _ = torch.linalg.svd(D, full_matrices=False)
    if len(D) > network.width or not float(s[-1]) > _HEARD * float(s[0]):
        return torch.full((len(X),), torch.inf, dtype=torch.float64, device=X.device)
    rest = gradient - D.T @ X.flatten(0, 1)
    noise = rest.norm() / rest.numel() ** 0.5
    by_patch = (U / s).square().sum(1).view(len(X), -1)
    return (
        noise * (by_patch.sum(1) * X.shape[2]).sqrt() / X.flatten(1).norm(dim=1).clamp_min(1e-300)
    )


def by_spans(network: PatchNetwork, update: Update, device: torch.device) -> Solved:
    """Refuses where a gradient is missing, or where there are too many tokens for the layers'
    width."""
    first, weight = network.first, f"{network.name}.weight"
    if first is None:
        raise UnsumError(
            "What lies between the patches and the first attention is not known here; use 'exact'."
        )
    if _alike(first.offset + first.after):
        raise UnsumError(
            "No position of its own is added to every patch, so the linear solve cannot tell which "
            "patch is where; 'exact' reads the class token."
        )
    sent = [name for name in first.readers if name in update.gradients]
    if not sent:
        raise UnsumError(
            "Neither the position embedding nor the first attention was trained, so no gradient "
            "tells the patches' places; 'exact' reads the class token."
        )
    V = row_space(
        torch.cat([update.gradients[name].to(device).double() for name in sent]), network.tokens
    )
    n = network.weight.shape[1]
    trained = weight in update.gradients
    if trained:
        basis = row_space(update.gradients[weight].to(device).double().flatten(1), network.count)
    else:
        basis = torch.eye(n, dtype=torch.float64, device=device)
    equations = network.width - 1 - len(V)
    if equations < len(basis):
        raise UnsumError(
            f"{len(basis)} unknowns for every patch stand against {equations} equations: "
            f"{network.width} channels less {len(V)} tokens; smaller batches or patches, or a "
            "trained position embedding, are read."
        )
    t, error = _tokenwise(network, first, V, basis)
    used = (*sent, weight) if trained else tuple(sent)
    return Solved((t @ basis)[None], error, used, "spans")


def _alike(offsets: Tensor) -> bool:
    """Whether two places have the same position."""
    apart = (
        torch.cdist(offsets.double(), offsets.double())
        + torch.eye(len(offsets)).to(offsets).double() * 1e9
    )
    return float(apart.min()) <= _SAME * float(offsets.norm(dim=1).max())


def row_space(matrix: Tensor, most: int) -> Tensor:
    """Orthonormal rows that span the matrix's, `most` of them at most, those above rounding."""
    _, s, V = torch.linalg.svd(matrix, full_matrices=False)
    level = _ROUNDED * torch.finfo(torch.float32).eps * float(s[0]) / max(matrix.shape) ** 0.5
    kept: Tensor = V[:most][s[:most] > level]
    return kept


def _tokenwise(
    network: PatchNetwork, first: FirstNorms, V: Tensor, basis: Tensor
) -> tuple[Tensor, float]:
    """((N, r) coordinates of every patch, predicted relative error): one factorization where no
    length is unknown."""

    def outside(rows: Tensor) -> Tensor:
        return rows - (rows @ V.T) @ V

    def normed(norm: nn.LayerNorm, rows: Tensor) -> Tensor:
        return (rows - rows.mean(-1, keepdim=True)) * norm.weight.detach().to(rows)

    def shift(norm: nn.LayerNorm) -> Tensor:
        return torch.zeros_like(V[0]) if norm.bias is None else norm.bias.detach().to(V)

    def passed(rows: Tensor) -> Tensor:
        return outside(
            normed(first.norm, rows if first.inner is None else normed(first.inner, rows))
        )

    E, offset, after = (part.to(V) for part in (network.weight, first.offset, first.after))
    e = torch.zeros_like(V[0]) if network.bias is None else network.bias.detach().to(V)
    M = passed(basis @ E.T)  # (r, d)
    fixed = passed(offset + e)  # (N, d)
    beta = outside(shift(first.norm)[None])
    columns = [M]
    if float(beta.norm()) > _HEARD * float(shift(first.norm).norm() + 1):
        columns.append(beta)
    shared = torch.cat(columns)
    if first.inner is None:
        solution = torch.linalg.lstsq(shared.T, -fixed.T).solution.T
        rest, values = fixed + solution @ shared, torch.linalg.svdvals(shared)
    else:
        own = outside(
            normed(first.norm, after + shift(first.inner))
        )  # what the inner length multiplies, token by token
        systems = torch.cat([shared.expand(len(own), -1, -1), own[:, None]], 1)
        found = torch.linalg.lstsq(systems.mT, -fixed[..., None]).solution
        solution = found[..., 0]
        rest, values = fixed + (systems.mT @ found)[..., 0], torch.linalg.svdvals(systems[0])
    spare = max(network.width - len(V) - solution.shape[1], 1) * len(fixed)
    noise = rest.norm() / spare**0.5
    t = solution[:, : len(basis)]
    deviation = noise * ((1 / values).square().sum() * len(fixed)).sqrt()
    return t, float(deviation / t.norm().clamp_min(1e-300))
