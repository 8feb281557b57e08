"""Crowded batches: labels granted, more samples than the gradient has directions (B ≥ C), and still
every sample's features.

No rank is left for them: B samples in C − 1 directions. But most features are zero after a ReLU, so
that each column of ∇W mixes few samples only. First the atoms g_i ∝ p_i − y_i are learned from the
sparsest columns: column j of ∇W is Σ_i f_ij g_i over the samples whose feature j is not zero, and
such a sample pulls its own label's row below zero: the signs of a column say which classes take
part in it. With few enough of them a column is worth more equations (C − 1) than it has unknowns,
and the atoms follow: first the span of every class, then, in that span, the directions in which
columns coincide because one sample alone is active there. Then every column is coded as a
non-negative combination of the atoms, which gives every feature; and p = softmax(f Wᵀ + b), which
neither used, says how long f is and how far it is off.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unsum.equation.observation import observe
from unsum.errors import UnsumError
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.running.deadline import out_of_time
from unsum.separate.exact.zeros import disagreement, fit_lengths
from unsum.separate.method import SEPARATORS, uncertified

_CODING_STEPS = 300  # of the first coding; later ones start from it
_LEAST_PART = 1e-3  # of a column's largest coefficient
_CODED_AT_ONCE = 20_000  # columns coded together
_COLUMNS_PER_SAMPLE = 60  # of fewest classes that atoms are learned from
_COMPARED = 1_000  # of the columns that a class is strongest in, for its corners
_SPAN_ROUNDS, _SPARSE_ROUNDS, _REPEATS = 20, 12, 3  # of atoms and codes in turn: a budget
_STEPS = 60  # of one coding that starts from the last
_SMALLEST = 0.02  # of a column's largest coefficient: what is below is taken for zero
_COINCIDE, _APART = 1e-3, 1e-2  # distances of unit vectors that are one direction, and that are two
_STRONG = 0.1  # size a class must have in a column to say something about it
_UNSETTLED = 1e-3  # median misfit of a class's columns above which its corners are sought again
_UNTRIED = "further steps of the crowded batch"
# Times the predicted error, and the least of it, that the answer may leave of the gradient: more
# contradicts the prediction.
_CONTRADICTED, _AGREES = 3.0, 1e-2
_AT_ONCE = 4096  # columns whose supports are solved for together


@SEPARATORS.register(
    "crowded",
    summary="batches of more samples than classes, by the zeros of their features (unsum)",
    needs="the gradient of the last layer and its bias; the labels; features after a ReLU",
)
def crowded(head: Head, knowledge: Knowledge, *, seed: int) -> Leak:
    """Never certified: `predicted_error` is what the softmax says about the worst sample, and the
    notes about the others."""
    labels = _hard_labels(head, knowledge)
    if labels is None:
        raise UnsumError(
            "crowded needs the labels of the batch, one class for each sample: grant them "
            "(labels=), or let a rule find them (label_rule='ilrg' with batch_size=; on the "
            "command line --labels ilrg --batch-size-known)."
        )
    if head.grad_b is None:
        raise UnsumError(
            "crowded needs the gradient of the last layer's bias, which this update lacks; use "
            "exact."
        )
    counts = torch.bincount(labels, minlength=head.classes)
    if not bool(head.grad_W.any()):
        raise UnsumError("crowded needs a gradient of the last layer that is not zero; use 'auto'.")
    if _too_crowded(head, counts):
        raise UnsumError(
            "crowded needs several times as many features as samples, and classes shared by a few; "
            "use exact."
        )
    mean = (
        head.grad_b.double() * (1 if head.reduction == "mean" else 1 / len(labels))
    ) + counts / len(labels)
    columns = sparsest_columns(head.grad_W, labels)
    atoms = learn_atoms(columns, labels, mean, torch.Generator().manual_seed(seed))
    return _leak(head, labels, atoms, _code_all(atoms, head.grad_W))


def suits_crowded(head: Head, knowledge: Knowledge) -> bool:
    """Whether labels are granted for more samples than the gradient has directions, all of which it
    shows, with a chance."""
    labels = _hard_labels(head, knowledge)
    if labels is None or len(labels) < head.classes or head.grad_b is None:
        return False
    if _too_crowded(head, torch.bincount(labels, minlength=head.classes)):
        return False
    return bool(head.grad_W.any()) and observe(head, len(labels)).rank >= head.classes - 1


def _too_crowded(head: Head, counts: Tensor) -> bool:
    """A class's samples must leave directions to tell them from the others, and columns in which
    they are alone."""
    return 2 * int(counts.max()) > head.classes or 4 * int(counts.sum()) > head.W.shape[1]


def _hard_labels(head: Head, knowledge: Knowledge) -> Tensor | None:
    targets = knowledge.targets(head.classes)
    if targets is None or not bool((targets.amax(1) == 1).all()):
        return None
    return targets.argmax(1).to(head.W.device)


def _code_all(atoms: Tensor, grad_W: Tensor) -> Tensor:
    """(B, H) features up to a factor for each sample."""
    rough, parts = atoms.to(grad_W.dtype), []
    for X in grad_W.split(_CODED_AT_ONCE, dim=1):
        size = X.norm(dim=0).clamp_min(1e-30)
        Z = code(
            rough, X / size, X.new_zeros(len(atoms), X.shape[1]), X.new_ones(()), _CODING_STEPS
        )
        sharp = on_support(rough, X / size, Z, _LEAST_PART)
        better = (rough.T @ sharp - X / size).norm(dim=0) < (rough.T @ Z - X / size).norm(dim=0)
        parts.append(
            torch.where(better & (sharp.amin(0) >= -_LEAST_PART), sharp.clamp_min(0), Z) * size
        )
    return torch.cat(parts, dim=1)


def _leak(head: Head, labels: Tensor, atoms: Tensor, F: Tensor) -> Leak:
    b = atoms.new_zeros(head.classes) if head.b is None else head.b.double()
    x = head.logits(F.double())
    s = fit_lengths(x, atoms, b).nan_to_num(0.0).clamp_min(0)
    logits = s[:, None] * x + b
    errors = disagreement(logits - b, atoms, b).nan_to_num(torch.inf)
    features = s[:, None] * F
    trusted = int((errors < 0.1).sum())
    note = (
        f"More samples than directions: {trusted} of {len(labels)} agree with the softmax to 10 %; "
        f"the worst is off by {100 * float(errors.max()):.0f} %."
    )
    targets = torch.nn.functional.one_hot(labels, head.classes).double()
    predicted = float(errors.max())
    leak = uncertified(
        "crowded", head, logits, targets, features, [note], predicted_error=predicted
    )
    return replace(leak, predicts=leak.residual < _CONTRADICTED * max(predicted, _AGREES))


@dataclass(frozen=True)
class Columns:
    """Columns of ∇W, each of unit length (C, N), and which samples may be active in them (B, N)."""

    X: Tensor
    allowed: Tensor


def sparsest_columns(grad_W: Tensor, labels: Tensor) -> Columns:
    """Those with the fewest classes below zero, but with some."""
    below = grad_W < -1e-6 * grad_W.abs().amax(0)
    classes = below.sum(0)
    order = torch.where(classes > 0, classes, len(below) + 1).argsort(stable=True)[
        : _COLUMNS_PER_SAMPLE * len(labels)
    ]
    order = order[classes[order] > 0]
    X = grad_W[:, order].double()
    return Columns(X / X.norm(dim=0), below[labels][:, order].double())


def learn_atoms(
    columns: Columns, labels: Tensor, mean: Tensor, generator: torch.Generator
) -> Tensor:
    """(B, C) unit vectors, one per sample, in the order of `labels`; `mean` (C,) is the batch's
    average p."""
    noise = torch.randn(len(labels), len(mean), generator=generator, dtype=torch.float64).to(
        mean.device
    )
    atoms = mean * (1 + 0.3 * noise) - torch.nn.functional.one_hot(labels, len(mean))
    shared = [members for c in labels.unique() if len(members := (labels == c).nonzero()[:, 0]) > 1]
    atoms = torch.nn.functional.normalize(atoms, dim=1)
    unsettled = shared
    for _ in range(_REPEATS):
        signed = torch.zeros(len(atoms), dtype=torch.bool, device=atoms.device)
        for members in unsettled:
            atoms[members] = torch.linalg.qr(atoms[members].T).Q.T
            signed[members] = True
        atoms, Z, misfit = _learned(columns, atoms, signed)
        Z = code(atoms, columns.X, Z, columns.allowed, _STEPS, signed=signed)
        for members in unsettled:
            atoms[members] = _corners(atoms[members], Z[members][:, misfit < misfit.median()])
        atoms, _, misfit = _learned(columns, atoms, None)
        parts = [(members, misfit[columns.allowed[members[0]] > 0]) for members in shared]
        unsettled = [
            members for members, off in parts if len(off) and float(off.median()) > _UNSETTLED
        ]
        if not unsettled:
            break
    return atoms


def _learned(
    columns: Columns, atoms: Tensor, signed: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Atoms and codes in turn, with what they miss of every column.

    Atoms that are `signed`, of classes still open, are only a basis of their class's span, with
    coefficients of either sign. Where none is, small coefficients are set to zero: without that,
    wider cones would fit as well.
    """
    Z = torch.zeros_like(columns.allowed)
    misfit = columns.X.norm(dim=0)
    for _ in range(_SPARSE_ROUNDS if signed is None else _SPAN_ROUNDS):
        if out_of_time(_UNTRIED):
            break
        Z = code(
            atoms,
            columns.X,
            Z,
            columns.allowed,
            2 * _STEPS if signed is None else _STEPS,
            signed=signed,
        )
        used = on_support(atoms, columns.X, Z, _SMALLEST) if signed is None else Z
        misfit = (atoms.T @ used - columns.X).norm(dim=0)
        atoms = _refitted(atoms, used, columns.X, misfit)
    return atoms, Z, misfit


