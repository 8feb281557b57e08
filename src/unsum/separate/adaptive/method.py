"""The adaptive separator: it looks for the marks of a defense first, and solves for what the defense left."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.separate.adaptive.answer import answer
from unsum.separate.adaptive.apart import Starts, no_starts, tell_apart
from unsum.separate.adaptive.batch import Groups, find_batch
from unsum.separate.adaptive.crude import fit_hits, fit_signs
from unsum.separate.adaptive.missing import with_missing_columns
from unsum.separate.adaptive.recognize import RecognizedDefense, recognize
from unsum.separate.adaptive.rounds import fit_noisy, fit_pruned
from unsum.separate.exact import exact
from unsum.separate.hard_labels import are_soft
from unsum.separate.method import SEPARATORS
from unsum.separate.rgla.newton import rgla_newton

_GOOD = 0.3  # predicted error up to which the exact solver need not be asked as well
_MISFIT = 1.05  # residual, in units of the noise, up to which a fit explains the gradient


@SEPARATORS.register(
    "adaptive",
    summary="recognizes noise, pruning, quantization and Soteria in the update and solves for what they left (unsum)",
    needs="the last layer's gradient; fewer samples than classes",
)
def adaptive(head: Head, knowledge: Knowledge, *, seed: int) -> Leak:
    """Separate a batch whose gradient was tampered with; `notes` say which defense was found and what was done."""
    defense = recognize(head)
    if defense.kind == "none":
        return with_missing_columns(head, knowledge, exact(head, knowledge, seed=seed))
    if defense.kind == "sixteen-bits":
        return _sixteen_bits(head, knowledge, defense, seed)
    batch = None if are_soft(head, knowledge) else find_batch(head, knowledge, defense)
    if batch is not None:
        try:
            if defense.kind == "noise" or defense.kind == "grid":
                return _noisy(head, knowledge, defense, batch, seed)
            return _removed(head, defense, batch, seed)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            pass  # errors of samples that do not differ: their sums cannot be undone
    found = exact(head, knowledge, seed=seed)
    return replace(found, method="adaptive", exact=False, notes=[defense.sentence, *found.notes])


def _noisy(head: Head, knowledge: Knowledge, defense: RecognizedDefense, batch: Groups, seed: int) -> Leak:
    """Rounds over groups; the exact solver where samples share labels, or where the rounds did not settle it."""
    head = _recentered(head, defense)
    fit = fit_noisy(head, batch, defense)
    done = (
        "Features are posterior means: least squares over all rows, and a prior learned from the estimates themselves."
    )
    found = answer(head, batch, defense, tell_apart(head, batch, defense, fit, no_starts), done)
    size = float(head.row_norms(head.grad_W).norm())
    noise = defense.sigma * head.grad_W.numel() ** 0.5
    if found.predicted_error < _GOOD and found.residual * size < _MISFIT * noise:
        return found
    other = exact(head, _told(knowledge, batch), seed=seed)
    if bool((batch.counts > 1).any()) and other.batch_size == batch.size:
        samples = tell_apart(head, batch, defense, fit, lambda: _in_order(other))
        found = answer(head, batch, defense, samples, done)
    if not other.predicted_error < found.predicted_error or other.batch_size != batch.size or defense.kind == "grid":
        return found  # the exact solver takes rounding to a grid for noise, which it is not, and promises too much
    note = "The exact solver expects the smaller error here, so its answer is given."
    return replace(other, method="adaptive", exact=False, notes=[defense.sentence, note, *other.notes])


def _removed(head: Head, defense: RecognizedDefense, batch: Groups, seed: int) -> Leak:
    if defense.kind == "sign":
        fit, done = fit_signs(head, batch), "Only which features a sample has is known, not how large they are."
    elif defense.kind == "random-grid":
        fit, done = (
            fit_hits(head, batch, defense),
            "Features are posterior means given the levels of their label's row.",
        )
    else:
        fit = fit_pruned(head, batch, defense)
        done = "Only surviving entries were fitted; features that pruning hid are set to what is usual below the threshold."
    starts = _logits_first(head, batch, seed) if defense.kind == "pruned" else no_starts
    return answer(head, batch, defense, tell_apart(head, batch, defense, fit, starts), done)


def _logits_first(head: Head, batch: Groups, seed: int) -> Starts:
    """RGLA's equations start where too few columns survived to start from: they need ∇W Wᵀ only, which sums over all."""

    @cache
    def rough() -> Tensor | None:
        if head.b is None or head.grad_b is None:
            return None
        labels = torch.repeat_interleave(batch.labels, batch.counts)
        return _in_order(rgla_newton(head, Knowledge(labels=labels), seed=seed))

    return rough


def _sixteen_bits(head: Head, knowledge: Knowledge, defense: RecognizedDefense, seed: int) -> Leak:
    """The exact solver, told how the entries were rounded."""
    assert defense.dtype is not None
    grad_b = None if head.grad_b is None else head.grad_b.to(defense.dtype)
    found = exact(replace(head, grad_W=head.grad_W.to(defense.dtype), grad_b=grad_b), knowledge, seed=seed)
    return replace(found, method="adaptive", notes=[defense.sentence, *found.notes])


def _told(knowledge: Knowledge, batch: Groups) -> Knowledge:
    """For the exact solver: the labels as granted or as found."""
    return (
        knowledge
        if knowledge.labels is not None
        else Knowledge(labels=torch.repeat_interleave(batch.labels, batch.counts))
    )


def _in_order(leak: Leak) -> Tensor:
    """(B, C) the softmax rows of an answer, sorted by label like the groups."""
    P: Tensor = leak.logits.softmax(1)[leak.labels.argsort(stable=True)]
    return P


def _recentered(head: Head, defense: RecognizedDefense) -> Head:
    """Zeros where the grid point nearest to zero stands: most of what was rounded to it was nothing, or next to it."""
    if defense.lattice is None:
        return head
    grad_W = head.grad_W
    return replace(head, grad_W=grad_W.masked_fill(grad_W.abs() <= 0.5 * defense.lattice.step, 0.0))
