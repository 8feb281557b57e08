"""The rows of `auto`: which method is tried when, from the first to the last.

A row is a function from a `Case` to an answer, declared with its place, its condition and what the
user is told where its answer replaces another.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from unsum.attack.auto import RATIO, row
from unsum.attack.case import Case
from unsum.attack.named import name_labels, named_and_useless, rules_apply, separate_named
from unsum.attack.reach import UNEXPLAINED, is_hopeless, most_samples
from unsum.certify.claim import TRUSTED_ERROR
from unsum.equation.observation import observe
from unsum.head import Head, find_head
from unsum.knowledge import Knowledge
from unsum.labels import LABEL_RULES
from unsum.leak import Leak
from unsum.models.language import is_tied
from unsum.separate.crowded import suits_crowded
from unsum.separate.method import relative_misfit
from unsum.spans.tokens import is_patched

_CROWD_RULE = "ilrg"
# [relative] distance, or error, within which a sample is one that another answer has.
# Chosen by: arbitrary margin above rounding.
_KNOWN = 1e-2
# [times] as much of the gradient left unexplained, which shrinking noisy features does not do.
# Chosen by: arbitrary margin.
_CLEARLY = 1.5


def _several_steps(case: Case) -> bool:
    return not case.language and case.options.follows_steps(case.update)


def _certain(case: Case) -> bool:
    return case.best is not None and case.best.exact


def _exact_alone(case: Case) -> bool:
    """Whether the exact solver answered, is not certain, and no defense is the reason."""
    return case.by == "exact" and case.uncertain and not case.defended


def _nothing_usable(case: Case) -> bool:
    """Nothing answered yet, or `local-steps` did and expects to have failed."""
    if case.language:
        return False
    return case.best is None or (
        case.by == "local-steps" and not case.best.exact and is_hopeless(case.best)
    )


def _crowd(case: Case) -> bool:
    known = case.options
    possible = known.labels is not None and not known.other_loss and _nothing_usable(case)
    return possible and suits_crowded(case.head, Knowledge(labels=known.labels))


def _crowd_of_known_size(case: Case) -> bool:
    known = case.options
    possible = known.labels is None and not known.other_loss and _nothing_usable(case)
    return possible and known.batch_size is not None and known.batch_size >= case.head.classes


@row(
    "crowded, with labels by ilrg",
    "crowded",
    70,
    when="the batch size is granted and no smaller than the number of classes: with the labels "
    "that the rule ilrg finds",
    applies=_crowd_of_known_size,
    reason="Labels were found by the rule 'ilrg'.",
)
def _with_found_labels(case: Case) -> Leak | None:
    """`crowded` with the labels that a rule finds; they are not recorded as granted. None where
    that promises nothing."""
    evidence = case.options.clues(case.model, case.update)
    labels = LABEL_RULES[_CROWD_RULE](evidence)
    if not suits_crowded(case.head, Knowledge(labels=labels)):
        return None
    leak = case.separate_with(labels, _CROWD_RULE, "crowded")
    return None if is_hopeless(leak) else leak


def _marked(case: Case) -> bool:
    """A defense left its marks, or columns are zero: held back, as Soteria does, or of units that
    are off for all samples."""
    return case.uncertain and (case.defended or not bool(case.head.grad_W.any(0).all()))


@row(
    "exact, positions of a text",
    "exact",
    20,
    when="the text is not certain, and the head does not share its weights with the embedding",
    applies=lambda case: case.language and not _certain(case) and not is_tied(case.model),
    reason="The sequences were not found, so positions are given in no order: the head's equation "
    "needs no forward pass.",
)
def _positions(case: Case) -> Leak | None:
    found = case.separate("exact")
    before = [] if case.best is None else case.best.notes
    return replace(found, notes=[*before, *found.notes]) if found.exact else None


@row(
    "exact, without the bias",
    "exact",
    90,
    when=(
        "the exact solver is not certain, and no defense left its marks: once more, without the "
        "bias"
    ),
    applies=lambda case: _exact_alone(case) and case.head.grad_b is not None,
    reason="The gradients of the head's weights and of its bias disagree, as clipping each by "
    "itself makes them; the weights' alone was used.",
)
def _weights_alone(case: Case) -> Leak | None:
    name = ".".join(filter(None, [find_head(case.model)[0], "bias"]))
    others = {key: gradient for key, gradient in case.update.gradients.items() if key != name}
    found = case.separate("exact", replace(case.update, gradients=others), " without the bias")
    return found if found.exact else None


@row(
    "uneven",
    "uneven",
    100,
    when=(
        "the exact solver is not certain, and no defense left its marks: with a weight for every "
        "sample"
    ),
    applies=_exact_alone,
    reason="Samples of equal weights do not explain the gradient, samples of unequal ones do.",
)
def _unequal(case: Case) -> Leak | None:
    """Samples with weights of their own, where they are determined and the answer before is unsure
    or lacks some of them."""
    found = case.separate("uneven")
    if not found.predicted_error < TRUSTED_ERROR:
        return None
    apart = torch.cdist(found.features.double(), case.answer.features.double()).amin(1)
    lacking = apart > _KNOWN * found.features.double().norm(dim=1)
    return found if bool(lacking.any()) or not case.answer.predicted_error < _KNOWN else None


@row(
    "adaptive",
    "adaptive",
    110,
    when="the exact solver is not certain, and a defense left its marks",
    applies=_marked,
    reason="The {before.method} solver predicted an error of {before.predicted_error:.1g}, the "
    "adaptive separator one of {after.predicted_error:.1g}, so its answer is given.",
)
def _adapted(case: Case) -> Leak | None:
    found = case.separate("adaptive")
    better = found.predicted_error < case.answer.predicted_error
    return found if better and not _contradicted(case.head, found, case.answer) else None


def _contradicted(head: Head, other: Leak, leak: Leak) -> bool:
    """Whether the two found other labels and the second explains the gradient better: an error
    predicted for the wrong batch says nothing. An answer without hope contradicts nobody: pruned
    gradients are best fitted by too many samples."""
    if (
        is_hopeless(leak)
        or other.labels.sort().values.tolist() == leak.labels.sort().values.tolist()
    ):
        return False
    left = [
        relative_misfit(head, one.logits, one.targets, one.scale * one.features)
        for one in (other, leak)
    ]
    return left[0] > _CLEARLY * left[1]


def _more_than_the_head(case: Case) -> bool:
    """Whether the head's gradient has its full rank, so that the head alone cannot tell the samples
    apart."""
    if not _nothing_usable(case) or case.options.labels is not None:
        return False
    loss = "cross-entropy" if case.options.loss is None else str(case.options.loss)
    classes, width = case.head.W.shape
    full = observe(case.head, None).rank >= most_samples(classes, width, loss)
    # In this order: marks of a defense are looked for in passes of their own. Rounding weights
    # after every step looks like noise.
    return full and not (case.changed if _several_steps(case) else case.defended)


def _whole_below(method: str, case: Case) -> Leak | None:
    """The answer where it is certain, explains the gradient, or has the first local steps: the head
    cannot do better."""
    found = case.read_below(method)
    explains = found.residual < UNEXPLAINED or _several_steps(case)
    return (
        found
        if found.exact or (explains and found.batch_size > 0 and not is_hopeless(found))
        else None
    )


def _spans_not_tried(case: Case) -> bool:
    tried = any(attempt.method == "spans" for attempt in case.tried)
    return not (tried or case.language or _certain(case) or case.changed)


@row(
    "spans, where no answer is certain",
    "spans",
    130,
    when="no answer is certain, and the spans were not tried yet",
    applies=_spans_not_tried,
    reason="The last layer gave no certain answer; two layers below it gave this one (spans).",
    at_head=False,
    follows_steps=True,
)
def _better_spans(case: Case) -> Leak | None:
    """The spans' answer where it is certain, where the head has none that is worth anything, or
    where it follows the local steps that the head's takes for one."""
    found = case.read_below("spans")
    usable = found.batch_size > 0 and not is_hopeless(found)
    better = case.useless or _follows_better(case, found)
    return found if found.exact or (usable and better) else None


