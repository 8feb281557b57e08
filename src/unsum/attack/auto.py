"""The one place that chooses the attack: `auto` goes through `CHOICES` from the top and keeps the best answer.

A choice that applies is attempted; its answer takes the place of the one before, with the reason as its first note.
`unsum list` prints the list.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from torch import nn

from unsum.attack.options import AttackOptions
from unsum.attack.pictures import HOPELESS
from unsum.errors import UnsumError
from unsum.head import Head, find_head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.models.language import is_language_model, is_tied
from unsum.progress import Progress
from unsum.separate import separate
from unsum.separate.adaptive import recognize
from unsum.separate.crowded import suits_crowded
from unsum.separate.misfit import relative_misfit
from unsum.update import Update

_CLEARLY = 1.5  # times as much of the gradient left unexplained, which shrinking noisy features does not do


@dataclass
class Case:
    """One update under attack, and the best answer so far with the method that gave it."""

    model: nn.Module
    update: Update
    options: AttackOptions
    progress: Progress
    best: Leak | None = None
    by: str = ""

    @property
    def answer(self) -> Leak:
        assert self.best is not None  # choices that improve on an answer come after those that give one
        return self.best

    @cached_property
    def language(self) -> bool:
        return is_language_model(self.model)

    @cached_property
    def head(self) -> Head:
        return Head.of(self.model, self.update, self.options.device)

    @cached_property
    def defended(self) -> bool:
        return recognize(self.head).kind != "none"

    @property
    def uncertain(self) -> bool:
        """Whether the solver answered, is not certain, and others may know better: they assume cross-entropy."""
        return self.by in ("exact", "crowded") and not self.answer.exact and not self.options.other_loss

    def separate(self, method: str, update: Update | None = None) -> Leak:
        return separate_by(method, self.model, update or self.update, self.options, self.progress)


@dataclass(frozen=True)
class Choice:
    """A method, when it is tried in words and as a test, and what the user is told where its answer replaces another."""

    method: str
    when: str
    applies: Callable[[Case], bool]
    attempt: Callable[[Case], Leak | None]  # None where the answer before it stays
    reason: str = ""  # with {before} and {after}, the two leaks

    @property
    def says(self) -> str:
        """The reason without its figures."""
        return re.sub(r"\{[^}]*\}", "…", self.reason)

    def told(self, before: Leak | None, after: Leak) -> Leak:
        if not self.reason:
            return after
        return replace(after, notes=[self.reason.format(before=before, after=after), *after.notes])


def separate_by(method: str, model: nn.Module, update: Update, options: AttackOptions, progress: Progress) -> Leak:
    """One separator, with what the options grant it."""
    return separate(
        model,
        update,
        method,
        labels=options.labels,
        batch_size=options.batch_size,
        device=options.device,
        seed=options.seed,
        progress=progress,
        loss=options.loss,
    )


def auto(model: nn.Module, update: Update, options: AttackOptions, progress: Progress) -> Leak:
    """The best answer of the methods that suit this update."""
    case = Case(model, update, options, progress)
    for choice in CHOICES:
        if choice.applies(case) and (found := choice.attempt(case)) is not None:
            case.best, case.by = choice.told(case.best, found), choice.method
    return case.answer


def _several_steps(case: Case) -> bool:
    training = case.update.training
    several = training is not None and training.several_steps and case.update.kind == "delta"
    return several and not case.language and not case.options.other_loss


def _nothing_usable(case: Case) -> bool:
    """Nothing answered yet, or `local-steps` did and expects to have failed."""
    if case.language:
        return False
    return case.best is None or (case.by == "local-steps" and not case.best.exact and _hopeless(case.best))


def _crowd(case: Case) -> bool:
    known = case.options
    if known.labels is None or known.other_loss or not _nothing_usable(case):
        return False
    return suits_crowded(case.head, Knowledge(labels=known.labels))


def _bias_disagrees(case: Case) -> bool:
    return case.by == "exact" and case.uncertain and case.head.grad_b is not None and not case.defended


def _marked(case: Case) -> bool:
    """A defense left its marks, or columns are held back, as Soteria does."""
    return case.uncertain and (case.defended or not bool(case.head.grad_W.any(0).all()))


def _hopeless(leak: Leak) -> bool:
    return not leak.predicted_error < HOPELESS  # nor is an error that is not known


def _positions(case: Case) -> Leak | None:
    found = case.separate("exact")
    return replace(found, notes=[*case.answer.notes, *found.notes]) if found.exact else None


def _weights_alone(case: Case) -> Leak | None:
    name = ".".join(filter(None, [find_head(case.model)[0], "bias"]))
    others = {key: gradient for key, gradient in case.update.gradients.items() if key != name}
    found = case.separate("exact", replace(case.update, gradients=others))
    return found if found.exact else None


def _adapted(case: Case) -> Leak | None:
    found = case.separate("adaptive")
    better = found.predicted_error < case.answer.predicted_error
    return found if better and not _contradicted(case.head, found, case.answer) else None


def _contradicted(head: Head, other: Leak, leak: Leak) -> bool:
    """Whether the two found other labels and the second explains the gradient better: an error predicted for the wrong batch
    says nothing. An answer without hope contradicts nobody: pruned gradients are best fitted by too many samples."""
    if _hopeless(leak) or other.labels.sort().values.tolist() == leak.labels.sort().values.tolist():
        return False
    left = [relative_misfit(head, one.logits, one.targets, one.scale * one.features) for one in (other, leak)]
    return left[0] > _CLEARLY * left[1]


def _by_ratio(case: Case) -> Leak | None:
    try:
        return case.separate("fgla")
    except UnsumError:  # no bias gradient, or every class present: nothing to fall back to
        return None


CHOICES = (
    Choice("text", "the model is a language model", lambda case: case.language, lambda case: case.separate("text")),
    Choice(
        "exact",
        "the text is not certain, and the head does not share its weights with the embedding",
        lambda case: case.language and not case.answer.exact and not is_tied(case.model),
        _positions,
        "The sequences were not found, so positions are given in no order: the head's equation needs no forward pass.",
    ),
    Choice(
        "local-steps",
        "the update is a change of weights, and says that the client took several steps",
        _several_steps,
        lambda case: case.separate("local-steps"),
    ),
    Choice(
        "crowded",
        "the labels are granted, and there are more samples than directions in the head's gradient",
        _crowd,
        lambda case: case.separate("crowded"),
    ),
    Choice("exact", "no method above gave a usable answer", _nothing_usable, lambda case: case.separate("exact")),
    Choice(
        "exact",
        "the exact solver is not certain, and no defense left its marks: once more, without the bias",
        _bias_disagrees,
        _weights_alone,
        "The gradients of the head's weights and of its bias disagree, as clipping each by itself makes them; "
        "the weights' alone was used.",
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
        lambda case: case.by == "exact" and case.uncertain and _hopeless(case.answer),
        _by_ratio,
        "The exact solver predicted an error of {before.predicted_error:.1g}, so the ratio method (fgla) was used instead.",
    ),
)
