"""How T follows a change of the residual: the part of JᵀJ that every doubt about an unknown of its own needs."""

from __future__ import annotations

import torch
from torch import Tensor

from unsum.equation.conjugate import NormalSystem
from unsum.equation.equation import Linearized
from unsum.equation.levenberg import can_be_dense


def followed(here: Linearized, pulled: Tensor, misfit: float) -> tuple[Tensor, Tensor] | None:
    """(n, …) JᵀD itself and (JᵀJ + prior)⁻¹ JᵀD for n columns; None where the matrix is too large and does not converge.

    The prior is that features are not larger than they came out: a direction nothing determines moves by 100 %.
    """
    R = here.at.T.shape[1]
    size = here.at.T.norm(dim=1).clamp_min(1e-300)
    prior = torch.cat([size.pow(-2).repeat_interleave(R), size.new_ones(2)]) * misfit**2
    if can_be_dense(here.at.T, len(here.equation.b)):
        N = here.normal_matrix + torch.diag(prior)
        scale = N.diagonal().rsqrt()
        solved: Tensor = torch.linalg.solve(scale[:, None] * N * scale, scale[:, None] * pulled.T)
        return pulled, (scale[:, None] * solved).T
    system = NormalSystem.of(here, prior, 1e-9)
    moves = []
    for row in pulled:
        x, converged = system.solve(row, tolerance=1e-4, iterations=1000)
        if not converged:
            return None
        moves.append(x)
    return pulled, torch.stack(moves)
