"""Rows of embeddings that were asked for: which tokens, or values of a category, occurred in the client's samples.

The gradient of an embedding is a sum over lookups. A row that nobody asked for is zero, and stays so under clipping, pruning,
signs, quantization through zero, several local steps and momentum; what is not zero was asked for. That needs no solver.

Where no row is zero, something else wrote to all of them. Noise did so evenly: its rows have ‖g‖² = σ² χ²_d and point anywhere,
and σ follows from the median of them; rows that are longer than noise makes any were asked for. Where the bulk of the rows is
no such noise, as where the head shares its weights with the embedding, nothing is said.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from unsum.leak import Leak
from unsum.models.language import embedding_of
from unsum.update import Update

_Z = 5.5  # normal deviations beyond which noise makes no row of a million so long
_IN_A_ROW = 8  # rows that categories hardly fill without a gap, when they leave others out
_FEWEST = 32  # rows below which there is no bulk to measure noise on
_SPREAD = 1.25  # times what χ² has between its quartiles, up to which a bulk is noise
_ALIGNED = 8.0  # times what rows of noise add up to, from which they share a direction


def with_occurred(model: nn.Module, update: Update, leak: Leak) -> Leak:
    """The leak with the rows of every embedding that were asked for, and a note that counts them."""
    found = rows_asked_for(model, update)
    if not found:
        return leak
    counts = [f"{len(rows)} of {_size(model, name)} of {name!r}" for name, rows in found.items()]
    note = f"The gradients of embeddings name the rows that the client's samples asked for: {', '.join(counts)}."
    return replace(leak, occurred=found, notes=[*leak.notes, note])


def rows_asked_for(model: nn.Module, update: Update) -> dict[str, Tensor]:
    """Embedding → the numbers of its rows that were asked for, ascending; without those where that is not decidable."""
    found, tokens = dict[str, Tensor](), embedding_of(model)
    for name, module in embeddings(model).items():
        if tokens is not None and module is not tokens[1]:  # positions, segments
            continue
        gradient = update.gradients.get(f"{name}.weight" if name else "weight")
        rows = None if gradient is None else _asked(gradient.detach(), module.padding_idx)
        if rows is not None and len(rows) and not _are_positions(rows):
            found[name] = rows
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


def _are_positions(rows: Tensor) -> bool:
    """Row after row from the first one on: what a sequence asks an embedding of positions for, whatever its samples are."""
    return len(rows) >= _IN_A_ROW and torch.equal(rows, torch.arange(len(rows)))


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
    count, width = rows.shape
    if count < _FEWEST:
        return None
    energy = rows.square().sum(1)
    lower, middle, upper = energy.quantile(
        torch.tensor([0.25, 0.5, 0.75], dtype=energy.dtype, device=energy.device)
    ).tolist()
    variance = middle / _chi_squared(width, 0.0)
    usual = _chi_squared(width, 0.6745) - _chi_squared(width, -0.6745)
    bulk = rows[energy <= upper]
    together = float(bulk.sum(0).square().sum()) / max(float(bulk.square().sum()), 1e-300)  # 1 where directions are any
    spread = (upper - lower) / max(variance * usual, 1e-300)
    if not 1 / _SPREAD < spread < _SPREAD or together > _ALIGNED:
        return None
    return (energy > variance * _chi_squared(width, _Z)).nonzero()[:, 0].cpu()


def _chi_squared(degrees: int, z: float) -> float:
    """The quantile of χ² at so many normal deviations (Wilson and Hilferty 1931)."""
    share = 2 / (9 * degrees)
    return degrees * float(max(1 - share + z * share**0.5, 0.0)) ** 3


def _size(model: nn.Module, name: str) -> int:
    return int(model.get_submodule(name).weight.shape[0])  # type: ignore[index]
