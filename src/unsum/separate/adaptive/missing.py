"""Soteria: whole columns of the head's gradient were not sent, so that part of every logit is unknown."""

from __future__ import annotations

from dataclasses import replace

from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.separate.adaptive.answer import answer
from unsum.separate.adaptive.apart import no_starts, tell_apart
from unsum.separate.adaptive.batch import find_batch
from unsum.separate.adaptive.recognize import RecognizedDefense
from unsum.separate.adaptive.rounds import fit_noisy
from unsum.separate.hard_labels import are_soft

_LISTED = 8  # column numbers that a note names


def with_missing_columns(head: Head, knowledge: Knowledge, leak: Leak) -> Leak:
    """The exact answer as it is, unless it does not explain the gradient and zero columns may be why.

    A ReLU that is silent for the whole batch leaves zero columns as well; these change no logit, and the exact answer holds.
    """
    leak = replace(leak, method="adaptive")
    empty = (~head.grad_W.any(0)).nonzero()[:, 0].tolist()
    if leak.exact or not empty or len(empty) == head.grad_W.shape[1] or are_soft(head, knowledge):
        return leak
    named = ", ".join(map(str, empty[:_LISTED])) + (f" and {len(empty) - _LISTED} more" if len(empty) > _LISTED else "")
    sentence = (
        f"{len(empty)} of {head.grad_W.shape[1]} columns of the head's gradient are zero and the others do not explain it by "
        f"themselves: features were held back (as Soteria does). They are given as zeros: {named}."
    )
    defense = RecognizedDefense("columns", sentence)
    batch = find_batch(head, knowledge, defense)
    if batch is None:
        return replace(leak, notes=[sentence, *leak.notes])
    fit = fit_noisy(head, batch, defense)
    found = answer(head, batch, defense, tell_apart(head, batch, defense, fit, no_starts), _DONE)
    others = (
        float(fit.logits.softmax(1).mean()) * len(batch.labels) ** 0.5
    )  # what unknown logits leave of other samples
    found = replace(found, predicted_error=max(found.predicted_error, others))
    if leak.predicted_error < found.predicted_error:
        return replace(leak, notes=[sentence, *leak.notes])
    return found


_DONE = "The columns that were sent are solved for with the softmax of what is known."
