"""Attacks on many updates of one model at once: those whose batch the batched exact solver is
certain of, as `auto` would end.

What `auto` does before and after the exact solver depends on the model, and on updates only where
that solver is not certain. So whoever gets no answer here is for `run_attack`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from unsum.attack.chain import finished
from unsum.attack.options import AUTO, AttackOptions
from unsum.head import Head, find_head
from unsum.knowledge import Knowledge
from unsum.leak import Attempt, Leak
from unsum.models.language import is_language_model, is_tied
from unsum.separate.at_once import exact_at_once
from unsum.spans.tokens import is_patched
from unsum.update import Update

_FAILED = (torch.linalg.LinAlgError, torch.OutOfMemoryError)  # type: ignore[attr-defined]


def can_be_at_once(model: nn.Module, options: AttackOptions) -> bool:
    """Whether `auto`, or the method that is asked for, begins with the exact solver on this
    model."""
    asked = options.method == "exact" or (options.method == AUTO and not is_patched(model))
    granted = (
        options.labels is not None or options.label_rule is not None or options.loss is not None
    )
    precise = find_head(model)[1].weight.dtype in (torch.float32, torch.float64)
    return asked and not granted and precise and not is_language_model(model) and not is_tied(model)


def attack_at_once(
    model: nn.Module, updates: Sequence[Update], options: AttackOptions
) -> list[Leak | None]:
    """The leak of every update that is certain, in their order; None for those to be attacked
    alone. All are `is_usual`."""
    start = time.perf_counter()
    layer = LastLayer.of(model)
    answers: list[Leak | None] = [None] * len(updates)
    if not updates:
        return answers
    # The last layer's gradients go to the device; others follow where they are needed.
    moved = partial(
        layer.changed,
        change=lambda gradient: gradient.detach().to(options.device, non_blocking=True),
    )
    sent = [moved(update) for update in updates]
    sizes = [
        options.batch_size if options.batch_size is not None else update.batch_size
        for update in sent
    ]
    head = Head.of(model, sent[0], options.device)
    grad_W, grad_b = (
        torch.stack([update.gradients[name] for update in sent])
        for name in (layer.weight, layer.bias)
    )
    try:
        found = exact_at_once(head, grad_W, grad_b, sizes, options.seed)
    except _FAILED:  # too large together, or one of them spoils the others
        return answers
    seconds = (time.perf_counter() - start) / len(updates)
    for place, (update, size, leak) in enumerate(zip(sent, sizes, found, strict=True)):
        if leak is not None:
            known = replace(leak, knowledge=Knowledge(batch_size=size), seconds=seconds)
            known = replace(known, tried=[Attempt("exact", known)])
            answers[place] = finished(model, update, known, options)
    return answers


@dataclass(frozen=True)
class LastLayer:
    """The names of its gradients and their type; found once, since a model can be traced by one
    thread only."""

    weight: str
    bias: str
    dtype: torch.dtype

    @classmethod
    def of(cls, model: nn.Module) -> LastLayer:
        name, linear = find_head(model)
        prefix = f"{name}." if name else ""
        return cls(f"{prefix}weight", f"{prefix}bias", linear.weight.dtype)

    def changed(self, update: Update, change: Callable[[Tensor], Tensor]) -> Update:
        """The update with this layer's gradients changed."""
        return update.map(
            lambda name, tensor: change(tensor) if name in (self.weight, self.bias) else tensor
        )

    def is_usual(self, update: Update) -> bool:
        """Whether it is one gradient of a mean over a batch, in the model's precision, of a head
        with a bias."""
        given = update.gradients.get(self.weight), update.gradients.get(self.bias)
        precise = all(gradient is not None and gradient.dtype == self.dtype for gradient in given)
        plain = update.kind == "gradient" and update.reduction == "mean"
        return precise and plain and update.training is None and update.carried is None
