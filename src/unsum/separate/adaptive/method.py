"""The adaptive separator: it looks for the marks of a defense first, and solves for what the
defense left."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor, nn

from unsum.certify.doubts.merged import proportional
from unsum.certify.question import name_some
from unsum.equation.observation import observe
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.labels.bias_sign import are_soft
from unsum.labels.feature_prior import FeaturePrior, feature_prior
from unsum.leak import Leak
from unsum.separate.adaptive.apart import ToldApart, tell_apart
from unsum.separate.adaptive.batch import Groups, find_batch
from unsum.separate.adaptive.recognize import RecognizedDefense, recognize
from unsum.separate.adaptive.rounds import fit_hits, fit_noisy, fit_pruned, fit_signs
from unsum.separate.exact import exact
from unsum.separate.method import SEPARATORS, relative_misfit, uncertified
from unsum.separate.rgla.newton import rgla_newton
from unsum.update import Update

_GOOD = 0.3  # predicted error up to which the exact solver need not be asked as well
# [probability] of every label, below which the exact solver is not asked. Chosen by: arbitrary
_SURE = 0.99
_LITTLE = 0.9  # [1] predicted error from which it is not asked either. Chosen by: arbitrary
_MISFIT = 1.05  # residual, in units of the noise, up to which a fit explains the gradient
# rounding to a grid errs by up to half a step, which is √3 standard deviations of an even spread
_GRID = 3**0.5
# times the noise that posterior means leave: they are smaller than what they are the means of
_SHRUNK = 1.3
_MUCH = 0.05  # share of the gradient left over from which a person is told


@SEPARATORS.register(
    "adaptive",
    summary=(
        "recognizes noise, pruning, quantization and Soteria in the update and solves for what "
        "they left (unsum)"
    ),
    needs="the last layer's gradient; fewer samples than classes",
)
def adaptive(
    head: Head,
    knowledge: Knowledge,
    *,
    seed: int,
    model: nn.Module | None = None,
    update: Update | None = None,
) -> Leak:
    """Separate a batch whose gradient was tampered with; `notes` say which defense was found and
    what was done."""
    defense = recognize(head)
    if defense.kind == "none":
        return _with_missing_columns(head, knowledge, exact(head, knowledge, seed=seed))
    if defense.kind == "sixteen-bits":
        assert defense.dtype is not None  # the exact solver is told how the entries were rounded
        grad_b = None if head.grad_b is None else head.grad_b.to(defense.dtype)
        found = exact(
            replace(head, grad_W=head.grad_W.to(defense.dtype), grad_b=grad_b), knowledge, seed=seed
        )
        return replace(found, method="adaptive", notes=[defense.sentence, *found.notes])
    prior = None
    if defense.kind == "noise" and model is not None:
        prior = feature_prior(head, model, knowledge.public, seed)
    most = None if update is None else update.num_examples
    soft = are_soft(head, knowledge)
    batch = None if soft else find_batch(head, knowledge, defense, prior, most)
    if batch is not None:
        try:
            if defense.is_noise:
                found = _noisy(head, knowledge, defense, batch, seed, prior)
                used = knowledge.public if prior is not None else None
                return replace(found, knowledge=replace(found.knowledge, public=used))
            return _removed(head, defense, batch, seed)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            pass  # errors of samples that do not differ: their sums cannot be undone
    found = exact(head, knowledge, seed=seed)
    return replace(found, method="adaptive", exact=False, notes=[defense.sentence, *found.notes])


def _noisy(
    head: Head,
    knowledge: Knowledge,
    defense: RecognizedDefense,
    batch: Groups,
    seed: int,
    prior: FeaturePrior | None,
) -> Leak:
    """Rounds over groups; the exact solver where samples share labels, or where the rounds did not
    settle it."""
    if defense.lattice is not None:
        # Most of what was rounded to the grid point nearest to zero was nothing, or next to it.
        head = replace(
            head,
            grad_W=head.grad_W.masked_fill(head.grad_W.abs() <= 0.5 * defense.lattice.step, 0.0),
        )
    fit = fit_noisy(head, batch, defense, prior)
    whence = f"{prior.public} public inputs" if prior is not None and prior.public else ""
    done = (
        "Features are posterior means: least squares over all rows, and a prior learned from the "
        f"estimates themselves{f' and from {whence}' if whence else ''}."
    )
    samples = tell_apart(head, batch, defense, fit)
    found = answer(head, batch, defense, samples, done)
    if float(batch.sure.min()) < _SURE or found.predicted_error > _LITTLE:
        return found  # the exact solver takes labels for certain, and noise for small
    size = float(head.row_norms(head.grad_W).norm())
    noise = defense.sigma * head.grad_W.numel() ** 0.5
    explained = found.residual * size < _MISFIT * noise
    # Of samples that are all alike, a mean has a small error too, and tells none from another.
    if found.predicted_error < _GOOD and explained and not samples.merged:
        return found
    told = knowledge if knowledge.labels is not None else Knowledge(labels=batch.members)
    other = exact(head, told, seed=seed)
    if bool((batch.counts > 1).any()) and other.batch_size == batch.size:
        samples = tell_apart(head, batch, defense, fit, lambda: _in_order(other))
        found = answer(head, batch, defense, samples, done)
    if (
        not other.predicted_error < found.predicted_error
        or other.batch_size != batch.size
        or defense.kind == "grid"
    ):
        # the exact solver takes rounding to a grid for noise, which it is not, and promises too
        # much
        return found
    note = "The exact solver expects the smaller error here, so its answer is given."
    return replace(
        other, method="adaptive", exact=False, notes=[defense.sentence, note, *other.notes]
    )


def _removed(head: Head, defense: RecognizedDefense, batch: Groups, seed: int) -> Leak:
    if defense.kind == "sign":
        fit, done = (
            fit_signs(head, batch),
            "Only which features a sample has is known, not how large they are.",
        )
    elif defense.kind == "random-grid":
        fit = fit_hits(head, batch, defense)
        done = "Features are posterior means given the levels of their label's row."
    else:
        fit = fit_pruned(head, batch, defense)
        done = (
            "Only surviving entries were fitted; features that pruning hid are set to what is "
            "usual below the threshold."
        )
    # RGLA's equations start where too few columns survived to start from: they need ∇W Wᵀ only,
    # which sums over all.
    rough = cache(lambda: _in_order(rgla_newton(head, Knowledge(labels=batch.members), seed=seed)))
    started = defense.kind == "pruned" and head.b is not None and head.grad_b is not None
    return answer(
        head,
        batch,
        defense,
        tell_apart(head, batch, defense, fit, rough if started else None),
        done,
    )


def _in_order(leak: Leak) -> Tensor:
    """(B, C) the softmax rows of an answer, sorted by label like the groups."""
    return leak.logits.softmax(1)[leak.labels.argsort(stable=True)]


def _with_missing_columns(head: Head, knowledge: Knowledge, leak: Leak) -> Leak:
    """The exact answer, unless it does not explain the gradient and zero columns may be why:
    Soteria sends some not at all.

    A ReLU that is silent for the whole batch leaves zero columns as well; these change no logit,
    and the exact answer holds.
    """
    leak = replace(leak, method="adaptive")
    empty = (~head.grad_W.any(0)).nonzero()[:, 0].tolist()
    if leak.exact or not empty or len(empty) == head.grad_W.shape[1] or are_soft(head, knowledge):
        return leak
    if observe(head, None).rank >= min(head.classes - 1, head.grad_W.shape[1] - len(empty)):
        # more samples than the head tells apart, which explains that nothing fits; these units are
        # off for all
        return leak
    sentence = (
        f"{len(empty)} of {head.grad_W.shape[1]} columns of the head's gradient are zero and the "
        "others do not explain it by themselves: features may have been held back (as Soteria "
        f"does). They are given as zeros: {name_some(empty)}."
    )
    defense = RecognizedDefense("columns", sentence)
    batch = find_batch(head, knowledge, defense)
    if batch is None:
        return replace(leak, notes=[sentence, *leak.notes])
    fit = fit_noisy(head, batch, defense)
    done = "The columns that were sent are solved for with the softmax of what is known."
    found = answer(head, batch, defense, tell_apart(head, batch, defense, fit), done)
    # What unknown logits leave of other samples.
    others = float(fit.logits.softmax(1).mean()) * len(batch.labels) ** 0.5
    found = replace(found, predicted_error=max(found.predicted_error, others))
    if leak.predicted_error < found.predicted_error:
        return replace(leak, notes=[sentence, *leak.notes])
    return found


def answer(
    head: Head, batch: Groups, defense: RecognizedDefense, samples: ToldApart, done: str
) -> Leak:
    """A leak that claims no exactness: what a defense removed is estimated, not known."""
    targets = torch.nn.functional.one_hot(samples.labels, head.classes).double()
    features = samples.features
    residual = relative_misfit(head, samples.logits, targets, batch.scale * features)
    unexplained = _unexplained(head, defense, residual)
    notes = [defense.sentence, done, *batch.notes]
    for group in samples.merged:
        members = ", ".join(map(str, group))
        notes.append(
            f"Samples {members} share a label and cannot be told apart after that; each is their "
            "mean."
        )
    if not batch.size_known and len(batch.labels) == 1:
        notes.append(
            "All samples found share one label, so nothing tells how many there were; give "
            "batch_size= if you know it."
        )
    if not unexplained < _MUCH:
        notes.append(
            f"The answer leaves {100 * unexplained:.2g} % of the gradient unexplained beyond the "
            "noise: labels may be wrong."
        )
    # none at all is no estimate
    predicted = max(float(samples.errors.max()), batch.size * unexplained)
    leak = uncertified(
        "adaptive", head, samples.logits, targets, features, notes,
        residual=residual, predicted_error=predicted or math.inf, scale=batch.scale,
    )  # fmt: skip
    # What the noise does not explain was done by something else, and how far that moves features is
    # not predicted. Neither is it where one direction was shared out among labels: a sample that
    # the model is sure of, and sends nothing, looks like that.
    explained = unexplained < _MUCH and batch.size * unexplained <= float(samples.errors.max())
    return replace(
        leak,
        errors=samples.errors,
        predicts=explained and not bool(proportional(features, samples.labels).any()),
    )


def _unexplained(head: Head, defense: RecognizedDefense, residual: float) -> float:
    """What the answer leaves of the gradient beyond the noise, relative; 0 where entries are
    missing, which leave more.

    Errors of a posterior hold for the batch that was taken for granted. With a label missed or made
    up the answer no longer explains the gradient; what is left of it may all belong to one sample,
    B times as large a part of that one.
    """
    size = float(head.row_norms(head.grad_W).norm())
    if not defense.is_noise or size == 0:
        return 0.0
    noise = (
        defense.sigma
        * (_GRID if defense.kind == "grid" else _SHRUNK)
        * head.grad_W.numel() ** 0.5
        / size
    )
    return float(max(residual**2 - noise**2, 0.0) ** 0.5)
