"""Cocktail Party at the last layer: the head's gradient as a mixture of features, unmixed by independent component analysis.

∇W = Gᵀ F: every class row mixes the B samples' features. Nothing but the batch size is used, no label and no softmax:
components of the row space are sought that are as far from Gaussian as ReLU's sparse features are
(`unsum.separate.components`).

What is identifiable: F up to the order, sign and scale of its rows, since Gᵀ D⁻¹ · D F is the same gradient for every
diagonal D. Rows of G sum to zero for every D, so that says nothing; the bias does: ∇b = Gᵀ 1 is linear in the scales and
fixes all of them, sign included. Without a bias gradient the features keep a guessed scale. The labels then follow from Y
= softmax(F Wᵀ + b) − B G. Samples of one label are no special case here, and soft labels neither; B ≤ C − 1. There is no
certificate: how independent features are is unknown.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsum.errors import UnsumError
from unsum.head import Factors, Head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.separate.components import descend, filtered, fixed_point, scaled, upright, whitening
from unsum.separate.method import SEPARATORS
from unsum.separate.misfit import relative_misfit

_ROUNDING = 1e-6  # of the largest singular value: what lies below is no sample


@SEPARATORS.register(
    "cocktail",
    summary="the head's gradient unmixed by independent component analysis (Cocktail Party)",
    needs="the batch size, below the number of classes; a bias gradient for the scale",
)
def cocktail(
    head: Head,
    knowledge: Knowledge,
    *,
    seed: int,
    domain: str = "differences",
    iterations: int = 0,
    learning_rate: float = 1e-2,
    contrast: float = 100.0,
    decorrelation: float = 1.0,
    temperature: float = 5.0,
    sign: float = 0.0,
) -> Leak:
    """Features by the fixed point of the contrast; `iterations` adds steps of Adam on the published objective."""
    B = knowledge.known_batch_size
    if B is None:
        raise UnsumError(
            "The attack 'cocktail' needs the batch size; give batch_size=, or use 'exact', which finds it."
        )
    if min(head.classes - 1, head.W.shape[1]) < B:
        raise UnsumError(
            f"'cocktail' cannot unmix {B} samples from {head.classes} classes; it needs more classes than samples."
        )
    factors = head.factorize(rank=B)
    rank = int((factors.singular_values > _ROUNDING * factors.singular_values[0]).sum())
    if rank < B:
        raise UnsumError(f"The gradient is of {rank} different samples and not of {B}; give that batch size.")
    T = _unmixing(factors, B, domain, seed, (iterations, learning_rate, contrast, decorrelation, temperature, sign))
    features, G, notes = _with_scale(head, factors, T)
    weight = 1 if head.reduction == "sum" else B
    logits = features @ head.W.double().T + (0 if head.b is None else head.b.double())
    targets = (logits.softmax(1) - weight * G).clamp_min(0)
    targets = targets / targets.sum(1, keepdim=True).clamp_min(1e-30)
    return Leak(
        method="cocktail",
        targets=targets,
        logits=logits,
        features=features.to(torch.promote_types(head.W.dtype, torch.float32)),
        residual=relative_misfit(head, logits, targets, features),
        predicted_error=float("nan"),
        exact=False,
        notes=notes,
    )


def _unmixing(
    factors: Factors, B: int, domain: str, seed: int, steps: tuple[int, float, float, float, float, float]
) -> Tensor:
    """T (B, B): the components are T A, in the rows' own span."""
    rows = filtered(factors.A, domain)
    M = whitening(rows, B)
    Z, uncentered = (M @ rows).float(), (M @ factors.A).float()
    V = fixed_point(Z, torch.Generator().manual_seed(seed))
    iterations, learning_rate, contrast, decorrelation, temperature, sign = steps
    if iterations:
        V = descend(
            V, Z, uncentered, iterations=iterations, learning_rate=learning_rate, contrast=contrast,
            decorrelation=decorrelation, temperature=temperature, sign=sign,
        )  # fmt: skip
    return V.double() @ M


def _with_scale(head: Head, factors: Factors, T: Tensor) -> tuple[Tensor, Tensor, list[str]]:
    """Features (B, H) and G (B, C), with the scale that the bias fixes or a guess."""
    T = T * torch.where((T @ factors.A).sum(1, keepdim=True) < 0, -1.0, 1.0)
    notes = ["Independent component analysis carries no certificate."]
    Q = factors.U @ torch.linalg.inv(T)
    if head.grad_b is None:
        notes.append("Without a bias gradient the scale of every sample's features is a guess, and its label with it.")
        size = (T @ factors.A).square().mean(1).sqrt()
        return upright(T @ factors.A / size[:, None]), (Q * size).T, notes
    T, G = scaled(T, factors.U, head.grad_b)
    negative = int(((T @ factors.A).sum(1) < 0).sum())
    if negative:
        notes.append(
            f"{negative} samples come out mostly negative, which features after ReLU are not: take them for wrong."
        )
    return T @ factors.A, G.T, notes
