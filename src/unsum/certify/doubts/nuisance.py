"""What else may have been different at the client: weights of samples, the gradient's scale, a
temperature, the size of targets.

Each is one more unknown θ. To first order it changes the residual by a column D, and T follows as
well as it can: what T cannot follow is all that shows. Where that drowns in the noise, θ may have
been anything, and features would be others. And where θ explains what the answer leaves of the
gradient, features are off by what follows it, however little noise there is. Unequal weights stand
for many things: copies of a sample, uneven micro-batches, averages of several clients, class
weights, focal losses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from unsum.certify.further import FurtherUnknown, target_size, temperature
from unsum.certify.question import Question
from unsum.certify.scatter import followed
from unsum.losses import CrossEntropy

# relative error of features that θ may add: three deviations of it are no false claim
TRUSTED = 3e-3
NOTHING = 1e-6  # of the noise: a column that is shorter changes nothing, and nothing follows it
RESOLVED = 1e-12  # of a column's square that T must leave over, for float64 to tell it from nothing


def doubt_nuisance(question: Question) -> list[str]:
    """The doubt that something which was taken for granted was different, and nothing shows it."""
    candidate, here, doubts = question.candidate, question.here, []
    scale = here.alpha_derivative() if candidate.equation.alpha_free else here.residual[None][:0]

    def changes_features(unknown: FurtherUnknown, change: Tensor) -> bool:
        columns = partial(torch.cat, [here.sent(change)[None], scale])
        return _changes_features(question, unknown, columns)

    if not candidate.read_off and _changes_features(question, None, partial(_weights, question)):
        doubts.append(
            "Samples are taken to weigh the same, and the gradient to be as it was computed, and "
            "nothing tells: with other weights or another scale features would be others."
        )
    # Who declares the loss says that it had no temperature.
    if question.knowledge.loss is None and changes_features(
        FurtherUnknown.TEMPERATURE, temperature(here)
    ):
        doubts.append(
            "A temperature of the softmax would send the same gradient with features of another "
            "length, and nothing tells; declare the loss (loss='cross-entropy') if it had none."
        )
    if not candidate.read_off and _smoothing_open(question):
        doubts.append(
            "Smoothed labels at another scale would send the same gradient, and nothing tells."
        )
    # A declared squared error has targets of 1; but where the scale came out as another, it may be
    # theirs.
    sized = question.observation.loss.name == "mse" and candidate.equation.alpha_free
    if sized and changes_features(FurtherUnknown.TARGET_SIZE, target_size(here)):
        doubts.append(
            "Targets of another size than 1 would send the same gradient with features of another "
            "length."
        )
    return doubts


def _changes_features(
    question: Question, unknown: FurtherUnknown | None, columns: Callable[[], Tensor]
) -> bool:
    """Whether an unknown, or the weights for None, may change features by more than is trusted.

    The bound decides where it can; else the normal equations do, for `columns` (n, …) of the
    residual.
    """
    return (
        question.errors_at_most(unknown) > TRUSTED and _added_error(question, columns()) > TRUSTED
    )


def _weights(question: Question) -> Tensor:
    """(B, …) what the residual changes by per unit of each sample's log weight; their sum is the
    gradient's own scale.

    Of several heads below each other each has weights of its own, and so a scale.
    """
    here, n = question.here, question.observation.loss.heads
    change = here.sent_each(here.G)
    own = torch.eye(n, dtype=change.dtype, device=change.device).repeat_interleave(
        change.shape[1] // n, dim=1
    )
    return (own[:, None, :, None] * change).flatten(0, 1)


def _smoothing_open(question: Question) -> bool:
    """Whether hard labels, at a scale that only the gradient tells, may have been smoothed ones at
    another."""
    here, equation, beside = question.here, question.candidate.equation, question.information.beside
    if (
        question.knowledge.labels is not None
        or equation.floor_free
        or not equation.alpha_free
        or equation.Y is None
    ):
        return False
    if not isinstance(question.observation.loss, CrossEntropy):
        return False

    def hidden(seen: Tensor) -> bool:
        needed = question.misfit * question.observation.classes / TRUSTED
        return needed > math.sqrt(max(float(seen), 1e-300))

    if not hidden(beside[FurtherUnknown.FLOOR].max()):
        return False
    D = here.floor_derivative()[None]
    solved = followed(here, here.pull(D), question.misfit)
    return solved is None or hidden(D.square().sum() - (solved[0] * solved[1]).sum())


def _added_error(question: Question, D: Tensor) -> float:
    """The largest relative error of a sample's features that the unknowns behind the columns D
    leave open."""
    here, misfit = question.here, question.misfit
    D = D[D.flatten(1).norm(dim=1) > NOTHING]
    if len(D) == 0:
        return 0.0
    norms = D.flatten(1).norm(dim=1)
    unit = D / norms.view(-1, *[1] * (D.ndim - 1))
    solved = followed(here, here.pull(unit), misfit)
    if solved is None:
        return torch.inf
    flat = unit.flatten(1)
    along = flat @ here.residual.flatten() - solved[1] @ here.gradient
    return left_open(flat, norms, *solved, along, misfit, here.at.T)


def left_open(
    unit: Tensor,
    norms: Tensor,
    pulled: Tensor,
    moves: Tensor,
    along: Tensor,
    misfit: float,
    T: Tensor,
) -> float:
    """The largest relative error of a row of T, for n columns of unit length and the lengths that
    they had.

    `pulled` (n, …) are JᵀD and `moves` (n, …) how T, in the first entries, and other unknowns
    follow. `along` (n,) is what the answer leaves of the gradient in the direction of each column,
    less what T follows. The error is one deviation of the unknowns, or what their own values would
    move T by.
    """
    seen = unit @ unit.T - pulled @ moves.T
    values, vectors = torch.linalg.eigh(0.5 * (seen + seen.T))
    values = torch.where(values > RESOLVED, values, torch.zeros_like(values))
    # No unknown is larger than 1 in logarithms: a column that nothing tells moves by as much, and
    # takes T along.
    prior = vectors.T @ torch.diag(norms.pow(-2)) @ vectors
    inverse = torch.linalg.inv(torch.diag(values) + misfit**2 * prior)
    B, R = T.shape
    steps = (vectors.T @ moves)[:, : B * R].view(-1, B, R)
    variance = torch.einsum("kij,kl,lij->i", steps, misfit**2 * inverse, steps)
    shift = torch.einsum("kij,k->ij", steps, inverse @ vectors.T @ along)
    errors = torch.maximum(variance.clamp_min(0).sqrt(), shift.norm(dim=1)) / T.norm(
        dim=1
    ).clamp_min(1e-300)
    return float(errors.nan_to_num(nan=torch.inf).max())
