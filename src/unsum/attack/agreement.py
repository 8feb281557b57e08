"""Answers against what is known besides: how many samples were declared, and how many of each label
were counted.

An error that is predicted for the wrong batch says nothing, however small it is. So an answer that
contradicts either never stands before one that does not.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from unsum.attack.counts import sentence
from unsum.attack.options import AttackOptions
from unsum.attack.reach import HOPELESS
from unsum.leak import LabelCounts, Leak
from unsum.update import Update

# samples of a class beyond its interval, which leaves out the true number now and then
_SLACK = 1.0


def agreeing(update: Update, options: AttackOptions, leak: Leak) -> Leak:
    """The leak or, where it contradicts what is known, the surest answer on the way to it that does
    not."""
    counts = leak.label_counts
    against = (
        ""
        if leak.exact or leak.tokens is not None
        else contradiction(update, options, leak, counts)
    )
    others = (
        [one.leak for one in leak.tried if one.leak is not None and one.leak.estimate < HOPELESS]
        if against
        else []
    )
    fitting = [
        one for one in others if one.batch_size and not contradiction(update, options, one, counts)
    ]
    if not fitting:
        return leak
    best = min(fitting, key=surest)
    note = (
        f"The answer of {leak.method!r} {against}; that of {best.method!r} does not contradict it, "
        "so it is given."
    )
    counted = [] if counts is None else [sentence(counts)]
    kept = {name: getattr(leak, name) for name in ("knowledge", "tried", "seconds", "label_counts")}
    return replace(best, **kept, notes=[note, *counted, *best.notes])


def surest(leak: Leak) -> tuple[bool, float]:
    """A key by which the answer that is certain, then the one of the smallest estimate, comes
    first; one that estimates nothing comes last."""
    return not leak.exact, math.inf if math.isnan(leak.estimate) else leak.estimate


def contradiction(
    update: Update, options: AttackOptions, leak: Leak, counts: LabelCounts | None
) -> str:
    """What an answer contradicts, as the end of a sentence; empty where nothing is known against
    it."""
    declared = declared_number(update, options)
    if declared is not None and leak.batch_size not in declared:
        least, most = declared[0], declared[-1]
        number = f"{most}" if least == most else f"{least} to {most}"
        return f"has {leak.batch_size} samples where {number} were declared"
    if counts is None:
        return ""
    found = torch.bincount(leak.labels.cpu(), minlength=len(counts.counts)).double()
    # without the number of samples counts are shares
    total = 1.0 if counts.samples else float(leak.batch_size)
    low, high = (total * bound.cpu().double() for bound in (counts.low, counts.high))
    off = ((found < low - _SLACK) | (found > high + _SLACK)).nonzero()[:, 0].tolist()
    return (
        f"has {int(found[off[0]])} samples of class {off[0]}, against what was counted"
        if off
        else ""
    )


def declared_number(update: Update, options: AttackOptions) -> range | None:
    """The numbers of samples that the declarations leave: granted, or as many as the local steps of
    an epoch see."""
    granted = options.batch_size if options.labels is None else len(options.labels)
    training = update.training
    if (
        granted is None
        and training is not None
        and training.steps is not None
        and training.batch_size is not None
    ):
        steps = training.steps // training.epochs
        return range((steps - 1) * training.batch_size + 1, steps * training.batch_size + 1)
    number = update.batch_size if granted is None else granted
    return None if number is None else range(number, number + 1)
