"""The method `exact`: the exact solver for cross-entropy, and for other losses theirs."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from unsum.errors import UnsumError
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.losses import Loss
from unsum.models.language import is_tied
from unsum.separate.exact import exact
from unsum.separate.losses.solver import advice, fitting_loss, separate_declared
from unsum.separate.method import SEPARATORS


@SEPARATORS.register(
    "exact",
    summary="every sample's features, logits and targets, solved exactly (unsum)",
    needs="the last layer's gradient; fewer samples than classes",
)
def exact_for_any_loss(
    head: Head,
    knowledge: Knowledge,
    *,
    seed: int,
    model: nn.Module | None = None,
    loss: Loss | None = None,
) -> Leak:
    """Separate under the declared loss; where none was, under the one that explains the update."""
    if model is not None and is_tied(model):
        raise UnsumError(
            "The head of this model is its embedding, whose gradients 'exact' cannot tell apart; "
            "use 'text', or 'auto'."
        )
    if loss is not None:
        return separate_declared(head, knowledge, loss, seed=seed)
    fitting = fitting_loss(head, knowledge, seed=seed) if knowledge.loss is None else None
    leak = fitting or exact(head, knowledge, seed=seed)
    said = None if leak.exact else advice(head)
    return leak if said is None else replace(leak, notes=[*leak.notes, said])
