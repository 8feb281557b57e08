"""Checks of a language model and a client's text, before an audit reads one out of the other."""

from __future__ import annotations

from torch import nn

from unsum.audit.text import TextInputs
from unsum.doctor.finding import Said
from unsum.models.language import TextTask, Tokenizer, embedding_width, looks_ahead, task_of


def tokenizer(found: Tokenizer) -> Said:
    if found.own is None:
        return "warning", "There is none beside the model, so text is token numbers; save one into its folder."
    return "ok", "There is one in the folder: the report shows text."


def positions(inputs: TextInputs) -> Said:
    """Fewer positions that read something different than features: then each of them is a direction of its own."""
    model = inputs.loaded.model
    width = embedding_width(model)
    sequences = {tuple(sequence) for sequence in inputs.batch.sequences}
    if looks_ahead(model):
        number, what = sum(map(len, sequences)), "tokens"
    else:
        unread = 1 if task_of(model) is TextTask.NEXT else 0  # the last token of all is predicted, never read
        ends = {sequence[:end] for sequence in sequences for end in range(1, len(sequence) + 1 - unread)}
        number, what = len(ends), "distinct prefixes"
    count = f"{len(inputs.batch.sequences)} texts have {number} {what}"
    if number >= width:
        return "warning", f"{count}, and the attack on text reads fewer than the {width} features; it will not decide."
    return "ok", f"{count}, fewer than the {width} features: the texts come back whole."


def dropout(model: nn.Module, train: bool) -> Said:
    rates = [module.p for module in model.modules() if isinstance(module, nn.Dropout) and module.p > 0]
    if rates and train:
        return "warning", f"It drops up to {max(rates):.0%} in train mode, which the attack on text cannot follow."
    return "ok", "There is none to reckon with." if not rates else "Switched off in eval mode."
