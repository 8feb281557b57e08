"""The residual blocks whose last maps a head reads: found by their parts, believed after a look at what they compute."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unsum.errors import UnsumError
from unsum.gradients import in_eval_mode
from unsum.head import collect_features
from unsum.peel.residual.unit import Unit
from unsum.update import Update


@dataclass(frozen=True)
class Block:
    """ReLU(y + x): y from `units` with ReLU between them, x the block's input or what `shortcut` makes of it."""

    name: str
    units: list[Unit]
    shortcut: Unit | None
    size: torch.Size  # (1, C, h, w) of one sample's input

    def forward(self, maps: Tensor) -> Tensor:
        last = self.units[-1]
        x = maps
        for unit in self.units:
            x = _output(unit, x) if unit is last else _output(unit, x).relu()
        return (x + (maps if self.shortcut is None else _output(self.shortcut, maps))).relu()


def find_blocks(model: nn.Module, update: Update, scale: float, size: int) -> list[Block]:
    """The last blocks of `model` in the order of the data, each feeding the next, the last one the head; photos of `size`²."""
    parts = ("conv1", "bn1", "conv2", "bn2", "downsample")
    names = [name for name, module in model.named_modules() if all(hasattr(module, part) for part in parts)]
    if not names:
        raise UnsumError("The model has no residual blocks of convolutions with BatchNorm, so none can be undone.")
    seen, features = _watched(model, names, size)
    blocks: list[Block] = []
    after = features
    for name in reversed(names):
        if name not in seen or not torch.equal(seen[name][1].flatten(1), after.flatten(1)):
            break
        block = _block(model, update, scale, name, seen[name][0])
        entering, leaving = seen[name]
        found = block.forward(
            entering.double()
        )  # whether its parts give what was seen; with attention, say, they do not
        if found.shape != leaving.shape or not float((found - leaving).norm()) <= 1e-3 * float(leaving.norm()):
            break
        blocks.insert(0, block)
        after = entering
    if not blocks:
        raise UnsumError(
            "The head does not read the maps of a residual block as they are (global pooling, say), so none can be undone."
        )
    return blocks


def _block(model: nn.Module, update: Update, scale: float, name: str, entering: Tensor) -> Block:
    module = model.get_submodule(name)
    numbers = [n for n in (1, 2, 3) if hasattr(module, f"conv{n}")]
    units = [Unit.of(model, update, scale, f"{name}.conv{n}", f"{name}.bn{n}") for n in numbers]
    shortcut = None
    if isinstance(module.downsample, nn.Module):
        parts = [part for part, child in module.downsample.named_children() if not isinstance(child, nn.Identity)]
        if len(parts) != 2:
            raise UnsumError(f"The shortcut of {name!r} is more than a convolution with a BatchNorm.")
        shortcut = Unit.of(model, update, scale, *(f"{name}.downsample.{part}" for part in parts))
    return Block(name, units, shortcut, entering.shape)


def _watched(model: nn.Module, names: list[str], size: int) -> tuple[dict[str, tuple[Tensor, Tensor]], Tensor]:
    """Inputs and outputs of the blocks, and what reaches the head, for one picture in eval mode."""
    seen: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def keep(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen[module] = (inputs[0].detach().clone(), output.detach().clone())

    blocks = {name: model.get_submodule(name) for name in names}
    picture = torch.rand(1, 3, size, size, generator=torch.Generator().manual_seed(0))
    with ExitStack() as hooks, in_eval_mode(model):
        for block in blocks.values():
            hooks.enter_context(block.register_forward_hook(keep))
        features = collect_features(model, picture.to(next(model.parameters())))
    return {name: seen[block] for name, block in blocks.items() if block in seen}, features


def _output(unit: Unit, maps: Tensor) -> Tensor:
    """In eval mode, as the blocks were watched."""
    z = nn.functional.conv2d(maps, unit.W, stride=unit.stride, padding=unit.padding)
    scale = unit.gamma / (unit.variance + unit.eps).sqrt()
    return z * scale.view(1, -1, 1, 1) + (unit.beta - unit.mean * scale).view(1, -1, 1, 1)
