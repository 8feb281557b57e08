"""The atoms g_i ∝ p_i − y_i of a batch, learned from the gradient's sparsest columns.

Column j of ∇W is Σ_i f_ij g_i over the samples whose feature j is not zero, and such a sample pulls its own label's row
below zero: the signs of a column say which classes take part in it. With few enough of them a column is worth more
equations (C − 1) than it has unknowns, and the atoms follow: first the span of every class, then, in that span, the
directions in which columns coincide because one sample alone is active there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.separate.crowded.coding import code, on_support

_COLUMNS_PER_SAMPLE = 60  # of fewest classes that atoms are learned from
_COMPARED = 1_000  # of the columns that a class is strongest in, for its corners
_SPAN_ROUNDS, _SPARSE_ROUNDS, _REPEATS = 20, 12, 3
_STEPS = 60
_SMALLEST = 0.02  # of a column's largest coefficient: what is below is taken for zero
_COINCIDE, _APART = 1e-3, 1e-2  # distances of unit vectors that are one direction, and that are two
_STRONG = 0.1  # size a class must have in a column to say something about it
_UNSETTLED = 1e-3  # median misfit of a class's columns above which its corners are sought again


@dataclass(frozen=True)
class Columns:
    """Columns of ∇W, each of unit length (C, N), and which samples may be active in them (B, N)."""

    X: Tensor
    allowed: Tensor


def sparsest_columns(grad_W: Tensor, labels: Tensor) -> Columns:
    """Those with the fewest classes below zero, but with some."""
    below = grad_W < -1e-6 * grad_W.abs().amax(0)
    classes = below.sum(0)
    order = torch.where(classes > 0, classes, len(below) + 1).argsort(stable=True)[: _COLUMNS_PER_SAMPLE * len(labels)]
    order = order[classes[order] > 0]
    X = grad_W[:, order].double()
    return Columns(X / X.norm(dim=0), below[labels][:, order].double())


def learn_atoms(columns: Columns, labels: Tensor, mean: Tensor, generator: torch.Generator) -> Tensor:
    """(B, C) unit vectors, one per sample, in the order of `labels`; `mean` (C,) is the batch's average p."""
    noise = torch.randn(len(labels), len(mean), generator=generator, dtype=torch.float64).to(mean.device)
    atoms = mean * (1 + 0.3 * noise) - torch.nn.functional.one_hot(labels, len(mean))
    shared = [members for c in labels.unique() if len(members := (labels == c).nonzero()[:, 0]) > 1]
    atoms = torch.nn.functional.normalize(atoms, dim=1)
    unsettled = shared
    for _ in range(_REPEATS):
        atoms, Z, misfit = _learn_spans(columns, atoms, unsettled)
        for members in unsettled:
            atoms[members] = _corners(atoms[members], Z[members][:, misfit < misfit.median()])
        atoms, misfit = _learn_sparsely(columns, atoms)
        unsettled = [members for members in shared if _misfit_of(members, columns, misfit) > _UNSETTLED]
        if not unsettled:
            break
    return atoms


def _learn_spans(columns: Columns, atoms: Tensor, open_classes: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Atoms of the open classes only as a basis of their span, with coefficients of either sign; all others as they are."""
    signed = torch.zeros(len(atoms), dtype=torch.bool, device=atoms.device)
    for members in open_classes:
        atoms[members] = torch.linalg.qr(atoms[members].T).Q.T
        signed[members] = True
    Z = torch.zeros_like(columns.allowed)
    misfit = columns.X.norm(dim=0)
    for _ in range(_SPAN_ROUNDS):
        Z = code(atoms, columns.X, Z, columns.allowed, _STEPS, signed=signed)
        misfit = (atoms.T @ Z - columns.X).norm(dim=0)
        atoms = _refitted(atoms, Z, columns.X, misfit)
    return atoms, code(atoms, columns.X, Z, columns.allowed, _STEPS, signed=signed), misfit


def _learn_sparsely(columns: Columns, atoms: Tensor) -> tuple[Tensor, Tensor]:
    """Atoms refitted to columns whose small coefficients are set to zero: without that, wider cones would fit as well."""
    Z = torch.zeros_like(columns.allowed)
    misfit = columns.X.norm(dim=0)
    for _ in range(_SPARSE_ROUNDS):
        Z = code(atoms, columns.X, Z, columns.allowed, 2 * _STEPS)
        sparse = on_support(atoms, columns.X, Z, _SMALLEST)
        misfit = (atoms.T @ sparse - columns.X).norm(dim=0)
        atoms = _refitted(atoms, sparse, columns.X, misfit)
    return atoms, misfit


def _refitted(atoms: Tensor, Z: Tensor, X: Tensor, misfit: Tensor) -> Tensor:
    """Least squares for the atoms; columns that do not fit (a sample hides in the signs) count less."""
    weight = (misfit + 0.1 * misfit.median()).pow(-1.5)
    normal = (Z * weight) @ Z.T
    normal = normal + 1e-10 * normal.diagonal().mean() * torch.eye(len(Z), dtype=Z.dtype, device=Z.device)
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


def _misfit_of(members: Tensor, columns: Columns, misfit: Tensor) -> float:
    taking_part = columns.allowed[members[0]] > 0
    return float(misfit[taking_part].median()) if bool(taking_part.any()) else 0.0
