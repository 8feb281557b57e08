"""The gradient of the recovered batch, computed anew: in float64, and once as the client computes
it.

The difference of the two is rounding, measured: what the client's own gradient may be off by.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from unsum.engine.replay import CHUNK, VISIBLE, Replay, fitted_scale, norms
from unsum.head import find_head
from unsum.models.language import embedding_of, gradients_of, targets, task_of
from unsum.separate.text.network import device_of
from unsum.separate.text.recovered import Text
from unsum.separate.text.watch import Watch
from unsum.update import Update

_BADLY = 10.0  # times our own rounding: another order of summation, another machine
_ACCURATE = 10.0  # likewise, of features
# [times the quietest row] what noise makes of another row of an embedding, at most. Chosen by:
# arbitrary margin; of 16 entries and more the norms of thousands of rows differ by less.
_LOUDER = 10.0
_MANY = (
    8  # [rows] that noise fills and texts of which nothing shows hardly do. Chosen by: arbitrary
)


@dataclass(frozen=True)
class PlayedText:
    """The replay by sequence (n of them) and tensor, with what positions and tokens send.

    `scale` is the gradient's, compared with the mean over the M positions found. `features` (M, H)
    are float64, and `errors` (M,) what a forward pass of the client's may be off by. `positions`
    (M,) is what each sends to the head, where `head_level` is seen; `traces` (n, L) what each token
    sends to its row of the embedding, where `row_levels` (V,) are seen. `unheld` are tokens that no
    sequence holds, though their rows have more of a gradient than rounding explains.
    """

    replay: Replay
    scale: float
    features: Tensor
    labels: Tensor
    inputs: Tensor  # (M,) the same number for positions that have read the same
    errors: Tensor
    positions: Tensor
    head_level: float
    traces: Tensor
    row_levels: Tensor | None  # None where the embedding's gradient was not sent
    unheld: tuple[int, ...] = ()


def play(
    model: nn.Module, update: Update, text: Text, ours: Tensor, labels: Tensor
) -> PlayedText | None:
    """The replay of a text, for which the head reads `ours` (M, H) to predict `labels`; None where
    float64 does not work."""
    names, M = list(update.gradients), len(labels)
    try:
        with (
            _in_float64(model) as precise,
            Watch(precise, names, text, embedding(precise)) as watch,
        ):
            own = _gradient(precise, text, names, M, watch)
    except RuntimeError:
        # a module that makes float32 tensors of its own cannot multiply them with these
        return None
    client = _gradient(model, text, names, M)
    scale = fitted_scale(update.gradients, own)
    rests = {
        name: _rest(model, update, name, scale, own.get(name), client.get(name)) for name in names
    }
    replay = Replay(
        names=tuple(names),
        sent=norms(update.gradients.values()).to(ours.device),
        left=torch.stack([left.norm() for left, _ in rests.values()]),
        rounding=torch.stack([rounding.norm() for _, rounding in rests.values()]),
        parts=abs(scale) * watch.parts,
    )
    features, sent = watch.positions()
    apart = (ours.double() - features).norm(dim=1) / features.norm(dim=1).clamp_min(1e-300)
    rows = rests.get(name_of(model, embedding(model).weight))
    return PlayedText(
        replay, scale, features, labels, _numbered(model, text).to(ours.device),
        errors=_ACCURATE * apart.clamp_min(torch.finfo(ours.dtype).eps),
        positions=abs(scale) * sent,
        head_level=float(replay.level[names.index(name_of(model, find_head(model)[1].weight))]),
        traces=abs(scale) * watch.traces,
        row_levels=None if rows is None else VISIBLE * torch.maximum(*rows),
        unheld=() if rows is None else _unheld(text, *rows),
    )  # fmt: skip


def _unheld(text: Text, left: Tensor, rounding: Tensor) -> tuple[int, ...]:
    """Tokens of rows (V,) in which more is `left` than `rounding` explains, and that no sequence
    holds.

    Noise is as loud in all rows: where none of many is empty, those that stand out are named.
    """
    held = torch.zeros(len(left), dtype=torch.bool, device=left.device)
    held[torch.tensor([token for row in text.tokens for token in row]) % len(left)] = True
    others = left[~held]
    noise = _LOUDER * others.min() if len(others) >= _MANY else 0.0
    return tuple((~held & (left > VISIBLE * rounding) & (left > noise)).nonzero()[:, 0].tolist())


def _gradient(
    model: nn.Module, text: Text, names: list[str], M: int, watch: Watch | None = None
) -> dict[str, Tensor]:
    """The gradient of the mean over all M positions, sequences of one length at a time."""
    own: dict[str, Tensor] = {}
    for rows, tokens, labels in text.groups(device_of(model)):
        share = int((targets(task_of(model), labels) >= 0).sum()) / M
        if watch is not None:
            watch.begin(rows, share)
        for name, g in gradients_of(model, tokens, labels, names).items():
            own[name] = (
                own[name].add_(g, alpha=share) if name in own else g if share == 1 else g * share
            )
    return own


def _numbered(model: nn.Module, text: Text) -> Tensor:
    """(M,) the same number for positions whose features are of the same tokens: of a prefix, or of
    a whole sequence."""
    task = task_of(model)
    read: list[tuple[Any, ...]] = []
    for tokens, labels in zip(text.tokens, text.labels, strict=True):
        wanted = targets(task, torch.tensor([labels]))[0].tolist()
        for place, label in enumerate(wanted):
            if label >= 0:
                read.append((*tokens[: place + 1],) if task == "next" else (tuple(tokens), place))
    numbers = {what: number for number, what in enumerate(dict.fromkeys(read))}
    return torch.tensor([numbers[what] for what in read])


def _rest(
    model: nn.Module,
    update: Update,
    name: str,
    scale: float,
    own: Tensor | None,
    client: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """What the replay left of one tensor, and what rounding explains of that at most, by rows where
    it is a matrix."""
    sent = update.gradients[name]
    sent = sent if sent.ndim == 2 else sent.reshape(1, -1)
    weight = model.get_parameter(name).detach().view_as(sent) if update.kind == "delta" else None
    left, rounding = [], []
    for rows in torch.arange(len(sent), device="cpu").split(max(1, CHUNK // max(1, sent.shape[1]))):
        some = slice(int(rows[0]), int(rows[-1]) + 1)
        there = sent[some].to(device_of(model)).double()
        ours = torch.zeros_like(there) if own is None else own.view_as(sent)[some]
        again = ours if client is None else client.view_as(sent)[some].double()
        left.append((there - scale * ours).norm(dim=1))
        carried = _carried(update, there, None if weight is None else weight[some])
        rounding.append(_BADLY * abs(scale) * (again - ours).norm(dim=1) + carried.norm(dim=1))
    return torch.cat(left), torch.cat(rounding)


def name_of(model: nn.Module, parameter: Tensor) -> str:
    """What `named_parameters` calls it."""
    return next(name for name, found in model.named_parameters() if found is parameter)


def embedding(model: nn.Module) -> nn.Embedding:
    found = embedding_of(model)
    assert found is not None
    return found[1]


class _NoFloat32(TorchFunctionMode):
    """Modules that ask for float32 on the way, as normalizations do, get float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.float:
            return args[0].double()
        named = {key: _as_float64(value) for key, value in (kwargs or {}).items()}
        return func(*[_as_float64(value) for value in args], **named)


