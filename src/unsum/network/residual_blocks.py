"""Residual blocks, found by their parts and checked by a pass; and what stands above the last."""

from __future__ import annotations

import copy
import itertools
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unsum.errors import UnsumError
from unsum.gradients import in_eval_mode, main_output
from unsum.head import collect_features, find_head
from unsum.network.shapes import takes
from unsum.network.unit import Unit
from unsum.update import Update

_PARTS = ("conv1", "bn1", "conv2", "bn2")
_SHORTCUTS = ("downsample", "shortcut")
_SAME = 1e-3  # [relative] difference of two passes that agree. Chosen by: arbitrary margin.


@dataclass(frozen=True)
class Block:
    """ReLU(y + x): y of `units` with ReLU between them, x the block's input or its `shortcut`'s."""

    name: str
    units: list[Unit]
    shortcut: Unit | None
    size: torch.Size  # (1, C, h, w) of one sample's input

    def passed(self, maps: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """What every unit reads, and all values before a ReLU, the block's last."""
        read, before = [maps], []
        for unit in self.units[:-1]:
            before.append(unit.output(read[-1]))
            read.append(before[-1].relu())
        side = maps if self.shortcut is None else self.shortcut.output(maps)
        return read, [*before, self.units[-1].output(read[-1]) + side]

    def sizes(self, B: int) -> list[torch.Size]:
        """(B, I, h, w) of every unit's input."""
        sizes = [torch.Size((B, *self.size[1:]))]
        for unit in self.units[:-1]:
            sizes.append(unit.output_size(sizes[-1]))
        return sizes


@dataclass(frozen=True)
class Blocks:
    """Blocks `below` and `above` what is known: each feeds the next, and the last one the head."""

    below: list[Block]
    above: list[Block]
    stop: str  # why not further down than the first of `below`


def find_blocks(
    model: nn.Module, update: Update, scale: float, size: int, known: str | None
) -> Blocks:
    """Blocks around `known`, the block whose input is known.

    None where the head reads the last block's output as it is.
    """
    names = block_names(model)
    if not names:
        raise UnsumError(
            "The model has no residual blocks of convolutions with BatchNorm, so none can be "
            "undone."
        )
    if known is not None and known not in names:
        raise UnsumError(
            f"{known!r} is no residual block; what is known must be the input of one of "
            f"{', '.join(names)}."
        )
    seen, features = _watched(model, names, size)
    first = names.index(known) if known is not None else len(names)
    above = [_believed(model, update, scale, name, seen) for name in names[first:]]
    if any(block is None for block in above) or not _linked(names[first:], seen):
        raise UnsumError(
            f"Between {known!r} and the head stands more than residual blocks, so its gradient is "
            "not known."
        )
    below: list[Block] = []
    stop = "the first residual block is reached"
    after = features if known is None else seen[known][0]
    for name in reversed(names[:first]):
        if name not in seen or not torch.equal(seen[name][1].flatten(1), after.flatten(1)):
            stop = f"{name!r} does not feed the next block directly"
            break
        try:
            block = _believed(model, update, scale, name, seen)
        except UnsumError as reason:
            if not below and known is None:
                raise
            stop = str(reason).rstrip(".")
            break
        if block is None:
            stop = f"{name!r} computes more than its convolutions and its shortcut"
            break
        below.insert(0, block)
        after = seen[name][0]
    if not below and known is None:
        raise UnsumError(
            "The head does not read the maps of a residual block as they are (global pooling, "
            "say), so none can be undone."
        )
    return Blocks(below, [block for block in above if block is not None], stop)


def block_names(model: nn.Module) -> list[str]:
    return [
        name
        for name, module in model.named_modules()
        if all(hasattr(module, part) for part in _PARTS)
        and any(hasattr(module, part) for part in _SHORTCUTS)
    ]


def gradient_above(
    model: nn.Module, last: str, out: Tensor, targets: Tensor, size: int, *, mean: bool
) -> Tensor:
    """∂loss/∂out for cross-entropy, in float64, at the output `out` (B, C, h, w) of block `last`.

    The layers below run on empty pictures, and the output of `last` is replaced.
    """
    double = copy.deepcopy(model).double()
    leaf = out.detach().clone().requires_grad_()
    hook = double.get_submodule(last).register_forward_hook(lambda *_: leaf)
    try:
        with torch.enable_grad():
            logits = main_output(double(out.new_zeros(len(out), 3, size, size)))
            reduction = "mean" if mean else "sum"
            loss = nn.functional.cross_entropy(logits, targets.to(logits), reduction=reduction)
            (gradient,) = torch.autograd.grad(loss, leaf)
    finally:
        hook.remove()
    return gradient


def _linked(names: list[str], seen: dict[str, tuple[Tensor, Tensor]]) -> bool:
    return all(torch.equal(seen[a][1], seen[b][0]) for a, b in itertools.pairwise(names))


def _believed(
    model: nn.Module,
    update: Update,
    scale: float,
    name: str,
    seen: dict[str, tuple[Tensor, Tensor]],
) -> Block | None:
    """The block, unless its parts do not give what was seen: with attention, say, they do not."""
    if name not in seen:
        return None
    entering, leaving = seen[name]
    block = _block(model, update, scale, name, entering)
    with in_eval_mode(model):  # as it was watched
        found = _block(model, update, scale, name, entering).passed(entering.double())[1][-1].relu()
    if found.shape != leaving.shape:
        return None
    return block if float((found - leaving).norm()) <= _SAME * float(leaving.norm()) else None


def convolutions(model: nn.Module, block: str) -> tuple[list[str], str | None]:
    """Names of a block's convolutions in their order, and its shortcut's; None if that is plain."""
    numbers = [n for n in (1, 2, 3) if hasattr(model.get_submodule(block), f"conv{n}")]
    side = _projection(model, block)
    return [f"{block}.conv{n}" for n in numbers], None if side is None else side[0]


def _projection(model: nn.Module, block: str) -> tuple[str, str] | None:
    """The convolution and the BatchNorm on the block's shortcut."""
    module = model.get_submodule(block)
    side = next(part for part in _SHORTCUTS if hasattr(module, part))
    projection = getattr(module, side)
    if not isinstance(projection, nn.Module):
        return None
    children = projection.named_children()
    parts = [part for part, child in children if not isinstance(child, nn.Identity)]
    if not parts:
        return None
    if len(parts) != 2:
        raise UnsumError(f"The shortcut of {block!r} is more than a convolution with a BatchNorm.")
    return f"{block}.{side}.{parts[0]}", f"{block}.{side}.{parts[1]}"


def _block(model: nn.Module, update: Update, scale: float, name: str, entering: Tensor) -> Block:
    layers, _ = convolutions(model, name)
    units = [Unit.of(model, update, scale, layer, f"{name}.bn{layer[-1]}") for layer in layers]
    projection = _projection(model, name)
    shortcut = None if projection is None else Unit.of(model, update, scale, *projection)
    return Block(name, units, shortcut, entering.shape)


def _watched(
    model: nn.Module, names: list[str], size: int
) -> tuple[dict[str, tuple[Tensor, Tensor]], Tensor]:
    """Inputs and outputs of the blocks, and what reaches the head, for one picture in eval mode."""
    seen: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def keep(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen[module] = (inputs[0].detach().clone(), output.detach().clone())

    blocks = {name: model.get_submodule(name) for name in names}
    picture = torch.rand(1, 3, size, size, generator=torch.Generator().manual_seed(0))
    _, head = find_head(model)
    with ExitStack() as hooks, in_eval_mode(model), takes((3, size, size)):
        for block in blocks.values():
            hooks.enter_context(block.register_forward_hook(keep))
        features = collect_features(model, picture.to(next(model.parameters())), head)
    return {name: seen[block] for name, block in blocks.items() if block in seen}, features
