"""What an update itself says about the loss: under softmax every row of G sums to zero, and so does ∇b."""

from __future__ import annotations

from dataclasses import replace

from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.separate.losses.bce import BinaryCrossEntropy
from unsum.separate.losses.mse import SquaredError
from unsum.separate.losses.solver import separate_declared
from unsum.separate.text.span import span_of

_OFF = 1e-3  # of the sum of magnitudes: rounding stays far below


def is_no_softmax(head: Head) -> bool:
    """Whether ∇b does not sum to zero although nothing else in the gradient looks like noise."""
    if head.grad_b is None or bool((head.grad_b == 0).any()):
        return False
    grad_b = head.grad_b.double()
    if float(grad_b.sum().abs()) <= _OFF * float(grad_b.abs().sum()):
        return False
    span = span_of(head.grad_W)
    return not span.noisy and not span.full


def fitting_loss(head: Head, knowledge: Knowledge, *, seed: int) -> Leak | None:
    """The answer under a loss that was not declared but explains the update exactly; None where there is none."""
    if not is_no_softmax(head):
        return None
    for loss in (SquaredError(), BinaryCrossEntropy()):
        leak = separate_declared(head, knowledge, loss, seed=seed)
        if leak.exact:
            found = f"The bias's gradient does not sum to zero: the loss is no cross-entropy, and {loss.name!r} explains it."
            return replace(leak, notes=[found, *leak.notes[1:]])
    return None


def advice(head: Head) -> str | None:
    """A sentence where the update cannot come from cross-entropy."""
    if not is_no_softmax(head):
        return None
    return (
        "The bias's gradient does not sum to zero, as it does under cross-entropy: declare the loss (loss='bce', say)."
    )