def _as_float64(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


@contextmanager
def _in_float64(model: nn.Module) -> Iterator[nn.Module]:
    """A copy of the model that computes in float64, and constants that are made on the way as
    well."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        # frozen parts too: the embedding is watched anyway
        precise = copy.deepcopy(model).double().requires_grad_()
        for mine, client in zip(precise.modules(), model.modules(), strict=True):
            # It adds what its own precision resolves.
            if (
                isinstance(client, nn.RMSNorm)
                and isinstance(mine, nn.RMSNorm)
                and client.eps is None
            ):
                mine.eps = torch.finfo(
                    next(client.parameters(), torch.empty(0, dtype=before)).dtype
                ).eps
        with _NoFloat32():
            yield precise
    finally:
        torch.set_default_dtype(before)


def _carried(update: Update, sent: Tensor, weight: Tensor | None) -> Tensor:
    """The most that each entry may have lost on its way: half a unit in its last place."""
    kind = torch.finfo(next(iter(update.gradients.values())).dtype)
    loss = 0.5 * kind.eps * sent.abs().clamp_min(kind.smallest_normal)
    if weight is not None:  # a difference of weights, each of them rounded
        rounded = torch.finfo(weight.dtype).eps * weight.double().abs().to(loss.device)
        loss = loss + rounded / (update.learning_rate or 1.0)
    return loss
