"""Crowded batches: labels granted, more samples than classes, and still every sample's features.

No rank is left for them: B samples in C − 1 directions. But most features are zero after a ReLU, so that each column of
∇W mixes few samples only. `atoms` learns their p − y from the sparsest columns, `coding` gives every feature, and
p = softmax(f Wᵀ + b), which neither of them used, says how long f is and how far it is off.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsum.errors import UnsumError
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.separate.crowded.atoms import learn_atoms, sparsest_columns
from unsum.separate.crowded.coding import code, on_support
from unsum.separate.exact.lengths import fit_lengths
from unsum.separate.method import SEPARATORS

_STEPS = 300
_SMALLEST = 1e-3  # of a column's largest coefficient
_AT_ONCE = 20_000  # columns coded together


@SEPARATORS.register(
    "crowded",
    summary="batches of more samples than classes, by the zeros of their features (unsum)",
    needs="the gradient of the last layer and its bias; the labels; features after a ReLU",
)
def crowded(head: Head, knowledge: Knowledge, *, seed: int) -> Leak:
    """Never certified: `predicted_error` is what the softmax says about the worst sample, and the notes about the others."""
    targets = knowledge.targets(head.classes)
    if targets is None or head.grad_b is None:
        raise UnsumError(
            "crowded needs the labels and the bias gradient; grant the labels (Knowledge(labels=…)) or use exact."
        )
    labels = targets.argmax(1).to(head.W.device)
    if not torch.equal(targets.to(labels.device), torch.nn.functional.one_hot(labels, head.classes).to(targets.dtype)):
        raise UnsumError("crowded needs hard labels; use exact for smoothed or mixed ones.")
    B = len(labels)
    alpha = 1 / B if head.reduction == "mean" else 1.0
    mean = head.grad_b.double() / (alpha * B) + torch.bincount(labels, minlength=head.classes) / B
    atoms = learn_atoms(
        sparsest_columns(head.grad_W, labels), labels, mean, torch.Generator().manual_seed(seed)
    )
    F = _code_all(atoms, head.grad_W)
    return _leak(head, labels, atoms, F)


def _code_all(atoms: Tensor, grad_W: Tensor) -> Tensor:
    """(B, H) features up to a factor for each sample."""
    rough, parts = atoms.to(grad_W.dtype), []
    for X in grad_W.split(_AT_ONCE, dim=1):
        size = X.norm(dim=0).clamp_min(1e-30)
        Z = code(rough, X / size, X.new_zeros(len(atoms), X.shape[1]), X.new_ones(()), _STEPS)
        sharp = on_support(rough, X / size, Z, _SMALLEST)
        better = (rough.T @ sharp - X / size).norm(dim=0) < (rough.T @ Z - X / size).norm(dim=0)
        parts.append(torch.where(better & (sharp.amin(0) >= -_SMALLEST), sharp.clamp_min(0), Z) * size)
    return torch.cat(parts, dim=1)


def _leak(head: Head, labels: Tensor, atoms: Tensor, F: Tensor) -> Leak:
    b = atoms.new_zeros(head.classes) if head.b is None else head.b.double()
    x = head.logits(F.double())
    s = fit_lengths(x, atoms, b).clamp_min(0)
    logits = s[:, None] * x + b
    errors = _disagreement(logits - b, atoms, b)
    features = (s[:, None] * F).to(head.W.dtype)
    trusted = int((errors < 0.1).sum())
    return Leak(
        method="crowded",
        targets=torch.nn.functional.one_hot(labels, head.classes).double(),
        logits=logits,
        features=features,
        residual=_unexplained(head, labels, logits, features),
        predicted_error=float(errors.max()),
        exact=False,
        scale=1.0,
        notes=[f"{trusted} of {len(labels)} samples agree with the softmax to 10 %; the worst is off by {100 * float(errors.max()):.0f} %."],
    )


def _disagreement(x: Tensor, atoms: Tensor, b: Tensor) -> Tensor:
    """(B,) by how much f Wᵀ misses log p, relative: a head's rows look in all directions, so f errs by as much."""
    weight = atoms.clamp_min(0).square()
    weight = weight / weight.sum(1, keepdim=True)
    line = atoms.clamp_min(1e-300).log() - b - x
    line = line - (weight * line).sum(1, keepdim=True)
    centred = x - (weight * x).sum(1, keepdim=True)
    return ((weight * line.square()).sum(1) / (weight * centred.square()).sum(1).clamp_min(1e-300)).sqrt()


def _unexplained(head: Head, labels: Tensor, logits: Tensor, features: Tensor) -> float:
    G = torch.softmax(logits, dim=1) - torch.nn.functional.one_hot(labels, head.classes)
    G = G / len(labels) if head.reduction == "mean" else G
    return float((G.T.to(features.dtype) @ features - head.grad_W).norm() / head.grad_W.norm())
