"""An input that a model takes, found by trying, and passes that leave no trace in the model or in
what is drawn after them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from unsum.gradients import same_buffers, same_modes
from unsum.running.sharing import once

# Sides of pictures. The small ones come first, since a pass costs the least there; no attack needs
# to know which one is right.
_SIDES = (28, 32, 64, 96, 128, 160, 192, 224, 256, 299, 384, 512)
# sides that are tried where none of these suits: layers behind a flattening take one alone
_UNUSUAL = range(4, 65)
_LENGTHS = (16, 64, 128, 256, 512, 1024)  # of signals
_DEPTHS = (8, 16, 32)  # of volumes
_TOKENS = 3  # of a text
_CHANNELS = (3, 1)  # of pictures that a dense layer reads
_FIRST = 4  # dense layers whose width may be the input's
_BATCHES = (2, 1)  # samples of a pass: one alone where a model takes no more
_LOGITS = ("logits", "out")  # what mappings and objects call the output that the loss is of


@contextmanager
def without_trace(model: nn.Module, *, train: bool) -> Iterator[None]:
    """Passes in train or eval mode; modes, buffers and random numbers are afterwards as before, and
    nothing is compiled.
    """
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    devices = [device] if device.type == "cuda" else []
    with ExitStack() as scopes:
        scopes.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        scopes.enter_context(torch.random.fork_rng(devices=devices))
        scopes.enter_context(same_buffers(model))
        scopes.enter_context(same_modes(model))
        scopes.enter_context(torch.compiler.set_stance("force_eager"))
        model.train(train)
        yield


def accepted_input(model: nn.Module) -> Tensor | None:
    """(n, …) an input that the model takes in eval mode: random pictures, rows, signals or tokens;
    None where none was found.
    """
    return once("accepted input", (model,), lambda: _accepted_input(model), of_model=True)


def _accepted_input(model: nn.Module) -> Tensor | None:
    with without_trace(model, train=False), torch.no_grad():
        for x in _trials(model):
            try:
                model(x)
            except Exception:  # the user's own forward
                continue
            return x
    return None


def main_tensor(output: Any) -> Tensor | None:
    """The tensor that the loss is of: the output, the first of several, or what goes by the name of
    logits.
    """
    for name in _LOGITS:
        held = output.get(name) if isinstance(output, dict) else getattr(output, name, None)
        if isinstance(held, Tensor):
            return held
    while isinstance(output, tuple | list) and output:
        output = output[0]
    return output if isinstance(output, Tensor) else None


def _trials(model: nn.Module) -> Iterator[Tensor]:
    """Inputs to try: of all shapes in [0, 1], as pictures are, then of both signs."""
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(1))
    if like.device.type == "meta":
        return
    draw: Callable[..., Tensor]
    shapes = [*dict.fromkeys(_shapes(model))]
    for draw in (torch.rand, torch.randn):
        for batch in _BATCHES:
            if draw is torch.rand:
                yield from _texts(model, batch, like.device)
            for shape in shapes:
                yield draw(batch, *shape, generator=torch.Generator().manual_seed(0)).to(like)


def _texts(model: nn.Module, batch: int, device: torch.device) -> Iterator[Tensor]:
    """Token numbers, where the first layer is an embedding."""
    sizes = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)]
    if sizes and not getattr(model, "reads_table", False):
        tokens = torch.arange(batch * _TOKENS, device=device).view(batch, _TOKENS)
        yield (tokens + 1) % min(max(sizes), batch * _TOKENS + 1)
        yield torch.zeros_like(tokens)


def _shapes(model: nn.Module) -> Iterator[tuple[int, ...]]:
    """Shapes of one input that the layers suggest, the likeliest first."""
    dense = [m for m in model.modules() if isinstance(m, nn.Linear)]
    told, own = getattr(model, "input_shape", None), getattr(model, "image_size", None)
    if isinstance(told, tuple):
        yield told
    sides = [
        *_SIDES[:2],
        *([own] if isinstance(own, int) and own > 0 else []),
        *_SIDES[2:],
        *(_UNUSUAL if dense else ()),
    ]
    layers = list(model.modules())
    recurrent = next((m for m in layers if isinstance(m, nn.RNNBase)), None)
    if recurrent is not None:
        yield _TOKENS + 1, recurrent.input_size
    first = next((m for m in layers if isinstance(m, nn.Conv1d | nn.Conv2d | nn.Conv3d)), None)
    if not isinstance(first, nn.Conv2d):
        yield from _rows(model, dense)
    if isinstance(first, nn.Conv1d):
        yield from ((first.in_channels, length) for length in _LENGTHS)
    if isinstance(first, nn.Conv3d):
        yield from ((first.in_channels, side, side, side) for side in _DEPTHS)
    channels = [first.in_channels] if isinstance(first, nn.Conv2d) else list(_CHANNELS)
    if isinstance(first, nn.Conv2d) or (first is None and own):
        yield from ((c, side, side) for side in sides for c in channels)
    if isinstance(first, nn.Conv2d):
        yield from _rows(model, dense)


def _rows(model: nn.Module, dense: list[nn.Linear]) -> Iterator[tuple[int, ...]]:
    """Rows of numbers, the pictures and the sequences that have as many, and rows of numbers and
    codes.
    """
    for layer in dense[:_FIRST]:
        n = layer.in_features
        yield (n,)
        for channels in _CHANNELS:
            side = math.isqrt(n // channels)
            if channels * side * side == n and side > 1:
                yield channels, side, side
        yield _TOKENS, n
    embeddings = [m for m in model.modules() if isinstance(m, nn.Embedding)]
    if embeddings and dense:
        plain = dense[0].in_features - sum(m.embedding_dim for m in embeddings)
        if plain >= 0:
            yield (plain + len(embeddings),)
