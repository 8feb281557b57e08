"""From a tree of prefixes with counts to the client's sequences.

n positions behind a prefix have n next tokens. Those that a longer prefix goes on with are followed; the others were last.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from unsum.models.language import IGNORED, logits_of
from unsum.separate.text.counts import Counts
from unsum.separate.text.network import Layer, read_by
from unsum.separate.text.walk import Walk

_EXCHANGES = 4  # rounds in which each token is exchanged for a better one


@dataclass(frozen=True)
class Text:
    """Sequences in the attacker's order, the last token of each known as a label only; `kept[i][j]` says whether token j ≥ 1

    of sequence i is a label that counted. `open_ends` are prefixes whose last label is not known, with their number.
    """

    tokens: list[list[int]]
    kept: list[list[bool]]
    open_ends: dict[int, int]

    def batch(self) -> tuple[Tensor, Tensor]:
        """(n, L) tokens and labels as a client would have them, padded on the right."""
        longest = max((len(sequence) for sequence in self.tokens), default=1)
        tokens = torch.zeros(len(self.tokens), longest, dtype=torch.long)
        labels = torch.full_like(tokens, IGNORED)
        for row, (sequence, kept) in enumerate(zip(self.tokens, self.kept, strict=True)):
            tokens[row, : len(sequence)] = torch.tensor(sequence)
            for place in range(1, len(sequence)):
                if kept[place]:
                    labels[row, place] = sequence[place]
        return tokens, labels


def sentences(walk: Walk, counts: Counts, ends: dict[int, list[int]] | None = None) -> Text:
    """The sequences; `ends` gives labels that were found for prefixes whose own rows did not tell them."""
    # How many sequences begin with each prefix: those that end there and those that go on, whichever is more.
    through = list(counts.positions)
    for index in reversed(range(len(walk.prefixes))):  # longer prefixes come later
        through[index] = max(through[index], sum(through[child] for child in walk.children(index)))
    tokens: list[list[int]] = []
    kept: list[list[bool]] = []
    open_ends: dict[int, int] = {}
    for index, prefix in enumerate(walk.prefixes):
        labels = dict(counts.labels[index])
        for token in (ends or {}).get(index, []):
            labels[token] = labels.get(token, 0) + 1
        goes_on = {walk.prefixes[child][-1]: through[child] for child in walk.children(index)}
        for token, times in labels.items():
            for _ in range(times - goes_on.get(token, 0)):
                tokens.append([*prefix, token])
                kept.append(_kept(walk, counts, index))
        known = sum(max(times, goes_on.get(token, 0)) for token, times in labels.items())
        known += sum(times for token, times in goes_on.items() if token not in labels)
        if counts.positions[index] > known:
            open_ends[index] = counts.positions[index] - known
    return Text(tokens, kept, open_ends)


def _kept(walk: Walk, counts: Counts, index: int) -> list[bool]:
    """For the sequence that ends with a label of prefix `index`: which of its tokens were labels that counted."""
    flags = []
    while index >= 0:
        flags.append(counts.positions[index] > 0)
        index = walk.parents[index]
    return [False, *reversed(flags)]


def with_ends(model: nn.Module, layer: Layer, found: Walk, counts: Counts, so_far: Text, candidates: Tensor) -> Text:
    """The same text with the labels, out of `candidates`, that ended sequences and that tied embeddings hid.

    A token's row holds its input side too, and the head's side is lost in it. But the last linear layer below the head has a
    gradient of its own, ∇V = δᵀ X. Its inputs X are known once the prefixes are, so δ = ∇V X⁺, position by position, and
    δ_i = α Jᵢᵀ (n p − Σ e_y) with J the derivative of the logits: each label of an open end is the token whose Jᵀ e_y is missing.
    """
    known = [dict(labels) for labels in counts.labels]
    for index, labels in enumerate(known):
        for child in found.children(index):
            token = found.prefixes[child][-1]
            labels[token] = max(labels.get(token, 0), counts.positions[child])
    prefixes = [torch.tensor([prefix], device=candidates.device) for prefix in found.prefixes]
    X = torch.cat([read_by(model, layer.module, prefix, -1) for prefix in prefixes]).double()
    backward = (layer.gradient.to(X.device).double() @ torch.linalg.pinv(X) / counts.alpha).T  # (n, outputs)
    ends = {}
    for index, number in so_far.open_ends.items():
        given = [token for token, times in known[index].items() for _ in range(times)]
        labels_so_far = torch.tensor(given, device=X.device).long()
        predicted, sent, atoms = _pulled_back(model, layer.module, prefixes[index], labels_so_far, candidates)
        missing = counts.positions[index] * predicted - sent - backward[index]
        ends[index] = candidates[torch.tensor(_match(missing, atoms, number), device=X.device)].tolist()
    return sentences(found, replace(counts, labels=known), ends)


def _pulled_back(
    model: nn.Module, module: nn.Module, tokens: Tensor, labels: Tensor, candidates: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Jᵀ p, Σ Jᵀ e_y over `labels` and (candidates, outputs) Jᵀ e_c, at the last position of one prefix."""
    outputs: list[Tensor] = []

    def grow(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
        outputs.append(output.detach().requires_grad_())
        return outputs[-1]

    with module.register_forward_hook(grow), torch.enable_grad():
        logits = logits_of(model(tokens))[0, -1]
    rows = torch.zeros(len(candidates) + 2, len(logits), dtype=logits.dtype, device=logits.device)
    rows[torch.arange(len(candidates)), candidates] = 1
    rows[-2] = logits.detach().softmax(0)
    rows[-1].index_add_(0, labels, torch.ones_like(labels, dtype=rows.dtype))
    pulled = torch.autograd.grad(logits, outputs[-1], rows, is_grads_batched=True)[0][:, 0, -1].double()
    return pulled[-2], pulled[-1], pulled[:-2]


def _match(left: Tensor, atoms: Tensor, number: int) -> list[int]:
    """`number` atoms whose sum is nearest to `left`: one after another, then each exchanged for a better one."""
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