def _refitted(atoms: Tensor, Z: Tensor, X: Tensor, misfit: Tensor) -> Tensor:
    """Least squares for the atoms; columns that do not fit (a sample hides in the signs) count
    less."""
    weight = (misfit + 0.1 * misfit.median()).pow(-1.5)
    normal = (Z * weight) @ Z.T
    # where no column uses any atom
    least = (1e-10 * normal.diagonal().mean()).clamp_min(torch.finfo(Z.dtype).tiny)
    normal = normal + least * torch.eye(len(Z), dtype=Z.dtype, device=Z.device)
    fitted = torch.linalg.solve(normal, (Z * weight) @ X.T)
    unused = Z.abs().sum(1) < 1e-9
    return torch.nn.functional.normalize(torch.where(unused[:, None], atoms, fitted), dim=1)


def _corners(basis: Tensor, Z: Tensor) -> Tensor:
    """(n, C) the n directions of a class's span in which most columns coincide."""
    n = len(basis)
    Z = Z[:, Z.norm(dim=0).argsort(descending=True)[:_COMPARED]]
    Z = Z[:, Z.norm(dim=0) > _STRONG]
    if Z.shape[1] < n:
        return basis
    unit = Z / Z.norm(dim=0)
    distances = torch.cdist(unit.T, unit.T, compute_mode="donot_use_mm_for_euclid_dist")
    together = (distances < _COINCIDE).sum(1)
    chosen: list[int] = []
    for column in together.argsort(descending=True).tolist():
        if all(float(distances[column, other]) > _APART for other in chosen):
            chosen.append(column)
        if len(chosen) == n:
            return torch.nn.functional.normalize(unit[:, chosen].T @ basis, dim=1)
    return basis


