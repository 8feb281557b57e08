"""Rows of embeddings that were asked for: which tokens, or values of a category, occurred in the
client's samples.

The gradient of an embedding is a sum over lookups. A row that nobody asked for is zero, and stays
so under clipping, pruning, signs, quantization through zero, several local steps and momentum; what
is not zero was asked for. That needs no solver.

Where no row is zero, something else wrote to all of them. Noise did so evenly: its rows have ‖g‖² =
σ² χ²_d and point anywhere. The shortest quarter is taken for noise, then whatever such noise may
have made as well; its kurtosis says how heavy its tails are (Laplace's are). Rows that are longer
than it makes any were asked for. Where the bulk of the rows is no such noise, nothing is said.

Rows that a sequence asks for by its length alone, as it does of positions, name nothing
(`unsum.attack.positions`).

Where the head shares its weights with the embedding, its own part writes to all rows: (P − Y)ᵀ F,
whose rows lie in the span of the features F, of as many dimensions as there are positions. A lookup
adds what points anywhere. So rows outside the span that half of all rows have, the shortest, were
asked for; where that span fills the width, nothing is said.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from unsum.attack.positions import positions_among
from unsum.leak import Leak
from unsum.models.language import embedding_of, is_tied, rows_of
from unsum.separate.adaptive.recognize import find_lattice
from unsum.update import Update

_Z = 5.5  # normal deviations beyond which noise makes no row of a million so long
# of the largest eigenvalue: what float32 leaves of directions that rows do not have
_ROUNDING = 1e-13
_ROOM = 4  # dimensions outside the head's span, in which a lookup shows
# shares of a row beside the span: at most, at least, and times the usual
_INSIDE, _OUTSIDE, _TIMES = 1e-3, 1e-2, 30.0
_FEWEST = 32  # rows below which there is no bulk to measure noise on
# [share] of the rows, the shortest, that noise alone wrote to. Chosen by: arbitrary, most values of
# most columns
_START = 0.25
_ROUNDS = 50  # [1] growths of the bulk. Chosen by: arbitrary budget, it takes about five
_NORMAL = 3.0  # [1] kurtosis of normal noise; Laplace's is 6
_SPREAD = 1.25  # times what χ² has between its quartiles, up to which a bulk is noise
_ALIGNED = 8.0  # times what rows of noise add up to, from which they share a direction


def with_occurred(model: nn.Module, update: Update, leak: Leak) -> Leak:
    """The leak with the rows of every embedding that were asked for, and a note that counts
    them."""
    found = rows_asked_for(model, update)
    if not found:
        return leak
    counts = [f"{len(rows)} of {_size(model, name)} of {name!r}" for name, rows in found.items()]
    note = (
        "The gradients of embeddings name the rows that the client's samples asked for: "
        f"{', '.join(counts)}."
    )
    sizes = {name: _size(model, name) for name in found}
    return replace(leak, occurred=found, embedding_rows=sizes, notes=[*leak.notes, note])


def rows_asked_for(model: nn.Module, update: Update) -> dict[str, Tensor]:
    """Embedding → the numbers of its rows that were asked for, ascending; without those where that
    is not decidable."""
    found, tokens = dict[str, Tensor](), embedding_of(model)
    for name, module in embeddings(model).items():
        if tokens is not None and module is not tokens[1]:  # positions, segments
            continue
        gradient = update.gradients.get(f"{name}.weight" if name else "weight")
        rows = None if gradient is None else _asked(gradient.detach(), module.padding_idx)
        if rows is not None and len(rows):
            found[name] = rows
    if tokens is None:
        for name in positions_among(model, found):
            del found[name]
    if tokens is not None and tokens[0] not in found and is_tied(model):
        name = next(
            name for name, parameter in model.named_parameters() if parameter is tokens[1].weight
        )
        rows = (
            _outside_the_head(update.gradients[name].detach().double())
            if name in update.gradients
            else None
        )
        if rows is not None and len(rows):
            found[tokens[0]] = rows
    return found


def embeddings(model: nn.Module) -> dict[str, nn.Embedding | nn.EmbeddingBag]:
    """By name, those whose weights nothing else uses."""
    users: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            users[id(parameter)] = users.get(id(parameter), 0) + 1
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and users[id(module.weight)] == 1
    }


def _asked(gradient: Tensor, padding: int | None) -> Tensor | None:
    rows = gradient.to_dense() if gradient.is_sparse else gradient
    finite = rows.flatten(1).isfinite().all(1)
    written = rows.flatten(1).any(1)
    if not bool(finite.all()):
        return None
    if bool(written.all()) or (padding is not None and bool(written[padding])):
        return _beyond_noise(rows.double())
    return written.nonzero()[:, 0].cpu()


def _beyond_noise(rows: Tensor) -> Tensor | None:
    """The rows longer than noise makes any; None where the bulk of them is no noise."""
    if len(rows) < _FEWEST:
        return None
    normal = _longer(rows, _NORMAL)
    return normal if normal is not None else _longer(rows, math.inf)


def _longer(rows: Tensor, heaviest: float) -> Tensor | None:
    """The same for noise whose kurtosis is `heaviest` at most."""
    energy, fourth, width = rows.square().sum(1), rows.square().square().sum(1), rows.shape[1]
    bulk = energy <= energy.quantile(_START)
    for _ in range(_ROUNDS):  # the bulk grows by what may be noise as well, until nothing is added
        variance = max(float(energy[bulk].mean()) / width, 1e-300)
        kurtosis = float(fourth[bulk].mean()) / width / variance**2
        tails = min(max(kurtosis, _NORMAL), heaviest)
        # Of the χ² with mean and variance of such an energy: the width itself where noise is
        # normal.
        degrees = 2 * width / (tails - 1)
        most = variance * width / degrees * _chi_squared(degrees, _Z)
        grown = energy <= most
        if torch.equal(grown, bulk):
            break
        bulk = grown
    count = int(bulk.sum())
    lower, upper = energy[bulk].quantile(energy.new_tensor([0.25, 0.75])).tolist()
    usual = (
        variance
        * width
        / degrees
        * (_chi_squared(degrees, 0.6745) - _chi_squared(degrees, -0.6745))
    )
    # 1 where directions are any
    together = float(rows[bulk].sum(0).square().sum()) / (variance * width * count)
    # heavy tails lie outside the quartiles
    alike = _NORMAL / (_SPREAD * tails) < (upper - lower) / usual < _SPREAD
    if count < _FEWEST / 2 or not alike or together > _ALIGNED or kurtosis > _SPREAD * heaviest:
        return None
    return (energy > most).nonzero()[:, 0].cpu()


def _outside_the_head(rows: Tensor) -> Tensor | None:
    """The rows (V, d) outside the span that the shorter half of them has; None where that is no
    proper part of the width."""
    lengths = rows.norm(dim=1)
    changed = (
        not bool((rows != 0).all()) or find_lattice(rows) is not None
    )  # pruned, rounded, signs: they fill other spans
    if len(rows) < _FEWEST or not bool(lengths.isfinite().all()) or changed:
        return None
    half = len(rows) // 2
    bulk = rows[lengths.argsort()[:half]]
    unit = bulk / bulk.norm(dim=1, keepdim=True)
    values, vectors = torch.linalg.eigh(unit.T @ unit)
    values = values.flip(0).clamp_min(_ROUNDING * float(values.max()))
    drops = values[:-1] / values[1:]
    rank = int(drops.argmax()) + 1
    if rank > min(half // 2, rows.shape[1] - _ROOM):
        return None
    span = vectors.flip(1)[:, :rank]
    apart = (rows - (rows @ span) @ span.T).norm(dim=1) / lengths
    usual = float(apart.sort().values[half])
    return (
        (apart > max(_OUTSIDE, _TIMES * usual)).nonzero()[:, 0].cpu() if usual < _INSIDE else None
    )


def _chi_squared(degrees: float, z: float) -> float:
    """The quantile of χ² at so many normal deviations (Wilson and Hilferty 1931)."""
    share = 2 / (9 * degrees)
    return degrees * float(max(1 - share + z * share**0.5, 0.0)) ** 3


def _size(model: nn.Module, name: str) -> int:
    return rows_of(model.get_submodule(name))
