"""What clients do to their labels before training: smoothing and mixup."""

from __future__ import annotations

import torch
from torch import Tensor

from unsum.errors import UnsumError


def target_rows(targets: Tensor, classes: int) -> Tensor:
    """(B, C) rows from (B,) class numbers, from rows that are given already, or from one number a
    sample for a single output.

    >>> target_rows(torch.tensor([1, 0]), 1).tolist(), target_rows(torch.tensor([1, 0]), 2).tolist()
    ([[1.0], [0.0]], [[0.0, 1.0], [1.0, 0.0]])
    """
    if targets.ndim == 1 and classes == 1:
        return targets[:, None].to(torch.get_default_dtype())
    if targets.ndim == 1 and not targets.is_floating_point():
        if len(targets) and (int(targets.min()) < 0 or int(targets.max()) >= classes):
            raise UnsumError(
                f"Targets must lie in 0…{classes - 1}; found "
                f"{int(targets.min())}…{int(targets.max())}."
            )
        return torch.nn.functional.one_hot(targets.long(), classes).to(torch.get_default_dtype())
    if targets.ndim != 2 or targets.shape[1] != classes:
        raise UnsumError(
            f"Targets must be (B,) whole numbers or (B, {classes}) rows, not "
            f"{tuple(targets.shape)}."
        )
    return targets if targets.is_floating_point() else targets.to(torch.get_default_dtype())


def as_probabilities(targets: Tensor, classes: int) -> Tensor:
    """(B, C) rows of probabilities from (B,) class numbers or from rows that are given already."""
    if classes == 1:
        raise UnsumError(
            "Cross-entropy over a single output is always 0; declare the client's loss (loss='bce' "
            "for yes and no)."
        )
    rows = target_rows(targets, classes)
    if float(rows.min()) < -1e-6 or not torch.allclose(
        rows.sum(1), rows.new_ones(len(rows)), atol=1e-4
    ):
        raise UnsumError(
            "Each row of soft targets must be non-negative and sum to 1; rows of several labels "
            "need another loss (loss='bce')."
        )
    return rows


def smooth_labels(targets: Tensor, epsilon: float, classes: int) -> Tensor:
    """(B, C) targets (1 − ε) y + ε / C.

    Examples:
        >>> smooth_labels(torch.tensor([1]), 0.3, 3)
        tensor([[0.1000, 0.8000, 0.1000]])
    """
    if not 0 <= epsilon <= 1:
        raise UnsumError(f"Label smoothing needs an epsilon between 0 and 1, not {epsilon}.")
    return as_probabilities(targets, classes) * (1 - epsilon) + epsilon / classes


def mixup(
    images: Tensor,
    targets: Tensor,
    classes: int,
    *,
    weight: float | Tensor,
    partner: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Blend each sample with a partner: weight · sample + (1 − weight) · partner, images and
    targets alike.

    `weight` is one number or one per sample; `partner` (B,) holds the index of each sample's
    partner, by default the next one in the batch.

    Examples:
        >>> images, targets = mixup(
        ...     torch.tensor([[0.0], [1.0]]), torch.tensor([0, 1]), 2, weight=0.75
        ... )
        >>> images.flatten(), targets
        (tensor([0.2500, 0.7500]), tensor([[0.7500, 0.2500],
                [0.2500, 0.7500]]))
    """
    size = len(images)
    weights = torch.as_tensor(weight, dtype=images.dtype, device=images.device).expand(size)
    if float(weights.min()) < 0 or float(weights.max()) > 1:
        raise UnsumError("Mixup weights must lie between 0 and 1.")
    if partner is None:
        partner = torch.arange(1, size + 1, device=images.device) % size
    rows = as_probabilities(targets, classes).to(images)
    image_weights = weights.view(-1, *[1] * (images.ndim - 1))
    mixed = image_weights * images + (1 - image_weights) * images[partner]
    return mixed, weights[:, None] * rows + (1 - weights[:, None]) * rows[partner]
