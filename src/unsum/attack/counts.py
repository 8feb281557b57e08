"""What many local steps leave where samples cannot be told apart: how many of each class, and how
few steps would do."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from torch import Tensor, nn

from unsum.attack.options import AttackOptions
from unsum.attack.reach import is_hopeless
from unsum.attack.training import doubt_training
from unsum.errors import UnsumError, needed
from unsum.head import Head
from unsum.leak import LabelCounts, Leak
from unsum.models.language import is_language_model
from unsum.network.chain import find_chain
from unsum.notes import Code, Note, without
from unsum.separate.local_steps.label_counts import count_labels
from unsum.spans.pair import dense_steps
from unsum.update import Update

_SHOWN = 10  # classes that a sentence names
# units of a dense layer for every sample that its spans tell apart from random starts
_OF_WIDTH = 3


def with_counts(model: nn.Module, update: Update, leak: Leak, options: AttackOptions) -> Leak:
    """The leak with counts of labels and a word on the steps, where several were taken and their
    samples are not certain.

    Or with a word on the training, where that was not as the attack takes it to have been.
    """
    loss = "another" if options.other_loss else leak.loss
    doubt = "" if leak.exact else doubt_training(model, update, loss)
    if doubt:
        note = f"{doubt[0].upper()}{doubt[1:]}."
        leak = _without_predictions(leak)
        return replace(leak, training_doubt=doubt, notes=[note, *leak.notes])
    if (
        leak.exact
        or leak.label_counts is not None
        or not options.follows_steps(update)
        or is_language_model(model)
    ):
        return leak
    told = (
        [Note(_too_many_steps(model, update, options), Code.TOO_MANY_STEPS)]
        if is_hopeless(leak)
        else []
    )
    try:
        counts = count_labels(model, update, samples=options.batch_size, seed=options.seed)
    except UnsumError as reason:
        return replace(leak, notes=[*told, f"Labels were not counted: {reason}", *leak.notes])
    return replace(leak, label_counts=counts, notes=[*told, sentence(counts), *leak.notes])


def _without_predictions(leak: Leak) -> Leak:
    """The leak without errors and numbers that are predicted for a client that trained as the
    attack takes it to have, here and on the way."""
    if leak.exact:
        return leak
    tried = [
        one if one.leak is None else replace(one, leak=_without_predictions(one.leak))
        for one in leak.tried
    ]
    return replace(leak, predicts=False, tried=tried, notes=without(leak.notes, Code.EXPECTED))


def sentence(counts: LabelCounts) -> str:
    """The largest counts with their intervals."""
    order = counts.counts.argsort(descending=True, stable=True).tolist()
    present = [c for c in order if float(counts.high[c]) > 0][:_SHOWN]

    def shown(value: Tensor) -> str:
        return f"{float(value):.0f}" if counts.samples else f"{100 * float(value):.2g} %"

    parts = [
        f"{c}: {shown(counts.counts[c])} ({shown(counts.low[c])} to {shown(counts.high[c])})"
        for c in present
    ]
    left = [c for c in order if c not in present]
    more = (
        f"; {len(left)} further classes: at most {shown(max(counts.high[c] for c in left))} each"
        if left
        else ""
    )
    what = f"Of {counts.samples} samples" if counts.samples else "Shares"
    return (
        f"{what} by class, with intervals that hold the true one in {100 * counts.level:.0f} % of "
        f"all cases if the client trains as declared: {', '.join(parts)}{more}."
    )


def _too_many_steps(model: nn.Module, update: Update, options: AttackOptions) -> str:
    """How many local steps the layers of this model could have followed, in a sentence."""
    training = needed(update.training, "How the client trained")
    most = _most_visits(model, update, options)
    if most == 0:
        return "No layer of this model tells samples of several local steps apart."
    per_epoch = (training.steps or 1) // training.epochs
    samples = options.batch_size or update.num_examples
    size = training.batch_size or (-(-samples // per_epoch) if samples else None)
    if size is not None and size * (training.steps or 1) <= most:
        return (
            f"Samples of {training.steps} steps of {size} were not found; this model's layers "
            f"follow at most {most} in all."
        )
    if size is None and (training.steps or 1) <= most:
        return (
            f"Samples of {training.steps} local steps were not told apart; this model's layers "
            f"follow at most {most} in all, which is {most // (training.steps or 1)} a step."
        )
    beginning = (
        f"Samples of {training.steps} local steps are too many to be told apart here: "
        f"this model's layers follow at most {most} in all"
    )
    if size is None:
        return f"{beginning}, fewer than one a step."
    if size > most:
        return (
            f"{beginning}, and one step has {size}; only batches of up to {most} can be read, "
            "after one step."
        )
    few = most // size
    return (
        f"{beginning}; no more than {few} {'step' if few == 1 else 'steps'} of {size} can be read."
    )


def _most_visits(model: nn.Module, update: Update, options: AttackOptions) -> int:
    """The head follows one sample for every two classes, two dense layers one for every three units
    between them."""
    most = (Head.of(model, update, options.device).classes - 1) // 2
    try:
        dense = dense_steps(find_chain(model, update, options.device))
    except UnsumError:  # nothing can be traced below the head
        return most
    return max(
        [
            most,
            *(
                min(len(first.W) // _OF_WIDTH, min(second.W.shape) - 2)
                for first, second in pairwise(dense)
            ),
        ]
    )
