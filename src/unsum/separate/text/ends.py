"""Last labels that tied embeddings hide: a token's row holds its input side too, and the head's side is lost in it.

The last linear layer below the head has a gradient of its own, ∇V = δᵀ X. Its inputs X are known once the prefixes are, so
δ = ∇V X⁺, position by position, and δ_i = α Jᵢᵀ (n p − Σ e_y) with J the derivative of the logits: each label of an open end
is the token whose Jᵀ e_y is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from unsum.models.language import logits_of
from unsum.separate.text.counts import Counts
from unsum.separate.text.network import Layer, read_by

_EXCHANGES = 4


def find_ends(
    model: nn.Module,
    layer: Layer,
    prefixes: list[tuple[int, ...]],
    counts: Counts,
    known: list[dict[int, int]],
    open_ends: Mapping[int, int],
    candidates: Tensor,
) -> dict[int, list[int]]:
    """For every open end its labels, out of `candidates`; `known` are each prefix's labels so far."""
    device = candidates.device
    X = torch.cat([read_by(model, [layer.module], torch.tensor([p], device=device), -1)[0] for p in prefixes]).double()
    backward = (layer.gradient.to(device).double() @ torch.linalg.pinv(X) / counts.alpha).T  # (n, outputs)
    ends = {}
    for index, number in open_ends.items():
        tokens = torch.tensor([prefixes[index]], device=device)
        labels = torch.tensor([token for token, times in known[index].items() for _ in range(times)], device=device)
        predicted, given, atoms = _pulled_back(model, layer.module, tokens, labels.long(), candidates)
        missing = counts.positions[index] * predicted - given - backward[index]
        ends[index] = candidates[torch.tensor(_match(missing, atoms, number), device=device)].tolist()
    return ends


def _pulled_back(
    model: nn.Module, module: nn.Module, tokens: Tensor, labels: Tensor, candidates: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Jᵀ p, Σ Jᵀ e_y over `labels` and (candidates, outputs) Jᵀ e_c, at the last position of one prefix."""
    outputs: list[Tensor] = []

    def grow(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
        outputs.append(output.detach().requires_grad_())
        return outputs[-1]

    hook = module.register_forward_hook(grow)
    try:
        with torch.enable_grad():
            logits = logits_of(model(tokens))[0, -1]
    finally:
        hook.remove()
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
