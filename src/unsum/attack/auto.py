"""The one place that chooses the attack: `auto` goes through `CHOICES` from the top and keeps the best answer.

A choice that applies is attempted; its answer takes the place of the one before, with the reason as its first note. Every
answer and every refusal stays in `Leak.tried`, so that an audit can count the strongest sample by sample. `unsum list` prints the
list. A further attack is one more row.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from unsum.attack.case import Case, separate_by
from unsum.attack.named import name_labels, rules_apply
from unsum.attack.options import AUTO, AttackOptions
from unsum.attack.reach import UNEXPLAINED, blind_at_the_head, is_hopeless, most_samples
from unsum.certify.claim import TRUSTED_ERROR
from unsum.deadline import out_of_time, trying
from unsum.equation.observation import observe
from unsum.errors import UnsumError
from unsum.head import Head, find_head
from unsum.knowledge import Knowledge
from unsum.labels import LABEL_RULES
from unsum.leak import Attempt, Leak
from unsum.models.language import is_tied
from unsum.progress import Progress
from unsum.separate.crowded import suits_crowded
from unsum.separate.method import relative_misfit
from unsum.spans.tokens import is_patched
from unsum.update import Update

_CROWD_RULE = "ilrg"
_KNOWN = 1e-2  # relative distance, or error, within which a sample is one that another answer has
_CLEARLY = 1.5  # times as much of the gradient left unexplained, which shrinking noisy features does not do


@dataclass(frozen=True)
class Choice:
    """A method, when it is tried in words and as a test, and what the user is told where its answer replaces another."""

    method: str
    when: str
    applies: Callable[[Case], bool]
    attempt: Callable[[Case], Leak | None]  # None where the answer before it stays
    reason: str = ""  # with {before} and {after}, the two leaks
    adds: bool = False  # its answer is the one before, with more beside it
    brief: bool = False  # it costs next to nothing, and is tried when time is over, too

    @property
    def says(self) -> str:
        """The reason without its figures."""
        return re.sub(r"\{[^}]*\}", "…", self.reason)

    def told(self, before: Leak | None, after: Leak) -> Leak:
        if not self.reason:
            return after
        return replace(after, notes=[self.reason.format(before=before, after=after), *after.notes])


class NothingReadError(UnsumError):
    """Every attack refused the update, or read nothing that stands for a sample; `tried` has them all."""

    def __init__(self, tried: list[Attempt]) -> None:
        super().__init__(next((attempt.refused for attempt in tried if attempt.refused), "No attack applies."))
        self.tried = tried


def auto(model: nn.Module, update: Update, options: AttackOptions, progress: Progress) -> Leak:
    """The best answer of the methods that suit this update, or of the one that the options name."""
    if options.method != AUTO:
        return only(options.method, model, update, options, progress)
    return _best(CHOICES, Case(model, update, options, progress))


def only(method: str, model: nn.Module, update: Update, options: AttackOptions, progress: Progress) -> Leak:
    """The answer of one separator, whatever others would say."""
    case = Case(model, update, options, progress)
    return replace(case.separate(method), tried=case.tried)


def quick(method: str, model: nn.Module, update: Update, options: AttackOptions, progress: Progress) -> Leak:
    """The answer of one separator or, where that is not certain, what the rows of the dense layers hold."""
    alone = Choice(method, "always", lambda _case: True, lambda case: case.separate(method))
    return _best((alone, RATIO), Case(model, update, options, progress))


def _best(choices: tuple[Choice, ...], case: Case) -> Leak:
    for place, choice in enumerate(choices, 1):
        if case.best is not None and not choice.brief and out_of_time("further attacks"):
            continue
        trying(f"the attack {choice.method!r}", place, len(choices))
        try:
            found = choice.attempt(case) if choice.applies(case) else None
        except UnsumError as reason:  # another one may not need what this one misses
            case.tried.append(Attempt(choice.method, refused=str(reason)))
            continue
        if found is not None:
            case.best, case.by = choice.told(case.best, found), case.by if choice.adds else choice.method
    if case.best is None:
        raise NothingReadError(case.tried)
    unfollowed = [one.refused for one in case.tried if one.method == "local-steps" and one.refused]
    if unfollowed and case.by != "spans":  # the others took several steps for one, and vouch for nothing
        return replace(case.best, exact=False, tried=case.tried, notes=[*unfollowed, *case.best.notes])
    return replace(case.best, tried=case.tried)


def _several_steps(case: Case) -> bool:
    return not case.language and case.options.follows_steps(case.update)


def _nothing_usable(case: Case) -> bool:
    """Nothing answered yet, or `local-steps` did and expects to have failed."""
    if case.language:
        return False
    return case.best is None or (case.by == "local-steps" and not case.best.exact and is_hopeless(case.best))


def _crowd(case: Case) -> bool:
    known = case.options
    possible = known.labels is not None and not known.other_loss and _nothing_usable(case)
    return possible and suits_crowded(case.head, Knowledge(labels=known.labels))


def _crowd_of_known_size(case: Case) -> bool:
    known = case.options
    possible = known.labels is None and not known.other_loss and _nothing_usable(case)
    return possible and known.batch_size is not None and known.batch_size >= case.head.classes


def _with_found_labels(case: Case) -> Leak | None:
    """`crowded` with the labels that a rule finds; they are not recorded as granted. None where that promises nothing."""
    evidence = case.options.clues(case.model, case.update)
    labels = LABEL_RULES[_CROWD_RULE](evidence)
    if not suits_crowded(case.head, Knowledge(labels=labels)):
        return None
    told = replace(case.options, labels=labels, batch_size=None)
    leak = separate_by("crowded", case.model, case.update, told, case.progress)
    leak = replace(leak, knowledge=evidence.knowledge)
    blind = blind_at_the_head(case.head, case.update, leak)
    case.tried.append(Attempt(f"crowded, labels by {_CROWD_RULE}", leak, blind=blind))
    return None if is_hopeless(leak) else leak


def _marked(case: Case) -> bool:
    """A defense left its marks, or columns are zero: held back, as Soteria does, or of units that are off for all samples."""
    return case.uncertain and (case.defended or not bool(case.head.grad_W.any(0).all()))


def _positions(case: Case) -> Leak | None:
    found = case.separate("exact")
    before = [] if case.best is None else case.best.notes
    return replace(found, notes=[*before, *found.notes]) if found.exact else None


def _weights_alone(case: Case) -> Leak | None:
    name = ".".join(filter(None, [find_head(case.model)[0], "bias"]))
    others = {key: gradient for key, gradient in case.update.gradients.items() if key != name}
    found = case.separate("exact", replace(case.update, gradients=others), " without the bias")
    return found if found.exact else None


def _unequal(case: Case) -> Leak | None:
    """Samples with weights of their own, where they are determined and the answer before is unsure or lacks some of them."""
    found = case.separate("uneven")
    if not found.predicted_error < TRUSTED_ERROR:
        return None
    apart = torch.cdist(found.features.double(), case.answer.features.double()).amin(1)
    lacking = apart > _KNOWN * found.features.double().norm(dim=1)
    return found if bool(lacking.any()) or not case.answer.predicted_error < _KNOWN else None


def _adapted(case: Case) -> Leak | None:
    found = case.separate("adaptive")
    better = found.predicted_error < case.answer.predicted_error
    return found if better and not _contradicted(case.head, found, case.answer) else None


def _contradicted(head: Head, other: Leak, leak: Leak) -> bool:
    """Whether the two found other labels and the second explains the gradient better: an error predicted for the wrong batch
    says nothing. An answer without hope contradicts nobody: pruned gradients are best fitted by too many samples."""
    if is_hopeless(leak) or other.labels.sort().values.tolist() == leak.labels.sort().values.tolist():
        return False
    left = [relative_misfit(head, one.logits, one.targets, one.scale * one.features) for one in (other, leak)]
    return left[0] > _CLEARLY * left[1]


def _more_than_the_head(case: Case) -> bool:
    """Whether the head's gradient has its full rank, so that the head alone cannot tell the samples apart."""
    if not _nothing_usable(case) or case.options.labels is not None:
        return False
    loss = "cross-entropy" if case.options.loss is None else str(case.options.loss)
    classes, width = case.head.W.shape
    full = observe(case.head, None).rank >= most_samples(classes, width, loss)
    # In this order: marks of a defense are looked for in passes of their own. Rounding weights after every step looks like noise.
    return full and not (case.changed if _several_steps(case) else case.defended)


