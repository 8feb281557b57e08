"""Fully connected layers, peeled from the head downwards for the whole batch at once: every
sample's input, and how sure that is.

The separator gives every sample's features x_{L−1} and δ_L = s (P − Y)/B, s the gradient's scale.
Layer after layer

    δ_l = (δ_{l+1} W_{l+1}) ∘ a′_l(z_l),      x_{l−1} = lstsq(δ_lᵀ, ∇W_l)

until x_0, the model's input.

For z = W x + b with δ = ∂loss/∂z (B×n, one row per sample) the server holds ∇W = δᵀ X (n×D) and ∇b
= δᵀ 1. Once δ is known,

    X = lstsq(δᵀ, ∇W)      exact while rank δ = B,

and every column of ∇W is one regression with n equations for B unknowns, all of the same design δᵀ.
So its textbook standard error holds: the residual R = ∇W − δᵀ X estimates the noise (rounding, a
defense, an error of δ itself), and sample i is off by about

    ‖row i of pinv(δᵀ)‖ · ‖R‖ / √(n′ − B),      n′ = units that are active for any sample.

That is what noise does. A residual beyond the gradient's own rounding is no noise but a wrong δ
somewhere (one ReLU taken for on, say), which may point anywhere; the worst case is then without the
root.

δ comes from the layer above, δ = (δ₊ W₊) ∘ a′(z), where y = a(z) is known but a′ may not be: ReLU
near 0 within y's error, GELU and SiLU wherever y < 0. Decide with what is certain: ∇W = U A has the
column space of δᵀ, so every sample's row of δ is a combination of the columns of U. The certain
units determine that combination; it predicts the others, and the nearer candidate is taken.

Errors are followed by simulation: a few copies of the answer, disturbed by as much as the
separator's certificate allows, go the same way down; each layer adds the standard error of its own
regression. How far the copies scatter is the predicted error. What must be scattered at a layer
lives in the B-dimensional row space of ∇W_l, so that the copies cost next to nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.engine.replay import rounding
from unsum.head import orthonormal_rows
from unsum.leak import Leak
from unsum.network.chain import Step
from unsum.network.products import left_product, residual_norm
from unsum.notes import Code, Note
from unsum.peel.method import PeeledLayer

_CUT = 20.0  # predicted errors of y within which a ReLU's state is left open
_RARE = 0.01  # expected number of misjudged units below which the threshold alone may decide
# A prediction nearer than this share of the candidates' distance decides; beyond it the choice is
# ambiguous.
_CLEAR = 0.2
SMALL = 1 << 20  # entries up to which a second pass over ∇W, or its singular values, cost nothing
SPARE = 4  # equations left over without which a residual proves nothing
DRAWS = 4  # disturbed copies, whose scatter predicts the error
SAFETY = 3.0  # scatter of a few random draws against errors that may favor the worst direction


@dataclass(frozen=True)
class DenseSolution:
    """X (B, D), its predicted relative error per sample, and the figures behind that prediction."""

    X: Tensor
    errors: Tensor  # (B,)
    residual: float  # ‖∇W − δᵀX‖ / ‖∇W‖
    rank: int  # numerical rank of δ


def solve_dense(step: Step, delta: Tensor) -> DenseSolution:
    """X = lstsq(δᵀ, ∇W) in float64 through a QR factorization of δᵀ; one pass over ∇W."""
    B, n = delta.shape
    Q, R = torch.linalg.qr(delta.T)
    singular_values = torch.linalg.svdvals(R)
    rank = (
        int((singular_values > 1e-12 * max(n, B) * singular_values[0]).sum())
        if float(delta.abs().max()) > 0
        else 0
    )
    inverse = torch.linalg.pinv(R) if rank < B else torch.linalg.inv(R)
    mixed, squares = left_product(Q.T, step.grad_W)
    X: Tensor = inverse @ mixed
    if step.grad_W.numel() <= SMALL or step.grad_W.dtype == torch.float64:
        missing = residual_norm(step.grad_W, delta, X)
    else:  # Pythagoras' difference of squares saves a pass and still resolves 1e-8 of ‖∇W‖
        missing = float(max(squares - float(mixed.square().sum()), 0.0) ** 0.5)
    residual = missing / max(squares**0.5, 1e-300)
    errors = standard_errors(inverse, X, missing, residual, delta, step.grad_W.dtype)
    if rank < B:
        errors = torch.full_like(errors, torch.inf)
    return DenseSolution(X, errors, residual, rank)


def standard_errors(
    inverse: Tensor, X: Tensor, missing: float, residual: float, delta: Tensor, dtype: torch.dtype
) -> Tensor:
    """(B,) relative errors of X = inverse·(…), from the absolute and the relative residual.

    Infinite where no equations are to spare: a perfect fit proves nothing then.
    """
    spare = int((delta.abs().amax(0) > 0).sum()) - len(delta)
    averaged = 1.0 if residual > rounding(dtype) else max(spare, 1) ** 0.5
    errors: Tensor = inverse.norm(dim=1) * missing / averaged / X.norm(dim=1).clamp_min(1e-300)
    return errors + torch.finfo(dtype).eps if spare >= SPARE else torch.full_like(errors, torch.inf)


def resolve_slopes(
    y: Tensor, errors: Tensor, above: Tensor, step: Step
) -> tuple[Tensor, Note | None]:
    """a′(z) (B, n) from y = a(z) known to relative `errors` (B,) and `above` = δ₊ W₊.

    With a remark where some stay ambiguous.
    """
    activation = step.activation
    if activation.family == "one-to-one":
        return activation.slope(activation.branches(y)[0]), None
    scale, cut = open_range(y, errors)
    certain = y > cut
    if activation.family == "relu":
        if float((cut / scale).sum()) * y.shape[1] < _RARE:
            return certain.to(y), None
        candidates = torch.zeros_like(y), torch.ones_like(y)
    else:
        right, left = activation.branches(y)
        candidates = activation.slope(left), activation.slope(right)
    slopes, doubtful = decide(column_space(step.grad_W, len(y)), above, candidates, certain)
    if not bool(doubtful.any()):
        return slopes, None
    open_slopes = f"{int(doubtful.sum())} of {doubtful.numel()} slopes of the activation"
    return slopes, Note(
        f"{open_slopes} after {step.name!r} stay ambiguous at this precision.", Code.OPEN_SLOPES
    )


def open_range(y: Tensor, errors: Tensor) -> tuple[Tensor, Tensor]:
    """(B, 1) each: the size of y's entries, and how near to 0 one must be for its sign to be
    open."""
    scale = y.square().mean(1, keepdim=True).sqrt().clamp_min(1e-300)
    return scale, (_CUT * errors[:, None]).clamp(1e-12, 1.0) * scale


def decide(
    U: Tensor, above: Tensor, candidates: tuple[Tensor, Tensor], certain: Tensor
) -> tuple[Tensor, Tensor]:
    """Slopes (B, n): the second candidate where `certain`, else what the columns U (n, B) agree
    with; and where neither."""
    first, second = candidates
    slopes, weight = second, certain.to(above)
    doubtful = torch.zeros_like(certain)
    low, high = above * first, above * second
    gap = (high - low).abs()
    for _ in range(2):  # the second time with every entry that the first has decided
        normal = torch.einsum("ik,kab->iab", weight, U[:, :, None] * U[:, None, :])
        right = (weight * above * slopes) @ U
        combination = torch.linalg.pinv(normal, rtol=1e-13, hermitian=True) @ right[:, :, None]
        predicted = combination[:, :, 0] @ U.T
        to_first, to_second = (predicted - low).abs(), (predicted - high).abs()
        slopes = torch.where(~certain & (to_first < to_second), first, second)
        doubtful = (
            ~certain
            & (gap > 1e-9 * above.abs().amax())
            & (torch.minimum(to_first, to_second) > _CLEAR * gap)
        )
        weight = (~doubtful).to(above)
    return slopes, doubtful


def column_space(grad_W: Tensor, rank: int) -> Tensor:
    """(n, rank) an orthonormal basis of the leading column space, by a randomized range finder with
    one power step."""
    generator = torch.Generator(device=grad_W.device).manual_seed(0)
    n, D = grad_W.shape
    width = min(rank + 8, n, D)
    probe = torch.randn(D, width, dtype=grad_W.dtype, device=grad_W.device, generator=generator)
    wide = torch.linalg.qr((grad_W @ probe).double())[0]
    small, _ = left_product(wide.T, grad_W)
    left = torch.linalg.svd(small @ small.T)[0][:, :rank]
    return wide @ left


@dataclass(frozen=True)
class Front:
    """How far peeling has come: the deepest known x with what is needed to go on.

    `delta` is ∂loss/∂z of the layer above x; `copies` and `copy_deltas` (DRAWS, B, …) are the
    disturbed answers.
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
    error = min(leak.estimate, 1.0) if leak.estimate == leak.estimate else 1.0
    error = max(error, torch.finfo(leak.features.dtype).eps)
    generator = torch.Generator().manual_seed(seed)
    basis = orthonormal_rows(F)
    noise = torch.randn(DRAWS, len(F), len(basis), generator=generator, dtype=torch.float64).to(F)
    noise = error * noise / len(basis) ** 0.5 * F.norm(dim=1)[:, None]
    copies = F + noise @ basis
    copy_logits = copies @ head.W.double().T + (0.0 if head.b is None else head.b.double())
    factor, Y = head_factor(leak, reduction), leak.targets.to(F)
    delta, copy_deltas = (
        factor * (logits.softmax(-1) - Y) for logits in (leak.logits.to(F), copy_logits)
    )
    return Front(F, delta, torch.full_like(F[:, 0], error), copies, copy_deltas)


def peel_dense(
    front: Front, above: Step, step: Step, seed: int
) -> tuple[Front, PeeledLayer, list[str]]:
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
    notes: list[str] = [] if remark is None else [remark]
    if deficiency:
        notes.append(
            f"The layer {step.name!r} does not determine its input: {B} samples leave only "
            f"{solution.rank} independent gradients there, {deficiency} too few; the answer of "
            "smallest norm is returned."
        )
    layer = PeeledLayer(
        step.name,
        float(errors.max()),
        solution.residual,
        B * step.grad_W.shape[1],
        step.grad_W.numel(),
        deficiency,
    )
    return Front(solution.X, delta, errors, copies, copy_deltas), layer, notes


def _follow(
    delta: Tensor, X: Tensor, own_errors: Tensor, copy_deltas: Tensor, seed: int
) -> tuple[Tensor, Tensor]:
    """The disturbed copies' X (DRAWS, B, D), and how far they scatter from X, relative to its rows
    (B,).

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
