"""The separator for language models: prefixes by the span of a layer's gradient, labels and counts
by the head's.

What comes out is checked as a whole: the gradient of the recovered batch is computed anew
(`replay`), and what it leaves of the one that the client sent decides about the claim (`judge`).
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor, nn

from unsum.certify.claim import nothing
from unsum.errors import UnsumError
from unsum.gradients import in_eval_mode
from unsum.head import Head, find_head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.models.language import (
    TextTask,
    embedding_of,
    is_tied,
    longest_text,
    looks_ahead,
    targets,
    task_of,
    vocabulary_of,
)
from unsum.models.segments import numbered_by_segment, segments_used, takes_segments
from unsum.notes import Code, code_of, without
from unsum.separate.exact.solver import nothing_found
from unsum.separate.method import SEPARATORS
from unsum.separate.text.admitted import Admitted
from unsum.separate.text.blurred import ENOUGH, blur_of, read_blurred
from unsum.separate.text.judge import (
    doubt_displaced,
    doubt_hidden,
    doubt_repeated,
    doubt_unheld,
    judge,
    tokens_told,
)
from unsum.separate.text.labels import LabelsFound, class_labels, masked_labels, next_labels
from unsum.separate.text.network import Layer, joined, linear_layers, read_whole
from unsum.separate.text.recovered import Text, labeled
from unsum.separate.text.replay import PlayedText, embedding, name_of, play
from unsum.separate.text.walk import Guide, choose_guide, walk
from unsum.separate.text.whole import search_whole
from unsum.update import Update

_LONGEST = 4096  # positions of a sequence, where the model does not say
_UNFITTING = (
    "No prefix fits the gradient: dropout, several local steps, noise, or more positions than "
    "features."
)


_WEIGHED = (
    "Noise or rounding blurs the layers' spans: prefixes were weighed by what all layers say, and "
    "sequences chosen by the gradient they send."
)
_UNLABELED = "The head's gradient assigns no label to any of the prefixes that fit it."


@SEPARATORS.register(
    "text",
    summary=(
        "every sequence of a language model's batch, token by token, certified by its gradient "
        "(unsum)"
    ),
    needs=(
        "a language model's gradients (next or masked tokens, or classes of text); fewer positions "
        "than features; no dropout"
    ),
)
def text(
    head: Head,
    knowledge: Knowledge,
    *,
    seed: int,
    model: nn.Module | None = None,
    update: Update | None = None,
) -> Leak:
    """The sequences of the batch in `leak.tokens`, and every position that counted as a sample."""
    if model is None or update is None or embedding_of(model) is None:
        raise UnsumError(
            "The attack 'text' needs a language model: one with a token embedding as wide as its "
            "head, or Hugging Face's classifier of text."
        )
    if knowledge.labels is not None:
        raise UnsumError("The attack 'text' finds the labels itself; leave labels= out.")
    del seed  # nothing here is left to chance
    with in_eval_mode(model):  # without dropout
        name, segments = segments_used(model, update.gradients)
        if name and (not takes_segments(model) or task_of(model) is not TextTask.CLASS):
            return _nothing(
                head,
                f"The texts are in segments, as pairs of sentences are ({name!r} tells), which are "
                "searched for classifiers that take token_type_ids alone; this is no sign that "
                "nothing leaks.",
            )
        with numbered_by_segment(model) if name else nullcontext():
            leak = _read(head, knowledge, model, update, segments)
        return _parted(leak, vocabulary_of(model)) if name else leak


def _parted(leak: Leak, V: int) -> Leak:
    """Tokens and segments, of numbers t + s V."""
    found = leak.tokens or []
    tokens = [[number % V for number in sequence] for sequence in found]
    return replace(
        leak, tokens=tokens, segments=[[number // V for number in sequence] for sequence in found]
    )


def _read(
    head: Head, knowledge: Knowledge, model: nn.Module, update: Update, segments: list[int]
) -> Leak:
    layers = linear_layers(model, update.gradients)
    guide = choose_guide(model, joined(model, layers))
    if guide is None:
        return _nothing(
            head,
            (
                "Every layer's gradient is of full rank: there are as many positions as features, "
                "or noise."
            ),
        )
    # One less than the model reads at once, where the label of the longest prefix is a token as
    # well.
    longest = (longest_text(model) or _LONGEST) - (task_of(model) is TextTask.NEXT)
    admitted = Admitted(model, guide.first, _candidates(model, update, segments), longest)
    weighed = task_of(model) is TextTask.NEXT and not looks_ahead(model)
    blur = blur_of(model, update) if weighed else None
    found, notes = _labeled(head, model, guide, admitted, layers, firm=blur is not None)
    answer = None
    if found is not None and found.text is not None:
        searched = [guide.first, guide.deep, *found.used]
        said = [f"Prefixes were admitted by {guide.deep.name!r}.", *notes, *found.notes]
        ends = [embedding(model).weight, find_head(model)[1].weight]
        names = set().union(*(layer.tensors() for layer in searched)) | {
            name_of(model, weight) for weight in ends
        }
        answer = _leak(head, knowledge, model, update, found.text, admitted, names, said)
        if blur is None or answer.exact or answer.residual <= ENOUGH * blur.share:
            return answer
    text = None if blur is None else read_blurred(model, update, knowledge, blur, longest)
    if text is not None:
        # every tensor took part in the choice, so none is left to confirm it
        everything = set(update.gradients)
        other = _leak(head, knowledge, model, update, text, admitted, everything, [_WEIGHED])
        if answer is None or other.residual < answer.residual:
            return other
    if answer is not None:
        return answer
    return _nothing(head, *(found.notes if found else notes or [_UNFITTING]))


def _labeled(
    head: Head,
    model: nn.Module,
    guide: Guide,
    admitted: Admitted,
    layers: list[Layer],
    *,
    firm: bool,
) -> tuple[LabelsFound | None, list[str]]:
    """The text with its labels, None where none fits, and notes."""
    task, last = task_of(model), layers[-1]
    linear = find_head(model)[1]
    last = layers[-2] if last.module is linear and len(layers) > 1 else last
    if not looks_ahead(model):
        found = walk(model, guide, admitted, firm=firm)
        if not found.prefixes:
            return None, found.notes
        if task is TextTask.NEXT:
            return next_labels(model, head, found, last), found.notes
        if task is TextTask.CLASS:
            return class_labels(head, found.prefixes, _pooled(model, found.prefixes)), found.notes
        endings = [prefix for i, prefix in enumerate(found.prefixes) if i not in set(found.parents)]
        return masked_labels(model, head, endings, last), found.notes
    if task is TextTask.NEXT:
        return None, ["The model reads what comes after a position, so it predicts no next token."]
    whole = search_whole(model, guide, admitted)
    if not whole.sequences:
        return None, whole.notes
    if task is TextTask.MASKED:
        return masked_labels(model, head, whole.sequences, last), whole.notes
    return class_labels(head, whole.sequences, _pooled(model, whole.sequences)), whole.notes


def _pooled(model: nn.Module, texts: list[tuple[int, ...]]) -> Tensor:
    """(n, H) what a classifier's head reads of each whole text."""
    return torch.stack([read[-1] for read in read_whole(model, find_head(model)[1], texts)])