def _follows_better(case: Case, found: Leak) -> bool:
    """Whether several steps were declared, and this answer, which unrolls them, explains the
    movement; one that takes them for one step has to be wrong, whatever error it predicts."""
    if not _several_steps(case) or not found.residual < UNEXPLAINED:
        return False
    followed = case.by == "local-steps"
    return not followed or found.predicted_error < case.answer.predicted_error


@row(
    RATIO,
    "ratio",
    140,
    when="no answer is certain: every row of every dense layer over its bias",
    applies=lambda case: not case.language and not _certain(case),
    reason="The last layer gave no usable answer, so inputs that some unit of the first layer saw "
    "alone are given (ratio).",
    at_head=False,
)
def _by_rows(case: Case) -> Leak | None:
    found = case.read_rows()
    return found if found.batch_size and case.useless else None


row(
    "text",
    "text",
    10,
    when="the model is a language model",
    applies=lambda case: case.language,
)(lambda case: case.separate("text"))
row(
    "tokens",
    "tokens",
    30,
    when="the model reads patches of the picture as tokens (a vision transformer)",
    applies=lambda case: not case.language and not _several_steps(case) and is_patched(case.model),
    reason="The first layers of this transformer gave the pictures themselves (tokens).",
    at_head=False,
)(partial(_whole_below, "tokens"))
row(
    "spans",
    "spans",
    40,
    when=(
        "the head's gradient has its full rank: two layers below it may hold more samples than it "
        "can tell apart"
    ),
    applies=_more_than_the_head,
    reason=(
        "The last layer alone cannot tell so many samples apart; two layers below it can (spans)."
    ),
    at_head=False,
    follows_steps=True,
)(partial(_whole_below, "spans"))
row(
    "local-steps",
    "local-steps",
    50,
    when="the update is a change of weights, and says that the client took several steps, which "
    "the layers below did not tell",
    applies=lambda case: case.best is None and _several_steps(case),
)(lambda case: case.separate("local-steps"))
row(
    "crowded",
    "crowded",
    60,
    when=(
        "the labels are granted, and there are more samples than directions in the head's gradient"
    ),
    applies=_crowd,
)(lambda case: case.separate("crowded"))
row(
    "exact",
    "exact",
    80,
    when=(
        "no method above answered; local-steps takes the steps for one itself where it cannot "
        "follow them"
    ),
    applies=lambda case: case.best is None and not case.language,
)(lambda case: case.separate("exact"))
row(
    "fgla",
    "fgla",
    120,
    when="the exact solver expects to have failed",
    applies=lambda case: (
        case.by in ("exact", "local-steps") and case.uncertain and is_hopeless(case.answer)
    ),
    reason="The {before.method} solver predicted an error of {before.predicted_error:.1g}, so the "
    "ratio method (fgla) is used.",
)(lambda case: case.separate("fgla"))
row(
    "label rules",
    "label rules",
    150,
    when="no answer is certain: every label rule that applies, for the labels alone",
    applies=rules_apply,
    adds=True,
    brief=True,
)(name_labels)
row(
    "exact, with labels of rules",
    "exact",
    160,
    when=(
        "no answer is worth anything, no noise was added, and rules name labels: once more with "
        "these, by adaptive and fgla as well"
    ),
    applies=named_and_useless,
)(separate_named)
