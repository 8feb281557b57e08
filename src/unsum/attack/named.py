"""Labels alone: every label rule that applies, where no answer of samples is certain. They cost next to nothing.

Each rule's labels stay in `Leak.tried`. Where the answer expects to have failed, or is not of as many samples as there are, the
labels of one rule stand beside it as `Leak.named`: of an untouched gradient the rule that counts, which needs the batch size; of
one that was tampered with those that a defense leaves most of.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from unsum.attack.case import Case
from unsum.attack.reach import is_hopeless
from unsum.deadline import out_of_time
from unsum.errors import UnsumError
from unsum.labels import LABEL_RULES
from unsum.leak import Attempt, Leak
from unsum.separate import SEPARATORS

LABELS_ALONE = "it looks for labels alone"
# Row sums average over noise and lost entries; signs leave the bias gradient's whole.
_UNTOUCHED = ("ilrg", "llg*", "llg", "row-sum", "bias-sign")
_NOISY = ("templates", "row-sum", "bias-sign", "gradinversion", "ilrg")
_TAMPERED = ("row-sum", "bias-sign", "gradinversion", "ilrg")
_MOST_CLASSES = 2000  # a linear system of so many takes seconds; iLRG's time grows with their third power


def rules_apply(case: Case) -> bool:
    known = case.options.labels is not None or case.options.other_loss
    return not case.language and not known and case.best is not None and not case.best.exact


def name_labels(case: Case) -> Leak | None:
    """The answer with labels beside it; None where it is better than theirs."""
    found = _by_every_rule(case)
    size, best = case.options.clues(case.model, case.update).knowledge.known_batch_size, case.answer
    trusted = not is_hopeless(best) and size in (None, best.batch_size)
    order = _NOISY if case.noisy else _TAMPERED if case.defended else _UNTOUCHED
    rule = next((name for name in order if name in found), None)
    if trusted or rule is None or case.options.follows_steps(case.update):  # the rules take one step for granted
        return None
    note = (
        f"The samples are uncertain, and labels can be found without them: the rule {rule!r} names {len(found[rule])}, "
        "in no order (`Leak.named`)."
    )
    knowledge = best.knowledge if rule != "templates" else replace(best.knowledge, public=case.options.public)
    return replace(best, named=found[rule], notes=[*best.notes, note], knowledge=knowledge)


def _by_every_rule(case: Case) -> dict[str, Tensor]:
    evidence = case.options.clues(case.model, case.update)
    separators = {entry.name for entry in SEPARATORS}  # rules that read an answer off, which was tried already
    found = dict[str, Tensor]()
    for name in (entry.name for entry in LABEL_RULES if entry.name not in separators):
        rule = LABEL_RULES[name]
        single = rule.needs.one_sample and evidence.knowledge.known_batch_size != 1  # taken on trust elsewhere
        if single or (name == "templates" and not case.noisy):  # what is left of other defenses is not Gaussian
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