def _whole_below(method: str, case: Case) -> Leak | None:
    """The answer where it is certain, explains the gradient, or has the first local steps: the head cannot do better."""
    found = case.read_below(method)
    explains = found.residual < UNEXPLAINED or _several_steps(case)
    return found if found.exact or (explains and found.batch_size > 0 and not is_hopeless(found)) else None


def _spans_not_tried(case: Case) -> bool:
    tried = any(attempt.method == "spans" for attempt in case.tried)
    return not (tried or case.language or (case.best and case.best.exact) or case.changed)


def _better_spans(case: Case) -> Leak | None:
    """The spans' answer where it is certain, or where the head has none that is worth anything."""
    found = case.read_below("spans")
    return found if found.exact or (case.useless and found.batch_size and not is_hopeless(found)) else None


def _by_rows(case: Case) -> Leak | None:
    found = case.read_rows()
    return found if found.batch_size and case.useless else None


RATIO = Choice(
    "ratio",
    "no answer is certain: every row of every dense layer over its bias",
    lambda case: not case.language and (case.best is None or not case.best.exact),
    _by_rows,
    "The last layer gave no usable answer, so inputs that some unit of the first layer saw alone are given (ratio).",
)
CHOICES = (
    Choice("text", "the model is a language model", lambda case: case.language, lambda case: case.separate("text")),
    Choice(
        "exact",
        "the text is not certain, and the head does not share its weights with the embedding",
        lambda case: case.language and not (case.best and case.best.exact) and not is_tied(case.model),
        _positions,
        "The sequences were not found, so positions are given in no order: the head's equation needs no forward pass.",
    ),
    Choice(
        "tokens",
        "the model reads patches of the picture as tokens (a vision transformer)",
        lambda case: not case.language and not _several_steps(case) and is_patched(case.model),
        partial(_whole_below, "tokens"),
        "The first layers of this transformer gave the pictures themselves (tokens).",
    ),
    Choice(
        "spans",
        "the head's gradient has its full rank: two layers below it may hold more samples than it can tell apart",
        _more_than_the_head,
        partial(_whole_below, "spans"),
        "The last layer alone cannot tell so many samples apart; two layers below it can (spans).",
    ),
    Choice(
        "local-steps",
        "the update is a change of weights, and says that the client took several steps, which the layers below did not tell",
        lambda case: case.best is None and _several_steps(case),
        lambda case: case.separate("local-steps"),
    ),
    Choice(
        "crowded",
        "the labels are granted, and there are more samples than directions in the head's gradient",
        _crowd,
        lambda case: case.separate("crowded"),
    ),
    Choice(
        "crowded",
        "the batch size is granted and no smaller than the number of classes: with the labels that the rule ilrg finds",
        _crowd_of_known_size,
        _with_found_labels,
        "Labels were found by the rule 'ilrg'.",
    ),
    Choice(
        "exact",
        "no method above answered; local-steps takes the steps for one itself where it cannot follow them",
        lambda case: case.best is None and not case.language,
        lambda case: case.separate("exact"),
    ),
    Choice(
        "exact",
        "the exact solver is not certain, and no defense left its marks: once more, without the bias",
        lambda case: case.by == "exact" and case.uncertain and case.head.grad_b is not None and not case.defended,
        _weights_alone,
        "The gradients of the head's weights and of its bias disagree, as clipping each by itself makes them; "
        "the weights' alone was used.",
    ),
    Choice(
        "uneven",
        "the exact solver is not certain, and no defense left its marks: with a weight for every sample",
        lambda case: case.by == "exact" and case.uncertain and not case.defended,
        _unequal,
        "Samples of equal weights do not explain the gradient, samples of unequal ones do.",
    ),
    Choice(
        "adaptive",
        "the exact solver is not certain, and a defense left its marks",
        _marked,
        _adapted,
        "The {before.method} solver predicted an error of {before.predicted_error:.1g}, the adaptive separator one of "
        "{after.predicted_error:.1g}, so its answer is given.",
    ),
    Choice(
        "fgla",
        "the exact solver expects to have failed",
        lambda case: case.by in ("exact", "local-steps") and case.uncertain and is_hopeless(case.answer),
        lambda case: case.separate("fgla"),
        "The {before.method} solver predicted an error of {before.predicted_error:.1g}, so the ratio method (fgla) is used.",
    ),
    Choice(
        "spans",
        "no answer is certain, and the spans were not tried yet",
        _spans_not_tried,
        _better_spans,
        "The last layer gave no certain answer; two layers below it gave this one (spans).",
    ),
    RATIO,
    Choice(
        "label rules",
        "no answer is certain: every label rule that applies, for the labels alone",
        rules_apply,
        name_labels,
        adds=True,
        brief=True,
    ),
)
