"""Fully connected layers, peeled from the head downwards for the whole batch at once.

The separator gives every sample's features x_{L−1} and δ_L = s (P − Y)/B, s the gradient's scale. Layer after layer

    δ_l = (δ_{l+1} W_{l+1}) ∘ a′_l(z_l),      x_{l−1} = lstsq(δ_lᵀ, ∇W_l)      until x_0, the model's input.

Errors are followed by simulation: a few copies of the answer, disturbed by as much as the separator's certificate allows,
go the same way down; each layer adds the standard error of its own regression. How far the copies scatter is the predicted
error. What must be scattered at a layer lives in the B-dimensional row space of ∇W_l, so that the copies cost next to
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.head import orthonormal_rows
from unsum.leak import Leak
from unsum.peel.chain import Step
from unsum.peel.dense import resolve_slopes, solve_dense
from unsum.peel.method import PeeledLayer

DRAWS = 4  # disturbed copies, whose scatter predicts the error
SAFETY = 3.0  # scatter of a few random draws against errors that may favor the worst direction


@dataclass(frozen=True)
class Front:
    """How far peeling has come: the deepest known x with what is needed to go on.

    `delta` is ∂loss/∂z of the layer above x; `copies` and `copy_deltas` (DRAWS, B, …) are the disturbed answers.
    """

    x: Tensor  # (B, n)
    delta: Tensor  # (B, m)
    errors: Tensor  # (B,) predicted, relative
    copies: Tensor
    copy_deltas: Tensor


def head_factor(leak: Leak, reduction: str) -> float:
    """s/B for a mean over the batch, s for a sum."""
    return leak.scale / (leak.batch_size if reduction == "mean" else 1)


def front_at_head(leak: Leak, head: Step, reduction: str, seed: int) -> Front:
    """Features and δ of the head, with copies disturbed by the separator's predicted error."""
    F = leak.features.to(head.W.device, torch.float64)
    error = min(leak.predicted_error, 1.0) if leak.predicted_error == leak.predicted_error else 1.0
    error = max(error, torch.finfo(leak.features.dtype).eps)
    generator = torch.Generator().manual_seed(seed)
    basis = orthonormal_rows(F)
    noise = torch.randn(DRAWS, len(F), len(basis), generator=generator, dtype=torch.float64).to(F)
    noise = error * noise / len(basis) ** 0.5 * F.norm(dim=1)[:, None]
    copies = F + noise @ basis
    copy_logits = copies @ head.W.double().T + (0.0 if head.b is None else head.b.double())
    factor, Y = head_factor(leak, reduction), leak.targets.to(F)
    delta, copy_deltas = (factor * (logits.softmax(-1) - Y) for logits in (leak.logits.to(F), copy_logits))
    return Front(F, delta, torch.full_like(F[:, 0], error), copies, copy_deltas)


def peel_dense(front: Front, above: Step, step: Step, seed: int) -> tuple[Front, PeeledLayer, list[str]]:
    """One layer further down: `front.x` is what `step` puts out and `above` takes in."""
    B = len(front.x)
    W = above.W.double()
    passed, copies_passed = front.delta @ W, front.copy_deltas @ W
    slopes, remark = resolve_slopes(front.x, front.errors, passed, step)
    if step.activation.family == "one-to-one":
        copy_slopes = step.activation.slope(step.activation.branches(front.copies)[0])
    else:
        copy_slopes = slopes
    delta, copy_deltas = passed * slopes, copies_passed * copy_slopes
    solution = solve_dense(step, delta)
    copies, scatter = _follow(delta, solution.X, solution.errors, copy_deltas, seed)
    errors = SAFETY * (scatter.square() + solution.errors.square()).sqrt()
    deficiency = B - solution.rank
    notes = [] if remark is None else [remark]
    if deficiency:
        notes.append(
            f"The layer {step.name!r} does not determine its input: {B} samples leave only {solution.rank} independent "
            f"gradients there, {deficiency} too few; the answer of smallest norm is returned."
        )
    layer = PeeledLayer(
        step.name, float(errors.max()), solution.residual, B * step.grad_W.shape[1], step.grad_W.numel(), deficiency
    )
    return Front(solution.X, delta, errors, copies, copy_deltas), layer, notes


def _follow(delta: Tensor, X: Tensor, own_errors: Tensor, copy_deltas: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """The disturbed copies' X (DRAWS, B, D), and how far they scatter from X, relative to its rows (B,).

    A copy solves δ_cᵀ X_c = ∇W; ∇W is δᵀ X but for the noise, which `own_errors` accounts for.
    """
    A = orthonormal_rows(X)
    T = X @ A.T
    found = torch.linalg.pinv(copy_deltas.mT, rtol=1e-14) @ (delta.T @ T)
    sizes = T.norm(dim=1, keepdim=True).clamp_min(1e-300)
    scatter = ((found - T) / sizes).square().sum(-1).mean(0).sqrt().nan_to_num(torch.inf, torch.inf)
    generator = torch.Generator().manual_seed(seed + 1)
    noise = torch.randn(found.shape, generator=generator, dtype=torch.float64).to(T) / len(A) ** 0.5
    found = found + noise * (own_errors.clamp_max(1.0)[:, None] * sizes)
    return found.nan_to_num(0.0) @ A, scatter
