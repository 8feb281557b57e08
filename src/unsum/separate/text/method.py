"""The separator for language models: prefixes by the span of a layer's gradient, labels and counts by the head's.

What comes out is checked as a whole: the gradient of the recovered batch is computed anew (`replay`), and what it leaves of the
one that the client sent decides about the claim (`judge`).
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import torch
from torch import Tensor, nn

from unsum.certify.claim import nothing
from unsum.errors import UnsumError
from unsum.gradients import in_eval_mode
from unsum.head import Head, find_head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.models.language import embedding_of, is_tied, next_tokens
from unsum.separate.exact.solver import nothing_found
from unsum.separate.method import SEPARATORS
from unsum.separate.text.counts import count
from unsum.separate.text.judge import judge, tokens_told
from unsum.separate.text.network import linear_layers, read_by
from unsum.separate.text.replay import embedding, name_of, play
from unsum.separate.text.sentences import Text, sentences, with_ends
from unsum.separate.text.walk import Walk, choose_guide, walk
from unsum.update import Update

_LONGEST = 4096  # positions of a sequence, where the model does not say


@SEPARATORS.register(
    "text",
    summary="every sequence of a causal language model's batch, token by token, certified by its gradient (unsum)",
    needs="a causal language model's gradients; fewer distinct prefixes than features; no dropout",
)
def text(
    head: Head, knowledge: Knowledge, *, seed: int, model: nn.Module | None = None, update: Update | None = None
) -> Leak:
    """The sequences of the batch in `leak.tokens`, and every position that counted as a sample."""
    if model is None or update is None or embedding_of(model) is None:
        raise UnsumError(
            "The attack 'text' needs a causal language model: one with a token embedding as wide as its head."
        )
    if knowledge.labels is not None:
        raise UnsumError("The attack 'text' finds the labels itself; leave labels= out.")
    del seed  # nothing here is left to chance
    with in_eval_mode(model):  # without dropout
        return _read(head, knowledge, model, update)


def _read(head: Head, knowledge: Knowledge, model: nn.Module, update: Update) -> Leak:
    tied = is_tied(model)
    layers = linear_layers(model, update.gradients)
    guide = choose_guide(layers)
    if guide is None:
        return _nothing(
            head, "Every layer's gradient is of full rank: there are as many positions as features, or noise."
        )
    # One less than the model reads at once, for the label of the longest prefix is a token as well.
    longest = int(getattr(getattr(model, "config", None), "max_position_embeddings", None) or _LONGEST) - 1
    found = walk(model, guide, _candidates(model, update, tied), longest)
    if not found.prefixes:
        reason = "No prefix fits the gradient: dropout, several local steps, noise, or more positions than features."
        return _nothing(head, *(found.notes or [reason]))
    F = _features(model, found)
    used = torch.tensor(sorted({prefix[-1] for prefix in found.prefixes}), device=F.device)
    counts = count(head, F, used if tied else used[:0])
    if counts is None:
        return _nothing(
            head,
            "Every token of the vocabulary occurs, and tied embeddings hide the head's gradient of each that does.",
        )
    recovered = sentences(found, counts)
    searched = [guide.first, guide.deep]
    if recovered.open_ends:
        recovered = with_ends(model, layers[-1], found, counts, recovered, used)
        searched.append(layers[-1])
    notes = [f"Prefixes were admitted by {guide.deep.name!r}.", *found.notes]
    if not counts.whole:
        notes.append("How often prefixes occur did not come out as whole numbers.")
    ends = [embedding(model).weight, find_head(model)[1].weight]
    names = {f"{layer.name}.weight" for layer in searched} | {name_of(model, weight) for weight in ends}
    return _leak(head, knowledge, model, update, recovered, names, notes)


def _candidates(model: nn.Module, update: Update, tied: bool) -> Tensor:
    """The tokens that may stand in the text: those whose embedding has a gradient, where it shows."""
    weight = embedding(model).weight
    everything = torch.arange(len(weight), device=weight.device)
    gradient = update.gradients.get(name_of(model, weight))
    if tied or gradient is None:
        return everything
    return everything[gradient.to(everything.device).abs().amax(1) > 0]


def _features(model: nn.Module, found: Walk) -> Tensor:
    """(n, H) what the head reads at the end of every prefix."""
    _, linear = find_head(model)
    alike = [list(group) for _, group in itertools.groupby(found.prefixes, len)]  # in the order of their length
    return torch.cat([read_by(model, linear, torch.tensor(group, device=linear.weight.device), -1) for group in alike])


def _leak(
    head: Head,
    knowledge: Knowledge,
    model: nn.Module,
    update: Update,
    recovered: Text,
    searched: set[str],
    notes: list[str],
) -> Leak:
    if not recovered.tokens:
        return _nothing(head, *notes, "The head's gradient assigns no label to any of them.")
    tokens, labels = (part.to(head.W.device) for part in recovered.batch())
    kept = next_tokens(labels) >= 0
    features = read_by(model, find_head(model)[1], tokens, slice(None, -1))[kept]
    Y = torch.nn.functional.one_hot(next_tokens(labels)[kept], head.classes).double()
    L = head.logits(features.double())
    L = L if head.b is None else L + head.b.double()
    played = play(model, update, tokens, labels, features)
    if played is None:
        claim = nothing("The model cannot be computed in float64, so nothing tells rounding from what is missing.")
    else:
        told = tokens_told(model, played, tokens, labels)
        claim = judge(played, told, sum(recovered.open_ends.values()), knowledge, update, searched)
        notes.append(f"The recovered batch explains the gradient to {played.replay.residual:.1g} of it.")
    return Leak(
        method="text",
        targets=Y,
        logits=L,
        features=features,
        residual=1.0 if played is None else played.replay.residual,
        predicted_error=claim.predicted_error,
        exact=claim.exact,
        scale=1.0 if played is None else played.scale / (len(Y) if head.reduction == "sum" else 1),
        tokens=recovered.tokens,
        notes=[*claim.notes, *notes],
    )


def _nothing(head: Head, *reasons: str) -> Leak:
    """The empty-handed answer."""
    return replace(nothing_found(head, Knowledge(), ""), method="text", tokens=[], notes=list(reasons))
