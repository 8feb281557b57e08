"""Features that are zero, read as equations: after a ReLU most entries of F = T A are exactly 0.

A row t of T is a direction in which t A is sparse, and among all directions only the batch's own
samples are: complete dictionary learning, which looks neither at the head's weights nor at labels.
It reaches the last direction of the gradient (B = C − 1), where no start of the softmax equation
leads anywhere; that equation then says how long each t is and what its label was, and checks it,
since the search did not use it: row i of (U T⁻¹)ᵀ is α s (p − y) for the unit direction t and its
length s, which `fit_lengths` reads off.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unsum.certify.candidate import Candidate
from unsum.certify.scatter import Certificate, certify
from unsum.equation.equation import Linearized, Unknowns, positive_factor
from unsum.equation.observation import Observation
from unsum.running.deadline import out_of_time

_SHRINKAGE = 1.0  # of t A in units of its root mean square: what is smaller does not pull
# steps from a start, and the cosine of a direction with what three more make of it
_STEPS, _SETTLED = 18, 0.999
_WAVES = 12  # of twice as many starts as directions are sought
_TRIES = 4  # directions that may fail before the first succeeds
_SAME = 0.98  # cosine from which two directions are one sample
_COLUMNS = 20_000  # looked at to find directions
_FEWER, _COLUMNS_PER_ROW = 1_000, 16  # to sharpen one, whichever is more
# sizes below which an entry counts as zero
_SHARPENED = [0.1, 0.03, 0.01, 3e-3, 1e-3, 2e-4, 7e-5, 2e-5, 7e-6, 2e-6]
_MORE = 10  # further steps of the last size while the direction still turns
_ZERO = 1e-3  # of the largest entry, after sharpening
# a target below counts as 0, one this near to 1 as 1: in between it is part of a mixture
_NOTHING = 1e-3
_PLAIN = 1e-4  # relative distance within which a scale is taken for its natural value
# of α, one for each sample, below which their scatter says little about how well lengths are known
_READINGS = 4


@dataclass(frozen=True)
class SparseDirections:
    """Unit rows of T, and by how much unit noise on every entry of t A turns each."""

    t: Tensor  # (R, R)
    turn: Tensor  # (R,)


def seconds_of_wave(A: Tensor) -> float:
    """Estimated: two products per step from twice as many starts as directions, at some 1e10
    operations a second."""
    R, H = A.shape
    return 2 * R * _STEPS * 2 * 2.0 * R * min(H, _COLUMNS) / 1e10


def find_sparse_directions(A: Tensor, generator: torch.Generator) -> SparseDirections | None:
    """All R directions in which the orthonormal rows of A combine to something sparse and positive,
    or None."""
    R, H = A.shape
    if 4 * R > H:
        return None
    A = A * H**0.5  # rows of mean square one
    found: list[tuple[Tensor, Tensor]] = []
    failed = 0
    for direction in _rough_directions(A, generator, found):
        if out_of_time("samples by the zeros of their features"):
            return None
        sharp = sharpen(direction, _some_columns(A, max(_FEWER, _COLUMNS_PER_ROW * R), generator))
        if sharp is not None and not any(float(sharp[0] @ t) > _SAME for t, _ in found):
            found.append(sharp)
        failed += sharp is None
        if len(found) == R:
            return SparseDirections(
                torch.stack([t for t, _ in found]), torch.stack([turn for _, turn in found])
            )
        if not found and failed == _TRIES:
            return None
    return None


def _rough_directions(
    A: Tensor, generator: torch.Generator, found: list[tuple[Tensor, Tensor]]
) -> Iterator[Tensor]:
    """Unit vectors t for which t A is sparse, to a few percent: t ← Σ_j a_j (t·a_j − 1)₊ from many
    columns a_j at once.

    That is ICA with the shrinkage as its nonlinearity. Later waves start from what is orthogonal to
    the directions found so far: the missing ones stand out there.
    """
    R = len(A)
    columns = _some_columns(A, _COLUMNS, generator).float()
    for _ in range(_WAVES):
        starts = _some_columns(columns, 2 * R, generator).T
        if found:
            basis = torch.linalg.qr(torch.stack([t for t, _ in found], dim=1)).Q.float()
            starts = starts - (starts @ basis) @ basis.T
        t = _settle(columns, starts, _STEPS)
        further = _settle(columns, t, 3)
        # When few are missing, a pull towards the others may be stronger: what is orthogonal to
        # those is tried as it is.
        unsettled = torch.nn.functional.normalize(starts[:_TRIES], dim=1) if found else starts[:0]
        seen = columns.new_zeros(0, R)
        for direction in torch.cat([further[(t * further).sum(1) > _SETTLED], unsettled]):
            if not bool((seen @ direction > _SAME).any()):
                seen = torch.cat([seen, direction[None]])
                if not any(float(direction.double() @ t) > _SAME for t, _ in found):
                    yield direction.double()


def _settle(A: Tensor, t: Tensor, steps: int) -> Tensor:
    t = torch.nn.functional.normalize(t, dim=1)
    for _ in range(steps):
        along = t @ A
        along *= along.pow(3).mean(1, keepdim=True).sign()  # the long tail is the features' side
        t = torch.nn.functional.normalize((along - _SHRINKAGE).clamp_(min=0) @ A.T, dim=1)
    return t


def sharpen(t: Tensor, A: Tensor) -> tuple[Tensor, Tensor] | None:
    """The direction (R,) with its small entries driven to zero, and how far unit noise on the
    entries turns it.

    Least squares, reweighted towards the sparsest answer. None if that does not become sparse and
    positive: any R − 1 entries can be made zero, a sample has far more.
    """
    R = len(A)
    for size in [*_SHARPENED, *[_SHARPENED[-1]] * _MORE]:
        along, before = _relative(t, A), t
        weight = 1 / (along.abs() + size) if size > 1e-3 else 1 / (along.square() + size**2)
        t = torch.linalg.solve((A * weight) @ A.T, t)
        t = t / t.norm()
        if size == _SHARPENED[-1] and float((t - before).norm()) < size:
            break
    along = _relative(t, A)
    zero = along.abs() < _ZERO
    if int(zero.sum()) <= 2 * R or float(along.min()) < -_ZERO:
        return None
    normal = A[:, zero] @ A[:, zero].T
    # but for t's own length
    return t, torch.linalg.eigvalsh(normal)[1:].clamp_min(1e-300).reciprocal().sum().sqrt()


def _relative(t: Tensor, A: Tensor) -> Tensor:
    along = t @ A
    return along / along.abs().max()


def _some_columns(A: Tensor, count: int, generator: torch.Generator) -> Tensor:
    chosen = torch.randperm(A.shape[1], generator=generator)[:count]
    return A[:, chosen.to(A.device)]


@dataclass(frozen=True)
class Lengths:
    """One sample per direction: T (R, R), what U leaves for p − y (R, C), and each sample's own
    reading of α (R,)."""

    T: Tensor
    E: Tensor
    alphas: Tensor

    def targets(self, observation: Observation, alpha: float) -> Tensor:
        """(R, C) read off the equation, 0 and 1 where they are that close."""
        P = torch.softmax(self.T @ observation.K + observation.b, dim=1)
        Y = P - self.E / (alpha * self.T.norm(dim=1, keepdim=True))
        Y = torch.where(Y.abs() < _NOTHING, 0.0, Y)
        return torch.where((Y - 1).abs() < _NOTHING, 1.0, Y)


def measure_lengths(observation: Observation, directions: SparseDirections) -> Lengths | None:
    """None where a sample's line runs the wrong way: then the directions are no samples of this
    head."""
    E = torch.linalg.solve(directions.t, observation.U, left=False).T
    s = fit_lengths(directions.t @ observation.K, E, observation.b)
    if not bool((s > 0).all()):
        return None
    T = s[:, None] * directions.t
    P = torch.softmax(T @ observation.K + observation.b, dim=1)
    free = E > 0
    return Lengths(T, E, torch.where(free, E, 0.0).sum(1) / (s * torch.where(free, P, 0.0).sum(1)))


def certified(
    observation: Observation, directions: SparseDirections, lengths: Lengths
) -> Candidate:
    """The samples with a certificate from their zeros: the equation did not find them."""
    plain, alpha = observation.alpha(1.0, observation.rank), float(lengths.alphas.median())
    alpha = plain if abs(alpha / plain - 1) < _PLAIN else positive_factor(alpha)
    at = Unknowns.of(lengths.T, alpha)
    Y = lengths.targets(observation, alpha)
    equation = replace(observation.equation(), Y=Y, weight=observation.weights_at(at, Y))
    # The noise of an entry turns a direction and spreads over all entries; the readings of α
    # scatter as the lengths do.
    here, (R, H), size = Linearized(equation, at), observation.A.shape, lengths.T.norm(dim=1)
    spare = (observation.classes - 1) * here.residual.shape[1] - R
    misfit = float(here.cost / max(spare, 1)) ** 0.5
    entry = torch.linalg.pinv(at.alpha * here.G.T / observation.noise.level[:, None]).norm(dim=1)
    whole = max(misfit, 1.0) * entry * H**0.5 / size
    off = (lengths.alphas / at.alpha - 1).abs()
    errors = (whole.square() * (1 + directions.turn.square()) + off.square()).sqrt()
    if spare <= 0:  # two classes: no equation is left that could contradict
        errors = torch.full_like(errors, torch.inf)
    deviation = float(off.median()) / R**0.5
    certificate = Certificate(
        misfit, errors, torch.diag((errors * size).square()), torch.inf, deviation
    )
    if observation.rank < _READINGS and alpha != plain:
        told = certify(replace(equation, alpha_free=True), at, observation)
        certificate = replace(certificate, errors=torch.maximum(certificate.errors, told.errors))
    return Candidate(at, Y, certificate, equation, read_off=True)


def fit_lengths(x: Tensor, E: Tensor, b: Tensor) -> Tensor:
    """(n,) the s for which E ∝ softmax(s x + b) − y, from the classes with E > 0: nobody's label
    there.

    Where y is 0, log(p − y) is linear in the length s, because p = softmax(s x + b) with the
    direction's own logits x: one straight line per sample, drawn through the classes it is not
    labeled with.
    """
    weight, x, z = _centered(x, E, b)
    return (weight * x * z).sum(1) / (weight * x.square()).sum(1)


def disagreement(x: Tensor, E: Tensor, b: Tensor) -> Tensor:
    """(n,) by how much the logits x miss that line, relative: a head's rows look in all directions,
    so f errs by as much."""
    weight, x, z = _centered(x, E, b)
    return (
        (weight * (z - x).square()).sum(1) / (weight * x.square()).sum(1).clamp_min(1e-300)
    ).sqrt()


def _centered(x: Tensor, E: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weights of the classes, and x and log E − b about their weighted means."""
    z = E.clamp_min(1e-300).log() - b
    weight = E.clamp_min(0).square()  # log E errs by the noise over E
    weight = weight / weight.sum(1, keepdim=True)
    return weight, x - (weight * x).sum(1, keepdim=True), z - (weight * z).sum(1, keepdim=True)
