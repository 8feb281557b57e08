"""Does a model look as if its server had prepared it to leak? For clients, before they train what
they were sent.

Two preparations give samples away directly (`unsum.active`), and both show in a weight matrix,
wherever in the model it stands:

- **imprint**: many rows point in one direction, and their thresholds −b_i/‖w_i‖ differ. The angle
  between rows stays when rows are scaled, negated or permuted, and hardly changes under a little
  noise.
- **traps**: every row leans to one sign by the same amount. z_i = Σ_j w_ij / ‖w_i‖ of rows drawn
  independently scatters with standard deviation 1, trained rows more; halves of equal magnitudes
  pin it down. Single rows show it, too: their sorted positive and negative entries are the same up
  to one factor.

A model that passes is not proved harmless: rows drowned in noise still read samples, as any layer
of independent rows does now and then, and other preparations exist.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unsum.doctor.finding import Finding

# in fewer dimensions rows are parallel by chance; such a layer holds no picture either
_FEW_COLUMNS = 16
# |cosine| to a common direction, and how many rows, what share of the layer and how many columns
# make that no accident. Noise as large as a row leaves 0.5; of trained layers at most a fifth of
# the rows, and eight at 0.7, were found as near.
_BANDS = ((0.9, 8, 0.0, 16), (0.7, 24, 0.0, 256), (0.4, 16, 0.5, 512))
_BAND = 8  # parallel rows of different thresholds: that many bins
_SKETCH = 128  # projections that find candidates in wide layers before the exact angle decides
_BLOCK = 2048  # rows whose angles with all others are held at a time
_TRAP_COLUMNS = 64  # narrower layers are not looked at
_LEAN = 0.25  # least mean |z| of rows that most inputs leave silent
_HALF_NORMAL = 0.603, 0.43  # spread of |z| of independent rows, and that spread's own for one row
# of |z| of trap rows, however many there are; independent rows have the spread above
_MOST_SPREAD = 0.35
# of z itself, 1 for independent rows; asked only of layers with a bias, which traps divide by
_MOST_SIGNED = 0.6
_MOMENTS = 0.5  # likewise in units of 1/√D: a few in a hundred independent rows come as near
_PAIRED = 0.15  # of the misfit that independent entries would show


@dataclass(frozen=True)
class WeightMatrix:
    """A weight as a matrix (rows, D) without its empty rows, and its bias where there is one."""

    name: str
    weight: Tensor
    bias: Tensor | None


def tampering(model: nn.Module | Mapping[str, Tensor]) -> list[Finding]:
    """One finding for each kind of preparation. Takes a model or its tensors by name."""
    tensors = dict(model.named_parameters()) if isinstance(model, nn.Module) else model
    layers = list(_layers(tensors))
    looked = f"in {len(layers)} weight matrices"
    bands = [(layer.name, *band) for layer in layers if (band := parallel_rows(layer)) is not None]
    trapped = [(layer.name, count) for layer in layers if (count := trap_rows(layer))]
    said = Finding("ok", "traps", f"No rows balanced to stay silent {looked}.")
    if trapped:
        name, count = max(trapped, key=lambda layer: layer[1])
        sentence = (
            f"{count} rows of {name!r} are balanced between positive and negative weights as no "
            "training leaves them: such rows answer to single samples and give them away. Do not "
            "train this model before its operator explains it."
        )
        said = Finding("tampered", "traps", sentence)
    return [_imprint(bands, looked), said]


def _imprint(bands: list[tuple[str, int, int]], looked: str) -> Finding:
    thresholds = [(name, rows, count) for name, rows, count in bands if count >= _BAND]
    if thresholds:
        name, rows, count = max(thresholds, key=lambda band: band[2])
        sentence = (
            f"{rows} rows of {name!r} point in one direction and have {count} different "
            "thresholds: such a layer sorts samples into bins and gives away every one that is "
            "alone in its bin. Do not train this model before its operator explains it."
        )
        return Finding("tampered", "imprint", sentence)
    if bands:
        name, rows, _ = max(bands, key=lambda band: band[1])
        sentence = (
            f"{rows} rows of {name!r} are copies of one another: no sorting into bins, but no "
            "accident either."
        )
        return Finding("warning", "imprint", sentence)
    return Finding("ok", "imprint", f"No band of parallel rows {looked}.")


def _layers(tensors: Mapping[str, Tensor]) -> Iterator[WeightMatrix]:
    for name, tensor in tensors.items():
        if tensor.ndim < 2 or not tensor.is_floating_point() or tensor[0].numel() < _FEW_COLUMNS:
            continue
        matrix = tensor.detach().flatten(1).float()
        norms = matrix.norm(dim=1)
        kept = (
            torch.isfinite(norms)
            & (norms > 1e-4 * norms.nan_to_num(0, 0, 0).median())
            & (norms > 0)
        )
        if int(kept.sum()) < _BAND:
            continue
        bias = (
            tensors.get(f"{name.removesuffix('weight')}bias") if name.endswith("weight") else None
        )
        fits = bias is not None and bias.shape == norms.shape
        yield WeightMatrix(
            name, matrix[kept], bias.detach().float()[kept] if fits and bias is not None else None
        )


def parallel_rows(layer: WeightMatrix) -> tuple[int, int] | None:
    """The largest band of parallel rows and how many thresholds it has, or None where there is no
    such band."""
    W = layer.weight
    norms = W.norm(dim=1, keepdim=True)
    unit = W / norms
    centers = _crowded(unit, [band[0] for band in _BANDS])
    for (least, rows, share, columns), center in zip(_BANDS, centers, strict=True):
        if W.shape[1] < columns or (least < _BANDS[0][0] and layer.bias is None):
            continue
        cosines = unit @ unit[center]
        band = cosines.abs() > least
        count = int(band.sum())
        if count < max(rows, share * len(W)):
            continue
        if layer.bias is None:
            return count, 0
        thresholds = (layer.bias / norms.squeeze(1) * cosines.sign())[band]
        # Copies trained apart by rounding are no bins: thresholds count as different beyond a
        # thousandth of their size.
        steps = thresholds.sort().values.diff()
        return count, 1 + int((steps > 1e-3 * thresholds.abs().median().clamp_min(1e-12)).sum())
    return None


def _crowded(unit: Tensor, levels: list[float]) -> list[int]:
    """The row with the most neighbors at each level of |cosine|, by sketches where rows are many
    and long."""
    rows, columns = unit.shape
    if rows * columns > 1 << 20 and columns > _SKETCH:
        generator = torch.Generator().manual_seed(0)
        unit = unit @ torch.randn(columns, _SKETCH, generator=generator).to(unit)
        unit = unit / unit.norm(dim=1, keepdim=True)
    near: list[list[Tensor]] = [[] for _ in levels]
    for block in unit.split(_BLOCK):
        cosines = (block @ unit.T).abs_()
        for found, level in zip(near, levels, strict=True):
            found.append((cosines > level - 0.05).sum(1))
    return [int(torch.cat(found).argmax()) for found in near]


def trap_rows(layer: WeightMatrix) -> int:
    """How many rows are balanced: all, where they lean to one sign by one amount, or those whose
    halves are the same numbers."""
    W = layer.weight
    rows, columns = W.shape
    if columns < _TRAP_COLUMNS:
        return 0
    split = (W < 0).float().mean(1)
    halves = (split > 0.35) & (split < 0.65) & ((W == 0).float().mean(1) < 0.05)
    if int(halves.sum()) < _BAND:
        return 0
    z = W[halves].sum(1) / W[halves].norm(dim=1)
    lean = z.abs()
    usual, own = _HALF_NORMAL
    limit = min(_MOST_SPREAD, usual - 5 * own / math.sqrt(len(z)))
    signed = min(_MOST_SIGNED, 1 - 5 / math.sqrt(2 * len(z)))
    alike = layer.bias is not None and float(z.std()) < signed and abs(float(z.mean())) > _LEAN
    narrow = alike or float(lean.std()) < limit
    if float(halves.float().mean()) > 0.9 and float(lean.mean()) > _LEAN and narrow:
        return rows
    # Only these: sorting every row of a large model would take minutes.
    likely = halves.nonzero().flatten()[_alike_in_moments(W[halves])]
    paired = int((pair_misfit(W[likely]) < _PAIRED).sum())
    return paired if paired >= _BAND else 0


def _alike_in_moments(W: Tensor) -> Tensor:
    """(rows,) whether positive and negative entries agree in the ratio of their second moment to
    their first, squared."""
    total, size, positive = W.sum(1), W.abs().sum(1), W.clamp_min(0).square().sum(1)
    negative = W.square().sum(1) - positive
    first = (size + total) / (size - total).clamp_min(1e-30)
    return (positive / negative.clamp_min(1e-30) / first.square() - 1).abs() * math.sqrt(
        W.shape[1]
    ) < _MOMENTS


def pair_misfit(W: Tensor) -> Tensor:
    """(rows,) how far a row's sorted positive entries are from a multiple of its sorted negative
    ones; about 1 by chance.

    The relative misfit of two samples of D/2 magnitudes falls as 1/√D; it is given in units of
    that.
    """
    order = W.sort(1).values
    half = W.shape[1] // 2
    low, high = -order[:, :half], order[:, -half:].flip(1)
    share = (low * high).sum(1, keepdim=True) / low.square().sum(1, keepdim=True).clamp_min(1e-30)
    relative: Tensor = (high - share * low).norm(dim=1) / high.norm(dim=1).clamp_min(1e-30)
    return relative * math.sqrt(W.shape[1])