def _candidates(model: nn.Module, update: Update, segments: list[int]) -> Tensor:
    """The tokens that may stand in the text: those whose embedding has a gradient, where it shows;
    in each segment."""
    weight = embedding(model).weight
    everything = torch.arange(len(weight), device=weight.device)
    gradient = update.gradients.get(name_of(model, weight))
    if not is_tied(model) and gradient is not None:
        everything = everything[gradient.to(everything.device).abs().amax(1) > 0]
    return torch.cat([everything + segment * len(weight) for segment in segments])


def _leak(
    head: Head,
    knowledge: Knowledge,
    model: nn.Module,
    update: Update,
    recovered: Text,
    admitted: Admitted,
    searched: set[str],
    notes: list[str],
) -> Leak:
    if not recovered.tokens:
        return _nothing(head, _UNLABELED, *notes)
    features, labels = labeled(model, recovered)
    Y, L = _targets(head, features, labels)
    played = play(model, update, recovered, features, labels)
    if played is None:
        claim = nothing(
            "The model cannot be computed in float64, so nothing tells rounding from what is "
            "missing."
        )
    else:
        recovered, played, features, labels = _at_most(
            model, update, knowledge, recovered, played, features, labels
        )
        Y, L = _targets(head, features, labels)
        # a replay that misses is no evidence, whichever of its tokens the gradient tells
        told = (
            tokens_told(model, played, recovered, admitted)
            if played.replay.explains
            else torch.ones(len(recovered.tokens), dtype=torch.bool, device=L.device)
        )
        besides = [note for note in notes if code_of(note) is Code.DOUBTED_TEXT]
        besides += doubt_repeated(model, recovered) + doubt_hidden(model, recovered)
        if played.replay.explains:
            besides += doubt_unheld(played) + doubt_displaced(model, played, recovered)
        notes = without(notes, Code.DOUBTED_TEXT)
        claim = judge(played, L, told, recovered.open, knowledge, update, searched, besides)
        notes.append(
            f"The recovered batch explains the gradient to {played.replay.residual:.1g} of it."
        )
    return Leak(
        method="text",
        targets=Y,
        logits=L,
        features=features,
        residual=1.0 if played is None else played.replay.residual,
        predicted_error=claim.predicted_error,
        exact=claim.exact,
        predicts=claim.predicts,
        counted=claim.counted,
        scale=1.0 if played is None else played.scale / (len(Y) if head.reduction == "sum" else 1),
        tokens=recovered.shown(task_of(model)),
        notes=[*claim.notes, *notes],
    )


def _targets(head: Head, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    L = head.logits(features.double())
    Y = torch.nn.functional.one_hot(labels, head.classes).double()
    return Y, L if head.b is None else L + head.b.double()


def _at_most(
    model: nn.Module,
    update: Update,
    knowledge: Knowledge,
    text: Text,
    played: PlayedText,
    features: Tensor,
    labels: Tensor,
) -> tuple[Text, PlayedText, Tensor, Tensor]:
    """The text with no more sequences and positions than were declared: those go first that send
    least of the gradient."""
    sends = played.replay.parts
    positions = [
        int((targets(task_of(model), torch.tensor([row])) >= 0).sum()) for row in text.labels
    ]
    assert sends is not None
    kept = sends.norm(dim=1).argsort(descending=True).tolist()
    most, sequences = knowledge.known_batch_size, update.num_examples
    while len(kept) > 1 and (
        (most is not None and sum(positions[row] for row in kept) > most)
        or (sequences is not None and len(kept) > sequences)
    ):
        kept.pop()
    if len(kept) == len(text.tokens):
        return text, played, features, labels
    kept.sort()
    fewer = Text([text.tokens[i] for i in kept], [text.labels[i] for i in kept], text.open)
    features, labels = labeled(model, fewer)
    again = play(model, update, fewer, features, labels)
    assert again is not None
    return fewer, again, features, labels


def _nothing(head: Head, *reasons: str) -> Leak:
    """The empty-handed answer."""
    return replace(
        nothing_found(head, Knowledge(), ""), method="text", tokens=[], notes=list(reasons)
    )
