"""Crowded batches: labels granted, more samples than classes, and still every sample's features.

No rank is left for them: B samples in C − 1 directions. But most features are zero after a ReLU, so that each column of
∇W mixes few samples only. `atoms` learns their p − y from the sparsest columns, `coding` gives every feature, and
p = softmax(f Wᵀ + b), which neither of them used, says how long f is and how far it is off.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsum.equation.observation import observe
from unsum.errors import UnsumError
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.separate.crowded.atoms import learn_atoms, sparsest_columns
from unsum.separate.crowded.coding import code, on_support
from unsum.separate.method import SEPARATORS
from unsum.separate.softmax_line import disagreement, fit_lengths

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
    labels = _hard_labels(head, knowledge)
    if labels is None or head.grad_b is None:
        raise UnsumError("crowded needs hard labels and the bias gradient; grant the labels, or use exact.")
    counts = torch.bincount(labels, minlength=head.classes)
    if _too_crowded(head, counts):
        raise UnsumError(
            "crowded needs several times as many features as samples, and classes shared by a few; use exact."
        )
    mean = (head.grad_b.double() * (1 if head.reduction == "mean" else 1 / len(labels))) + counts / len(labels)
    columns = sparsest_columns(head.grad_W, labels)
    atoms = learn_atoms(columns, labels, mean, torch.Generator().manual_seed(seed))
    return _leak(head, labels, atoms, _code_all(atoms, head.grad_W))


def suits_crowded(head: Head, knowledge: Knowledge) -> bool:
    """Whether labels are granted for more samples than the gradient has directions, all of which it shows, and there is a
    chance for them."""
    labels = _hard_labels(head, knowledge)
    if labels is None or len(labels) < head.classes or head.grad_b is None:
        return False
    if _too_crowded(head, torch.bincount(labels, minlength=head.classes)):
        return False
    return bool(head.grad_W.any()) and observe(head, len(labels)).rank >= head.classes - 1


def _too_crowded(head: Head, counts: Tensor) -> bool:
    """A class's samples must leave directions to tell them from the others, and columns in which they are alone."""
    return 2 * int(counts.max()) > head.classes or 4 * int(counts.sum()) > head.W.shape[1]


def _hard_labels(head: Head, knowledge: Knowledge) -> Tensor | None:
    targets = knowledge.targets(head.classes)
    if targets is None or not bool((targets.amax(1) == 1).all()):
        return None
    return targets.argmax(1).to(head.W.device)


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
    s = fit_lengths(x, atoms, b).nan_to_num(0.0).clamp_min(0)
    logits = s[:, None] * x + b
    errors = disagreement(logits - b, atoms, b).nan_to_num(torch.inf)
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
        notes=[
            f"More samples than directions: {trusted} of {len(labels)} agree with the softmax to 10 %; "
            f"the worst is off by {100 * float(errors.max()):.0f} %."
        ],
    )


def _unexplained(head: Head, labels: Tensor, logits: Tensor, features: Tensor) -> float:
    G = torch.softmax(logits, dim=1) - torch.nn.functional.one_hot(labels, head.classes)
    G = G / len(labels) if head.reduction == "mean" else G
    return float((G.T.to(features.dtype) @ features - head.grad_W).norm() / head.grad_W.norm())
