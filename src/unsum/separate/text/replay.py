"""The gradient of the recovered batch, computed anew: in float64, sequence by sequence, and once as the client computes it.

The difference of the two is rounding, measured: what the client's own gradient may be off by.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unsum.certify.doubts.replay import VISIBLE, Replay
from unsum.head import find_head
from unsum.models.language import embedding_of, gradients_of, next_tokens
from unsum.separate.text.network import read_by
from unsum.update import Update

_BADLY = 10.0  # times our own rounding: another order of summation, another machine
_ACCURATE = 10.0  # likewise, of features


@dataclass(frozen=True)
class Played:
    """The replay by sequence (n of them) and tensor, with what positions and tokens send.

    `scale` is the gradient's, compared with the mean over the M positions found. `features` (M, H) are float64, and `errors`
    (M,) what a forward pass of the client's may be off by. `positions` (M,) is what each sends to the head, where
    `head_level` is seen; `traces` (n, L) what each token sends to its row of the embedding, where `row_levels` (V,) are seen.
    """

    replay: Replay
    names: list[str]
    scale: float
    features: Tensor
    labels: Tensor
    prefixes: Tensor  # (M,) the same number for positions that have read the same
    errors: Tensor
    positions: Tensor
    head_level: float
    traces: Tensor
    row_levels: Tensor | None  # None where the embedding's gradient was not sent


def play(model: nn.Module, update: Update, tokens: Tensor, labels: Tensor, ours: Tensor) -> Played | None:
    """The replay of tokens and labels (n, L), for which the head reads `ours` (M, H); None where float64 does not work."""
    names = list(update.gradients)
    kept = next_tokens(labels) >= 0
    with _in_float64(model) as precise:
        head = find_head(precise)[1]
        try:
            own, parts, traces = _by_sequence(precise, tokens, labels, names)
            features = read_by(precise, head, tokens, slice(None, -1))[kept]
        except RuntimeError:  # a module that makes float32 tensors of its own cannot multiply them with these
            return None
        with torch.no_grad():
            G = head(features).softmax(1)
        G[torch.arange(len(G)), next_tokens(labels)[kept]] -= 1
    client = gradients_of(model, tokens, labels, names)
    scale = _scale(update, own)
    rests = {name: _rest(model, update, name, scale, own[name], client.get(name)) for name in names}
    replay = Replay(
        sent=torch.stack([g.double().norm().to(parts.device) for g in update.gradients.values()]),
        left=torch.stack([left.norm() for left, _ in rests.values()]),
        rounding=torch.stack([rounding.norm() for _, rounding in rests.values()]),
        parts=abs(scale) * parts,
    )
    apart = (ours.double() - features).norm(dim=1) / features.norm(dim=1).clamp_min(1e-300)
    rows = rests.get(name_of(model, embedding(model).weight))
    read = [tuple(tokens[row, : place + 1].tolist()) for row, place in kept.nonzero().tolist()]
    numbers = {prefix: number for number, prefix in enumerate(dict.fromkeys(read))}
    prefixes = torch.tensor([numbers[prefix] for prefix in read], device=tokens.device)
    return Played(
        replay, names, scale, features, next_tokens(labels)[kept], prefixes,
        errors=_ACCURATE * apart.clamp_min(torch.finfo(ours.dtype).eps),
        positions=abs(scale) / len(features) * G.norm(dim=1) * features.norm(dim=1),
        head_level=float(replay.level[names.index(name_of(model, find_head(model)[1].weight))]),
        traces=abs(scale) * traces,
        row_levels=None if rows is None else VISIBLE * torch.maximum(*rows),
    )  # fmt: skip


def _rest(
    model: nn.Module, update: Update, name: str, scale: float, own: Tensor, client: Tensor | None
) -> tuple[Tensor, Tensor]:
    """What the replay left of one tensor, and what rounding explains of that at most, by rows where it is a matrix."""
    sent = update.gradients[name].to(own.device)
    computed = torch.zeros_like(own) if client is None else client.double() - own
    rounding = _BADLY * abs(scale) * _by_rows(computed) + _by_rows(_carried(update, model, name).to(own.device))
    return _by_rows(sent.double() - scale * own), rounding


def _by_rows(tensor: Tensor) -> Tensor:
    return tensor.norm(dim=1) if tensor.ndim == 2 else tensor.norm()[None]


def name_of(model: nn.Module, parameter: Tensor) -> str:
    """What `named_parameters` calls it."""
    return next(name for name, found in model.named_parameters() if found is parameter)


def embedding(model: nn.Module) -> nn.Embedding:
    found = embedding_of(model)
    assert found is not None
    return found[1]


@contextmanager
def _in_float64(model: nn.Module) -> Iterator[nn.Module]:
    """A copy of the model that computes in float64, and constants that are made on the way as well."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield copy.deepcopy(model).double().requires_grad_()  # frozen parts too: the embedding is watched in any case
    finally:
        torch.set_default_dtype(before)


def _by_sequence(
    model: nn.Module, tokens: Tensor, labels: Tensor, names: list[str]
) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """The mean's gradient, the norms (n, tensors) of what each sequence adds to it, and those (n, L) at the embedding."""
    parameters = dict(model.named_parameters())
    watched = [*names, name_of(model, embedding(model).weight)]
    arrived: list[Tensor] = []

    def watch(_module: nn.Module, _inputs: object, output: Tensor) -> None:
        output.register_hook(arrived.append)

    counted = (next_tokens(labels) >= 0).sum(1)
    own = {name: torch.zeros_like(parameters[name], requires_grad=False) for name in names}
    parts = tokens.new_zeros(len(tokens), len(names), dtype=torch.float64)
    traces = tokens.new_zeros(tokens.shape, dtype=torch.float64)
    with embedding(model).register_forward_hook(watch):
        for row, share in enumerate((counted / counted.sum()).tolist()):
            arrived.clear()
            sent = gradients_of(model, tokens[row : row + 1], labels[row : row + 1], watched)
            for column, name in enumerate(names):
                if name in sent:
                    own[name] += share * sent[name]
                    parts[row, column] = share * sent[name].norm()
            for reached in arrived:
                traces[row] += share * reached[0].norm(dim=-1)
    return own, parts, traces


def _scale(update: Update, own: dict[str, Tensor]) -> float:
    """The factor that leaves least of what was sent."""
    both = sum(float((update.gradients[name].to(g) * g).sum()) for name, g in own.items())
    return both / max(sum(float(g.square().sum()) for g in own.values()), 1e-300)


def _carried(update: Update, model: nn.Module, name: str) -> Tensor:
    """The most that each entry may have lost on its way: half a unit in its last place."""
    sent = update.gradients[name]
    kind = torch.finfo(sent.dtype)
    loss = 0.5 * kind.eps * sent.double().abs().clamp_min(kind.smallest_normal)
    if update.kind == "delta":  # a difference of weights, each of them rounded
        weight = model.get_parameter(name).detach()
        rounded = torch.finfo(weight.dtype).eps * weight.double().abs().to(loss.device)
        loss = loss + rounded / (update.learning_rate or 1.0)
    return loss
