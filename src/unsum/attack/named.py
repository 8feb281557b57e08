"""Labels alone: every label rule that applies, where no answer of samples is certain. They cost
next to nothing.

Where no answer of samples is worth anything, separators are asked once more, with the labels that
rules name: signs leave labels and part of the features in rows that no separator finds by itself.
Under added noise they are not: there `adaptive` weighs the chance of every label, and others fit
the noise.

Each rule's labels stay in `Leak.tried`. Where the answer expects to have failed, or is not of as
many samples as there are, the labels of one rule stand beside it as `Leak.named`: of an untouched
gradient the rule that counts, which needs the batch size; of one that was tampered with those that
a defense leaves most of.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor, nn

from unsum.attack.case import Case
from unsum.attack.reach import is_hopeless
from unsum.errors import UnsumError
from unsum.head import Head
from unsum.labels import LABEL_RULES
from unsum.leak import Attempt, Leak
from unsum.running.deadline import out_of_time, overtime
from unsum.separate import SEPARATORS
from unsum.separate.method import uncertified

MAY_BE_WRONG = "the labels that a rule found may be wrong"
LABELS_ALONE = "it looks for labels alone"
# Row sums average over noise and lost entries; signs leave the bias gradient's whole.
_UNTOUCHED = ("ilrg", "llg*", "llg", "row-sum", "bias-sign")
_NOISY = ("templates", "row-sum", "bias-sign", "gradinversion", "ilrg")
_TAMPERED = ("row-sum", "bias-sign", "gradinversion", "ilrg")
_SEPARATORS = ("exact", "adaptive", "fgla")  # that are asked again with labels that rules name
# [1] sets of labels that they are asked with. Chosen by: arbitrary budget, most rules agree
_SETS = 2
# [s] for all rules together, where time is over. Chosen by: arbitrary budget; they take 0.05 s at
# 100 classes.
_GRACE = 5.0
# a linear system of so many takes seconds; iLRG's time grows with their third power
_MOST_CLASSES = 2000


def rules_apply(case: Case) -> bool:
    known = case.options.labels is not None or case.options.other_loss
    return not case.language and not known and case.best is not None and not case.best.exact


def name_labels(case: Case) -> Leak | None:
    """The answer with labels beside it; None where it is better than theirs."""
    with overtime(_GRACE):
        found = _by_every_rule(case)
    size, best = case.options.clues(case.model, case.update).knowledge.known_batch_size, case.answer
    trusted = not is_hopeless(best) and size in (None, best.batch_size)
    order = _NOISY if case.noisy else _TAMPERED if case.defended else _UNTOUCHED
    rule = next((name for name in order if name in found), None)
    # the rules take one step for granted
    if trusted or rule is None or case.options.follows_steps(case.update):
        return None
    note = (
        f"The samples are uncertain, and labels can be found without them: the rule {rule!r} names "
        f"{len(found[rule])}, in no order (`Leak.named`)."
    )
    knowledge = (
        best.knowledge
        if rule != "templates"
        else replace(best.knowledge, public=case.options.public)
    )
    return replace(best, named=found[rule], notes=[*best.notes, note], knowledge=knowledge)


def named_and_useless(case: Case) -> bool:
    """Not under added noise: `adaptive` has weighed how likely each label is, and takes labels that
    are given for certain."""
    useless = case.useless and not case.options.follows_steps(case.update)
    return rules_apply(case) and useless and not case.noise_added


def separate_named(case: Case) -> None:
    """Their answers stay in what was tried and stand before no other: wrong labels fit a defended
    gradient, too."""
    order = _NOISY if case.noisy else _TAMPERED if case.defended else _UNTOUCHED
    names = {name: f"labels by {name}" for name in (*order, *(entry.name for entry in LABEL_RULES))}
    by_rule = {one.method: one.labels for one in case.tried if one.labels is not None}
    sets: dict[tuple[int, ...], tuple[str, Tensor]] = {}
    for rule, name in names.items():
        if name in by_rule:
            sets.setdefault(tuple(by_rule[name].tolist()), (rule, by_rule[name]))
    for rule, labels in list(sets.values())[:_SETS]:
        leak = label_rows(case.head, labels)
        case.tried.append(Attempt(f"rows, labels by {rule}", leak, blind=MAY_BE_WRONG))
        for method in _SEPARATORS:
            if out_of_time("separators with the labels of rules"):
                return
            # it does not apply here, which says nothing about the update
            with suppress(UnsumError):
                case.separate_with(labels, rule, method, doubt=MAY_BE_WRONG)


def label_rows(head: Head, labels: Tensor) -> Leak:
    """The rows of ∇W of these labels, beside the mean row of all other classes, with the sign
    turned: a sample's features up to a factor, which need neither a bias nor sizes that a defense
    left alone."""
    labels = labels.to(head.W.device)
    mean = torch.ones(head.classes, dtype=torch.float64, device=labels.device)
    mean[labels] = 0
    others = head.mixed_rows((mean / mean.sum().clamp_min(1))[None])
    features = others.double() - head.grad_W[labels].double()
    logits = features @ head.W.double().T + (0 if head.b is None else head.b.double())
    targets = nn.functional.one_hot(labels, head.classes).double()
    note = (
        "The rows of the labels are features up to a factor, and hold a share of the other samples."
    )
    return uncertified("rows", head, logits, targets, features, [note])


def _by_every_rule(case: Case) -> dict[str, Tensor]:
    evidence = case.options.clues(case.model, case.update)
    # rules that read an answer off, which was tried already
    separators = {entry.name for entry in SEPARATORS}
    found = dict[str, Tensor]()
    for name in (entry.name for entry in LABEL_RULES if entry.name not in separators):
        rule = LABEL_RULES[name]
        # a batch of one that nobody declared is a batch that an attacker tries
        if rule.needs.one_sample and evidence.knowledge.known_batch_size not in (None, 1):
            continue
        if name == "ilrg" and evidence.head.classes > _MOST_CLASSES:
            continue
        if out_of_time("label rules"):
            break
        try:
            found[name] = rule(evidence)
        except UnsumError:  # it does not apply here, which says nothing about the update
            continue
        case.tried.append(Attempt(f"labels by {name}", labels=found[name], blind=LABELS_ALONE))
    return found
