"""Weight decay that nobody declared: the head tells how much of its weights was sent along with the
gradient.

The columns of the head's gradient sum to zero, so those of g + λW sum to λ times the weights'
(`equation.noise.without_decay`). The layers below decay as the head does, or not at all. Where
neither is so, the samples do not explain the gradients, and nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from unsum.equation.noise import without_decay
from unsum.head import Head, find_head
from unsum.knowledge import Knowledge
from unsum.losses import PLAIN
from unsum.update import Update

Undecayed = tuple[Head, Update, list[str]]


def undecayed(
    head: Head, knowledge: Knowledge, model: nn.Module, update: Update
) -> Iterator[Undecayed]:
    """Head and update less λW, of every layer, then of the head alone, each with a note; as they
    are where no decay is seen."""
    declared = update.training is not None and (
        update.training.several_steps or update.training.weight_decay
    )
    # Other losses have no sums that are zero.
    found = (
        None
        if declared or knowledge.loss not in (None, PLAIN) or len(head.W) < 2
        else without_decay(head)
    )
    if found is None:
        yield head, update, []
        return
    clean, decay, _ = found
    spared = (
        head.grad_b is not None
        and clean.grad_b is not None
        and torch.equal(clean.grad_b, head.grad_b.double())
    )
    weights = dict(model.named_parameters())
    # Optimizers that spare the head's bias spare all biases and norms.
    every = {
        name
        for name in update.gradients
        if name in weights and not (spared and weights[name].ndim < 2)
    }
    last = find_head(model)[1]
    own = {name for name in every if weights[name] is last.weight or weights[name] is last.bias}
    for names, which in ((every, "every layer"), (own, "the head")):
        less = update.map(
            lambda name, g, names=names: (
                (g.double() - decay * weights[name].detach().to(g).double()).to(g)
                if name in names
                else g
            )
        )
        note = (
            f"The client decayed its weights by {decay:.3g} times themselves; that was taken off "
            f"{which} first."
        )
        yield Head.of(model, less, head.W.device), less, [note]
