"""What an update itself says about the loss: under softmax every row of G sums to zero, and so does ∇b."""

from __future__ import annotations

from dataclasses import replace

import torch

from unsum.certify.question import Question
from unsum.equation.decay import without_decay
from unsum.equation.noise import unit_of
from unsum.equation.span import span_of
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.losses.bce import BinaryCrossEntropy
from unsum.losses.mse import SquaredError
from unsum.separate.adaptive.recognize import recognize
from unsum.separate.exact.answer import leak_of
from unsum.separate.losses.solver import answer_declared

_OFF = 1e-3  # of the sum of magnitudes: rounding stays far below
_SANE = 1e-12  # sizes of a gradient whose squares and their products stay finite
_DEFENSES = ("grid", "random-grid", "pruned", "sign")  # they unbalance the columns of any loss
_LARGE = 1 << 26  # entries beyond which a further pass over ∇W is not worth it


def is_no_softmax(head: Head) -> bool:
    """Whether ∇b or the columns of ∇W do not sum to zero although nothing else in the gradient looks like noise."""
    if head.grad_b is not None and bool((head.grad_b == 0).any()):
        return False
    if without_decay(head) is not None:
        return False
    if _imbalance(head) <= max(_OFF, 10 * unit_of(head.grad_W)):
        return False
    span = span_of(head.grad_W)
    return not span.noisy and not span.full


def _imbalance(head: Head) -> float:
    """How far from zero the gradient's columns sum, relative to the sum of their magnitudes."""
    found = 0.0
    if head.grad_b is not None:
        grad_b = head.grad_b.double()
        found = float(grad_b.sum().abs() / grad_b.abs().sum().clamp_min(1e-300))
    if found <= _OFF and head.grad_W.numel() <= _LARGE:  # by chance, perhaps: the columns of ∇W are more witnesses
        columns = head.grad_W.sum(0, dtype=torch.float64)
        found = float(columns.norm() / head.row_norms(head.grad_W).sum().clamp_min(1e-300))
    return found


def fitting_loss(head: Head, knowledge: Knowledge, *, seed: int) -> Leak | None:
    """The answer under a loss that was not declared but explains the update exactly; None where there is none."""
    size = float(head.grad_W.abs().max())
    if not _SANE < size < 1 / _SANE or not is_no_softmax(head) or recognize(head).kind in _DEFENSES:
        return None
    answers = [answer_declared(head, knowledge, loss, seed=seed) for loss in (SquaredError(), BinaryCrossEntropy())]
    fitting = [answer for answer in answers if isinstance(answer, Question) and answer.candidate.explains]
    if len(fitting) != 1:  # small logits of the one look like the other's
        return None
    leak = leak_of(fitting[0])
    reason = f"The gradient does not sum to zero over classes: no cross-entropy, and the loss {leak.loss!r} alone explains it."
    return replace(leak, notes=[reason, *leak.notes]) if leak.exact else None


def advice(head: Head) -> str | None:
    """A sentence where the update cannot come from cross-entropy."""
    if not is_no_softmax(head):
        return None
    return "The gradient does not sum to zero over classes, as it does under cross-entropy: declare the loss (loss='bce', say)."
