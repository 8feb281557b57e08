"""Down through the residual blocks under a head that reads their maps: from exact features to what an inner convolution read.

The features are the last block's output, and G W their gradient, sample by sample. In every block, from its end:

1. d, the gradient behind the last BatchNorm, is the output's, where the output is positive (ReLU).
2. Each unit's input follows from its weight gradient and d (`solve`); where it is positive, it passes the gradient on (`masks`).
3. The block's own input: with a plain shortcut it is known where the output is positive, x = out − y, and lies between 0 and −y
   elsewhere, which makes the first unit's equation solvable; with a convolution on the shortcut, that one's gradient tells it.

It ends where a convolution writes more places than it has channels: its gradient then has fewer equations than unknowns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from unsum.certify.claim import grant_each
from unsum.errors import UnsumError
from unsum.head import find_head
from unsum.leak import Leak
from unsum.peel.blocks import left_product
from unsum.peel.method import MARGIN, PEELERS, Peeled, PeeledLayer, Shape
from unsum.peel.residual.blocks import Block, find_blocks
from unsum.peel.residual.masks import Mask, confirmed, scale_by
from unsum.peel.residual.solve import FLOOR, Pin, Reading, undo
from unsum.peel.residual.unit import Unit, as_maps, as_rows
from unsum.update import Update

_LOST = 1e-2  # relative residual above which the walk has lost its way


@PEELERS.register(
    "residual",
    summary="residual blocks under the head, down to what an inner convolution read",
    needs="exact features of a head that reads maps; BatchNorm; gradients in full float32",
)
def residual(
    model: nn.Module, update: Update, leak: Leak | None, *, shape: Shape | None, seed: int, layer: str | None = None
) -> Peeled:
    """What the convolution `layer` read, for every sample: (B, C, h, w); by default of the deepest one that can be reached."""
    if leak is None:
        raise UnsumError("'residual' continues a separation; give the leak of unsum.separate.")
    size = shape[-1] if shape is not None else getattr(model, "image_size", None)
    if size is None:
        raise UnsumError("'residual' must know the size of the pictures; give shape=(3, height, width).")
    blocks = find_blocks(model, update, leak.scale, size)
    names = [unit.name for block in blocks for unit in (*block.units, block.shortcut) if unit is not None]
    if layer is not None and layer not in names:
        raise UnsumError(
            f"{layer!r} is not a convolution of the blocks under the head; choose one of {', '.join(names)}."
        )
    return _Walk(model, update, leak, blocks, layer).run()


class _Reached(Exception):  # noqa: N818 (not an error: the walk is over)
    """The layer that was asked for, or the last one that can be undone."""


@dataclass
class _Walk:
    model: nn.Module
    update: Update
    leak: Leak
    blocks: list[Block]
    layer: str | None

    def run(self) -> Peeled:
        self.layers: list[PeeledLayer] = []
        self.found: Tensor | None = None
        self.notes: list[str] = []
        self.unsettled, self.confirmed = 0, True
        B = self.leak.batch_size
        last = self.blocks[-1]
        channels = last.units[-1].W.shape[0]
        side = math.isqrt(self.leak.features.shape[1] // channels)
        device = last.units[-1].W.device
        out = self.leak.features.to(device).double().reshape(B, channels, side, side)
        W = find_head(self.model)[1].weight.detach()
        G = self.leak.logits.double().softmax(1) - self.leak.targets.double()
        G = G / B if self.update.reduction == "mean" else G
        gradient = left_product(G.to(W.device), W)[0].to(device).view_as(out)  # (B, H) G W
        level = max(FLOOR, 10 * self.leak.predicted_error) * float(out.square().mean().sqrt())
        mask = confirmed(out, gradient, last.units[-1].grad_beta, level)
        self.doubtful = mask.doubtful
        out, d = out * mask.positive, gradient * mask.positive
        try:
            for block, below in zip(reversed(self.blocks), [*reversed(self.blocks[:-1]), None], strict=True):
                out, d = self._block(block, below, out, d)
        except _Reached:
            pass
        return self._answer(B)

    def _block(self, block: Block, below: Block | None, out: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
        """The block's input and its gradient, from its output and the gradient before the last ReLU."""
        sizes = _sizes(block, len(out))
        inner, y = d, out
        for number in range(len(block.units) - 1, 0, -1):
            unit, feeding = block.units[number], block.units[number - 1]
            through = partial(_gradient, unit, inner)
            reading = self._undo(unit, inner, sizes[number], scale_by(feeding.grad_beta, through))
            gradient = through(reading.maps)
            mask = confirmed(reading.maps, gradient, feeding.grad_beta, reading.level)
            self._record(unit, reading, mask)
            if number == len(block.units) - 1:
                normal = unit.forward(unit.columns(reading.maps * mask.positive))[1]
                y = as_maps(normal * unit.gamma + unit.beta, out.shape)
            inner = gradient * mask.positive
        feeding_beta = below.units[-1].grad_beta if below is not None else None
        return self._entering(block, sizes[0], feeding_beta, out, y, d, inner)

    def _entering(
        self, block: Block, size: torch.Size, beta: Tensor | None, out: Tensor, y: Tensor, d: Tensor, inner: Tensor
    ) -> tuple[Tensor, Tensor]:
        first, shortcut, bounds = block.units[0], block.shortcut, None
        told, behind, pinned = first, inner, beta
        through: Callable[[Tensor], Tensor]  # the gradient of what was read
        if shortcut is None:
            known = out > 0
            low = torch.where(known, (out - y).clamp_min(0), 0.0)
            bounds, pinned = (low, torch.where(known, low, (-y).clamp_min(0))), None
            through = lambda x: _gradient(first, inner, x) + d  # noqa: E731
        elif first.kernel == 1:  # reads no more places than the shortcut's 1×1, or too many to be told
            told, behind, size = shortcut, d, torch.Size((*size[:2], *d.shape[2:]))
            pinned = beta if first.stride == shortcut.stride else None
            through = lambda x: _gradient(first, inner, x) + _gradient(shortcut, d, x)  # noqa: E731
        else:
            through = lambda x: _gradient(first, inner, x) + _spread(shortcut, d, x)  # noqa: E731
        reading = self._undo(told, behind, size, scale_by(pinned, through), bounds)
        if told is shortcut and first.stride != shortcut.stride:
            self._record(shortcut, reading, None)
            self.notes.append(f"The scale of what {shortcut.name!r} read is that of the running statistics: a guess.")
            raise _Reached
        if beta is None:
            self._record(told, reading, None, shown=shortcut is None)
            raise _Reached
        gradient = through(reading.maps)
        mask = confirmed(reading.maps, gradient, beta, reading.level)
        self._record(told, reading, mask, shown=shortcut is None)
        if told is shortcut and shortcut.stride > 1:
            raise _Reached  # places that were passed over carry no gradient, and the block below wrote them too
        return reading.maps * mask.positive, gradient * mask.positive

    def _undo(
        self, unit: Unit, d: Tensor, size: torch.Size, pin: Pin | None, bounds: tuple[Tensor, Tensor] | None = None
    ) -> Reading:
        places, channels = d.shape[0] * d.shape[2] * d.shape[3], len(unit.W)
        if places - int(unit.batch_statistics) > channels:
            most = (channels + int(unit.batch_statistics)) // (d.shape[2] * d.shape[3])
            self.notes.append(
                f"Peeling ends at {unit.name!r}: its gradient has {channels} rows for {places} places; "
                f"{'a batch of at most ' + str(most) + ' would go on' if most else 'no batch is small enough'}."
            )
            raise _Reached
        return undo(unit, as_rows(d), size, pin, bounds)

    def _record(self, unit: Unit, reading: Reading, mask: Mask | None, *, shown: bool = False) -> None:
        """`shown`: a shortcut shows the means of the channels, too; `mask` is None where nothing confirms the zeros."""
        if reading.residual > _LOST:
            self.notes.append(
                f"Peeling ends at {unit.name!r}, whose gradient is explained to {reading.residual:.1g} only."
            )
            raise _Reached
        self.doubtful += 0 if mask is None else mask.doubtful
        self.unsettled = 0 if shown or not unit.batch_statistics or mask is None else mask.without_zero
        self.confirmed = mask is not None
        self.found = reading.maps if mask is None else reading.maps * mask.positive
        figures = reading.predicted_error, reading.residual, self.found.numel(), unit.W.numel()
        self.layers.append(PeeledLayer(unit.name, *figures))
        if unit.name == self.layer:
            raise _Reached

    def _answer(self, B: int) -> Peeled:
        if self.found is None or (self.layer is not None and self.layers[-1].name != self.layer):
            where = f"{self.layer!r}" if self.layer is not None else "any inner layer"
            raise UnsumError(" ".join([f"What {where} read cannot be peeled.", *self.notes]))
        settled = self.doubtful == 0 and self.unsettled == 0 and self.confirmed
        worst = max(layer.predicted_error for layer in self.layers) if settled else math.inf
        errors = torch.full((B,), worst, dtype=torch.float64, device=self.found.device)
        if self.doubtful:
            self.notes.append(f"{self.doubtful} channels disagree with their bias gradient.")
        if self.unsettled:
            self.notes.append(
                f"{self.unsettled} of {self.found.shape[1]} channels are positive throughout the batch, so that BatchNorm hides "
                "their mean; their smallest entry was taken for zero."
            )
        if not self.leak.exact:
            self.notes.append("The separation that this continues is not certified, so neither is what was read.")
        exact = grant_each(MARGIN * errors, above=self.leak.exact)
        return Peeled("residual", self.found, errors, exact, False, self.layers, self.notes)


def _sizes(block: Block, B: int) -> list[torch.Size]:
    """(B, I, h, w) of every unit's input."""
    _, _, h, w = block.size
    sizes = []
    for unit in block.units:
        sizes.append(torch.Size((B, unit.W.shape[1], h, w)))
        h, w = ((side + 2 * unit.padding - unit.kernel) // unit.stride + 1 for side in (h, w))
    return sizes


def _gradient(unit: Unit, d: Tensor, maps: Tensor) -> Tensor:
    """∂loss/∂input of a unit through its BatchNorm, at what it read."""
    sigma, normal = unit.forward(unit.columns(maps))
    return unit.back(unit.behind(as_rows(d), sigma, normal), maps.shape)


def _spread(shortcut: Unit, d: Tensor, maps: Tensor) -> Tensor:
    """The gradient through a shortcut's convolution, on all places of `maps`: zero on those that it did not read."""
    if shortcut.stride == 1:
        return _gradient(shortcut, d, maps)
    gradient = torch.zeros_like(maps)
    shortcut.read(gradient).add_(_gradient(shortcut, d, shortcut.read(maps)))
    return gradient
