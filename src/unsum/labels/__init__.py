"""Update → labels only."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unsum.knowledge import Knowledge
from unsum.labels import (  # noqa: F401 (registers)
    bias_sign,
    gradinversion,
    idlg,
    ilrg,
    llg,
    llg_plus,
    llg_star,
    row_sum,
    templates,
)
from unsum.labels.method import LABEL_RULES, Clues, LabelRule
from unsum.update import Update

__all__ = ["LABEL_RULES", "Clues", "LabelRule", "labels"]


def labels(
    model: nn.Module,
    update: Update,
    method: str = "exact",
    *,
    batch_size: int | None = None,
    auxiliary: tuple[Tensor, Tensor] | None = None,
    public: Tensor | None = None,
    device: torch.device | str | None = None,
    seed: int = 0,
) -> Tensor:
    """The labels of the batch behind one update: (B,) class numbers, sorted, duplicates repeated.

    With n_c samples of class c, ∇b_c = p̄_c − n_c/B: the rules differ in how they come to the mean
    probability p̄_c.

    Args:
        model: the model the client trained, with the weights it started from, in the mode the
            client trains it in.
        update: what the server received.
        method: a label rule from `unsum list`, which says what each needs.
        batch_size: B if the attacker knows it; taken from the update where the protocol discloses
            it.
        auxiliary: labeled samples of the attacker's own, (images, labels), for rules that need
            them.
        public: inputs that anyone could have, without labels, for 'templates'.
        device: where to compute; the model's own device by default.
        seed: fixes every random choice.

    Examples:
        >>> import torch, unsum
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Linear(64, 20)
        >>> inputs, labels = torch.randn(3, 64), torch.tensor([4, 4, 1])
        >>> update = unsum.capture(model, inputs.relu(), labels)
        >>> unsum.labels(model, update), unsum.labels(model, update, "llg", batch_size=3)
        (tensor([1, 4, 4]), tensor([1, 4, 4]))
    """
    rule, granted = (
        LABEL_RULES[method],
        Knowledge(batch_size=batch_size, auxiliary=auxiliary, public=public),
    )
    return rule(Clues.of(model, update, granted, device, seed))
