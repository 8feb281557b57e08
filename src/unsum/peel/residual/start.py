"""Where the walk starts: the output of the first block to undo, with its gradient, and which of its
entries are positive."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from unsum.errors import UnsumError
from unsum.head import find_head
from unsum.leak import Leak
from unsum.network.products import left_product
from unsum.network.residual_blocks import Block, Blocks, block_names, gradient_above
from unsum.peel.residual.masks import confirmed
from unsum.peel.residual.solve import FLOOR
from unsum.update import Update

# times the error predicted: values before a ReLU above it are on the side that they seem to be on
_CLEAR = 10.0


@dataclass(frozen=True)
class Origin:
    """`out` (B, C, h, w) the known maps, `gradient` ∂loss/∂out; `errors` (B,) what is uncertain of
    either, relative."""

    out: Tensor
    gradient: Tensor
    errors: Tensor
    level: Tensor  # (B, 1, 1, 1) entries below may be zeros
    inner: dict[str, Tensor] = field(default_factory=dict)  # what convolutions above read
    misfit: float = 0.0  # of the gradients above, relative: the worst one


def known_block(model: nn.Module, leak: Leak) -> str | None:
    """The deepest block whose input the leak holds."""
    return next((name for name in block_names(model) if f"{name}.conv1" in leak.inner), None)


def at_features(model: nn.Module, update: Update, leak: Leak, last: Block) -> Origin:
    """Features that are the last block's output as it is, and G W their gradient."""
    B, unit = leak.batch_size, last.units[-1]
    channels, device = len(unit.W), unit.W.device
    side = math.isqrt(leak.features.shape[1] // channels)
    if channels * side * side != leak.features.shape[1]:
        raise UnsumError(
            f"The features of the leak, {leak.features.shape[1]} for each sample, are no square "
            f"maps of {channels} channels, so the walk has no start."
        )
    out = leak.features.to(device).double().reshape(B, channels, side, side)
    W = find_head(model)[1].weight.detach()
    G = leak.logits.double().softmax(1) - leak.targets.double()
    G = G / B if update.reduction == "mean" else G
    gradient = left_product(G.to(W.device), W)[0].to(device).view_as(out)  # (B, H) G W
    return Origin(out, gradient, _even(leak, out), _level(leak, out))


def at_maps(model: nn.Module, update: Update, leak: Leak, blocks: Blocks, size: int) -> Origin:
    """The known input of a block: through all blocks above it to the loss in float64, and its
    gradient back down."""
    first = blocks.above[0]
    maps = leak.inner[f"{first.name}.conv1"].to(first.units[0].W).clamp_min(0)
    if maps.shape != (wanted := (leak.batch_size, *first.size[1:])):
        raise UnsumError(
            f"The leak holds maps of shape {tuple(maps.shape)} for {first.name!r}, which reads "
            f"{tuple(wanted)}; give the leak of this model, and the size of its pictures in shape=."
        )
    passes, out = [], maps
    for block in blocks.above:
        passes.append(block.passed(out))
        out = passes[-1][1][-1].relu()
    gradient = gradient_above(
        model, blocks.above[-1].name, out, leak.targets, size, mean=update.reduction == "mean"
    )
    inner: dict[str, Tensor] = {}
    errors, misfit = _even(leak, maps), 0.0
    for block, (read, before) in zip(reversed(blocks.above), reversed(passes), strict=True):
        gradient, mask_share, off = _down(
            block, read, before, gradient, max(FLOOR, _CLEAR * leak.estimate)
        )
        errors, misfit = errors + mask_share, max(misfit, off)
        inner |= {unit.name: maps for unit, maps in zip(block.units, read, strict=True)}
    return Origin(maps, gradient, errors, _level(leak, maps), inner, misfit)


def _down(
    block: Block, read: list[Tensor], before: list[Tensor], gradient: Tensor, doubt: float
) -> tuple[Tensor, Tensor, float]:
    """The gradient at a block's input from that at its output; (B,) the share of it that is open,
    and the weights' worst misfit.

    Rounding decides on which side of zero a few values fell for the client: the bias gradients
    tell.
    """
    share, misfit, whole = gradient.new_zeros(len(gradient)), 0.0, gradient
    for number in range(len(block.units) - 1, -1, -1):
        unit = block.units[number]
        level = doubt * before[number].square().mean((1, 2, 3), keepdim=True).sqrt()
        mask = confirmed(before[number], gradient, unit.grad_beta, level, signed=True)
        share = share + mask.open_share
        d = gradient * mask.positive
        whole = d if unit is block.units[-1] else whole
        misfit = max(misfit, unit.misfit(d, read[number]))
        gradient = unit.back(d, read[number])
    if block.shortcut is None:
        return gradient + whole, share, misfit
    misfit = max(misfit, block.shortcut.misfit(whole, read[0]))
    return gradient + block.shortcut.back(whole, read[0]), share, misfit


def _even(leak: Leak, maps: Tensor) -> Tensor:
    return torch.full((len(maps),), leak.estimate, dtype=maps.dtype, device=maps.device)


def _level(leak: Leak, maps: Tensor) -> Tensor:
    return max(FLOOR, _CLEAR * leak.estimate) * maps.square().mean((1, 2, 3), keepdim=True).sqrt()
