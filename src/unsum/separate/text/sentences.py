"""From a tree of prefixes with counts to the client's sequences.

n positions behind a prefix have n next tokens. Those that a longer prefix goes on with are
followed; the others were last.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from unsum.models.language import IGNORED, logits_of
from unsum.separate.text.counts import Counts
from unsum.separate.text.network import Layer, device_of, read_at_ends
from unsum.separate.text.recovered import Text
from unsum.separate.text.walk import Walk

_EXCHANGES = 4  # rounds in which each token is exchanged for a better one


def sentences(
    walk: Walk, counts: Counts, ends: dict[int, list[int]] | None = None
) -> tuple[Text, dict[int, int]]:
    """The sequences; `ends` gives labels that were found for prefixes whose own rows did not tell
    them.

    Besides, prefixes whose last label is not known, with the number of such labels.
    """
    # How many sequences begin with each prefix: those that end there and those that go on,
    # whichever is more.
    through = list(counts.positions)
    for index in reversed(range(len(walk.prefixes))):  # longer prefixes come later
        through[index] = max(through[index], sum(through[child] for child in walk.children(index)))
    tokens: list[list[int]] = []
    labels_of: list[list[int]] = []
    open_ends: dict[int, int] = {}
    for index, prefix in enumerate(walk.prefixes):
        labels = dict(counts.labels[index])
        for token in (ends or {}).get(index, []):
            labels[token] = labels.get(token, 0) + 1
        goes_on = {walk.prefixes[child][-1]: through[child] for child in walk.children(index)}
        for token, times in labels.items():
            for _ in range(times - goes_on.get(token, 0)):
                tokens.append([*prefix, token])
                labels_of.append(_labels(walk, counts, index, tokens[-1]))
        known = sum(max(times, goes_on.get(token, 0)) for token, times in labels.items())
        known += sum(times for token, times in goes_on.items() if token not in labels)
        if counts.positions[index] > known:
            open_ends[index] = counts.positions[index] - known
    return Text(tokens, labels_of, sum(open_ends.values())), open_ends


def _labels(walk: Walk, counts: Counts, index: int, sequence: list[int]) -> list[int]:
    """For the sequence that ends with a label of prefix `index`: those of its tokens that were
    labels, and counted."""
    flags = []
    while index >= 0:
        flags.append(counts.positions[index] > 0)
        index = walk.parents[index]
    kept = [False, *reversed(flags)]
    return [token if counted else IGNORED for token, counted in zip(sequence, kept, strict=True)]


def with_ends(
    model: nn.Module,
    layer: Layer,
    found: Walk,
    counts: Counts,
    open_ends: dict[int, int],
    candidates: Tensor,
) -> Text:
    """The text with the labels, out of `candidates`, that ended sequences and that tied embeddings
    hid."""
    known = [dict(labels) for labels in counts.labels]
    for index, labels in enumerate(known):
        for child in found.children(index):
            token = found.prefixes[child][-1]
            labels[token] = max(labels.get(token, 0), counts.positions[child])
    X = read_at_ends(model, layer.module, found.prefixes)
    places = [(prefix, len(prefix) - 1) for prefix in found.prefixes]
    ends = hidden_labels(
        model, layer, X, places, replace(counts, labels=known), open_ends, candidates
    )
    return sentences(found, replace(counts, labels=known), ends)[0]


def hidden_labels(
    model: nn.Module,
    layer: Layer,
    X: Tensor,
    places: list[tuple[tuple[int, ...], int]],
    counts: Counts,
    wanted: dict[int, int],
    candidates: Tensor,
) -> dict[int, list[int]]:
    """For some positions the number of labels `wanted` that tied embeddings hide, out of
    `candidates`.

    A token's row holds its input side too, and the head's side is lost in it. But the last linear
    layer below the head has a gradient of its own, ∇V = δᵀ X. Its inputs X are known once the text
    is, so δ = ∇V X⁺, position by position, and δ_i = α Jᵢᵀ (n p − Σ e_y) with J the derivative of
    the logits: each hidden label is the token whose Jᵀ e_y is missing.
    """
    # (n, outputs)
    backward = (
        layer.gradient.to(X.device).double() @ torch.linalg.pinv(X.double()) / counts.alpha
    ).T
    ends = {}
    for index, number in wanted.items():
        given = [token for token, times in counts.labels[index].items() for _ in range(times)]
        labels_so_far = torch.tensor(given, device=X.device).long()
        predicted, sent, atoms = _pulled_back(
            model, layer.module, places[index], labels_so_far, candidates
        )
        missing = counts.positions[index] * predicted - sent - backward[index]
        ends[index] = candidates[
            torch.tensor(_match(missing, atoms, number), device=X.device)
        ].tolist()
    return ends


def _pulled_back(
    model: nn.Module,
    module: nn.Module,
    at: tuple[tuple[int, ...], int],
    labels: Tensor,
    candidates: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Jᵀ p, Σ Jᵀ e_y over `labels` and (candidates, outputs) Jᵀ e_c, at one place of one
    sequence."""
    outputs: list[Tensor] = []
    sequence, place = at

    def grow(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
        outputs.append(output.detach().requires_grad_())
        return outputs[-1]

    with module.register_forward_hook(grow), torch.enable_grad():
        logits = logits_of(model(torch.tensor([sequence], device=device_of(model))))[0, place]
    rows = torch.zeros(len(candidates) + 2, len(logits), dtype=logits.dtype, device=logits.device)
    rows[torch.arange(len(candidates)), candidates] = 1
    rows[-2] = logits.detach().softmax(0)
    rows[-1].index_add_(0, labels, torch.ones_like(labels, dtype=rows.dtype))
    pulled = torch.autograd.grad(logits, outputs[-1], rows, is_grads_batched=True)[0][
        :, 0, place
    ].double()
    return pulled[-2], pulled[-1], pulled[:-2]


def _match(left: Tensor, atoms: Tensor, number: int) -> list[int]:
    """`number` atoms whose sum is nearest to `left`: one after another, then each exchanged for a
    better one."""
    chosen: list[int] = []
    for _ in range(number):
        chosen.append(int((left - atoms).square().sum(1).argmin()))
        left = left - atoms[chosen[-1]]
    for _ in range(_EXCHANGES if number > 1 else 0):
        for slot, atom in enumerate(chosen):
            whole = left + atoms[atom]
            chosen[slot] = int((whole - atoms).square().sum(1).argmin())
            left = whole - atoms[chosen[slot]]
    return chosen