def code(
    atoms: Tensor,
    X: Tensor,
    Z: Tensor,
    allowed: Tensor,
    steps: int,
    *,
    signed: Tensor | None = None,
) -> Tensor:
    """(B, N) coefficients z ≥ 0 of x = Σ_i z_i g_i after some accelerated projected-gradient steps
    from `Z`; 0 if not `allowed`.

    Written by hand because scipy's `nnls` takes one column at a time: a hundred thousand of them
    would take minutes. Rows that are `signed` (B,) may be negative: their atoms stand for a span
    whose corners are not known yet.
    """
    K, q = atoms @ atoms.T, atoms @ X
    steepest = torch.linalg.eigvalsh(K.double())[-1].to(K.dtype)
    floor = (
        torch.zeros_like(K[:, :1])
        if signed is None
        else torch.where(signed, -torch.inf, 0.0)[:, None].to(K.dtype)
    )
    ahead, momentum = Z, 1.0
    for _ in range(steps):
        if out_of_time(_UNTRIED):
            break
        there = torch.maximum(ahead - (K @ ahead - q) / steepest, floor) * allowed
        following = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        ahead = there + (momentum - 1) / following * (there - Z)
        Z, momentum = there, following
    return Z


def on_support(atoms: Tensor, X: Tensor, Z: Tensor, smallest: float) -> Tensor:
    """The least-squares coefficients with everything below `smallest` of a column's largest set to
    zero, in float64."""
    K, q = (atoms @ atoms.T).double(), (atoms @ X).double()
    used = smallest * Z.amax(0) < Z
    solved = []
    for start in range(0, X.shape[1], _AT_ONCE):
        here = used[:, start : start + _AT_ONCE].T.double()  # (n, B)
        normal = here[:, :, None] * K * here[:, None, :] + torch.diag_embed(1 - here + 1e-12)
        solved.append(torch.linalg.solve(normal, here * q[:, start : start + _AT_ONCE].T).T)
    return torch.cat(solved, dim=1).to(X.dtype)
