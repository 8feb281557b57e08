"""What a bottleneck itself read, out of the gradient of its first convolution: with it nothing above is open any more.

The samples' maps behind that convolution are known, and what the layers above send back to them, too (`pooled`). So the gradient
of the 1×1 convolution below is linear in what it read: one equation for each of its output channels, one unknown for each place
of the batch (`peel.residual`). In train mode BatchNorm hides two things that the shortcut, which goes around it, shows again:
the mean of every channel, whose lowest entries are relu's zeros, and one factor of all maps, which the head's gradient tells.
Then the whole block is played again, and what it sends gives the maps once more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from unsum.errors import UnsumError
from unsum.peel.chain import activation_at
from unsum.peel.residual.masks import confirmed, scale_by
from unsum.peel.residual.shared import Shared, Taker
from unsum.peel.residual.solve import FLOOR, undo
from unsum.peel.residual.unit import Unit
from unsum.spans.maps.asked import Asked
from unsum.spans.maps.batch import MapBatch
from unsum.spans.maps.bottleneck import Noted, played_layer, sent_behind
from unsum.spans.maps.judge import MapAnswer
from unsum.spans.maps.pair import ConvLayer, ConvPair, conv_layer, module_at, read_by, tail_above
from unsum.spans.maps.samples import maps_of
from unsum.spans.maps.scale import common_factor
from unsum.spans.maps.solve import FoundMaps
from unsum.spans.maps.tail import Tail, in_client_mode

_CLEAR = 10.0  # times the predicted error: entries above are no zeros
_SCALES, _SETTLED = 4, 1e-6  # solves at most until the factor of all maps moves by no more than this
_ROUNDS = 6  # solves at most, each with what the last one's maps send


@dataclass(frozen=True)
class Entrance:
    """The 1×1 convolution whose relu feeds a pair, and what it reads, which the shortcut adds again behind the pair."""

    layer: ConvLayer
    unit: Unit
    source: fx.Node
    rectified: bool  # it is what a relu wrote

    @classmethod
    def of(cls, asked: Asked, pair: ConvPair, *, train: bool) -> Entrance | None:
        """None where something else feeds the pair, gradients are missing, or the shortcut is no plain one."""
        model, update = asked.model, asked.update
        norm = _fed_by(model, pair.source)
        node = None if norm is None or not isinstance(module_at(model, norm), nn.BatchNorm2d) else _fed_by(model, norm)
        layer = None if node is None else conv_layer(model, node, update)
        source = None if node is None else read_by(model, node)
        if layer is None or source is None or not layer.placewise or not _adds(model, pair, source):
            return None
        rectified = _is_relu(model, source)
        if not _is_relu(model, pair.source) or (train and not rectified):
            return None  # without zeros nothing shows a channel's mean
        try:
            unit = Unit.of(model, update, 1.0, layer.name, layer.norm_name)
        except UnsumError:
            return None
        device, held = asked.head.W.device, vars(unit)
        moved: dict[str, Any] = {name: part.to(device) for name, part in held.items() if isinstance(part, Tensor)}
        return cls(layer, replace(unit, **moved, batch_statistics=train), source, rectified)


def _fed_by(model: nn.Module, node: fx.Node) -> fx.Node | None:
    """What a node reads, where nothing else reads it."""
    below = read_by(model, node)
    return below if below is not None and len(node.users) == 1 else None


def _is_relu(model: nn.Module, node: fx.Node) -> bool:
    activation = activation_at(node, module_at(model, node))
    return activation is not None and activation.family == "relu"


def _adds(model: nn.Module, pair: ConvPair, source: fx.Node) -> bool:
    """Whether the sum behind the pair's BatchNorm adds `source` as it is."""
    norm = next(iter(pair.above.users))
    total = next(iter(norm.users))
    other = [node for node in total.all_input_nodes if node is not norm]
    while len(other) == 1 and isinstance(module_at(model, other[0]), nn.Identity):
        other = other[0].all_input_nodes
    return other == [source]


@dataclass(frozen=True)
class _Block:
    """A bottleneck between what its entrance reads and the logits."""

    asked: Asked
    pair: ConvPair
    entrance: Entrance
    tail: Tail
    beside: fx.GraphModule  # the logits, of what the entrance read and what the pair wrote

    @classmethod
    def of(cls, asked: Asked, pair: ConvPair, *, train: bool) -> _Block | None:
        entrance = Entrance.of(asked, pair, train=train)
        module = None if entrance is None else tail_above(asked.model, entrance.source)
        beside = None if entrance is None else tail_above(asked.model, entrance.source, pair.above)
        if entrance is None or module is None or beside is None:
            return None
        layers, head = (entrance.layer, pair.first, pair.second), asked.head
        tail = Tail.of(module, head, layers, asked.update, train=train, watched=(entrance.layer.norm_name,))
        return cls(asked, pair, entrance, tail, in_client_mode(beside.to(head.W.device), train=train))

    def solved(self, unit: Unit, d: Tensor) -> tuple[Unit, Tensor, Tensor] | None:
        """(unit, maps, errors (B,)) from d (B, C, h, w) at what the unit wrote; the unit keeps the maps' scale in train mode."""
        size = torch.Size((len(d), unit.W.shape[1], *d.shape[2:]))
        shared = Shared([Taker(unit, d)], size)
        if math.isinf(shared.condition):
            return None
        for _ in range(_SCALES):
            read = undo(Shared([Taker(unit, d)], size), None)
            maps = read.maps.clamp_min(0) if self.entrance.rectified else read.maps
            if not unit.batch_statistics:
                break
            written = _through(self.pair, unit.output(maps).relu(), train=True)[1]
            factor = common_factor(self.beside, self.asked.head, maps, written, 1.0) or 1.0
            maps = maps * factor
            unit = replace(unit, variance=unit.forward(maps)[0].square() - unit.eps)
            if abs(factor - 1) < _SETTLED:
                break
        return unit, maps, read.errors


def enter(asked: Asked, batch: MapBatch, found: FoundMaps, factor: float) -> MapAnswer | None:
    """The samples as what the block read, played through all of it again; None where its gradients do not tell that."""
    block = _Block.of(asked, batch.pair, train=batch.train)
    d = None if block is None else _first_gradient(block, batch, found, factor)
    if block is None or d is None:
        return None
    unit, best = block.entrance.unit, None
    for _ in range(_ROUNDS):
        solved = block.solved(unit, d)
        if solved is None:
            break
        unit, maps, errors = solved
        moves = errors + (torch.inf if best is None else _apart(maps, best.maps))
        reading, played = block.tail.answer(asked, maps)
        if best is not None and not played.unexplained < best.played.unexplained:
            return replace(best, errors=torch.minimum(best.errors, moves))
        best = MapAnswer(maps, moves, found.hits, reading, played, block.tail, batch.missing, lengths_open=False)
        d = played.sent[block.entrance.layer.norm_name]
    return best


def _apart(maps: Tensor, others: Tensor) -> Tensor:
    """(B,) distances, relative."""
    return (maps - others).flatten(1).norm(dim=1) / maps.flatten(1).norm(dim=1).clamp_min(1e-300)


def _first_gradient(block: _Block, batch: MapBatch, found: FoundMaps, factor: float) -> Tensor | None:
    """∂loss/∂(what the entrance's norm wrote), from what the pair read and the gradient of its second convolution."""
    pair, unit = block.pair, block.entrance.unit
    maps = maps_of(batch, found, factor)
    errors = found.errors * factor / maps.flatten(1).norm(dim=1).clamp_min(1e-300)
    delta = sent_behind(pair.second, found.condition.read(found.s), train=batch.train)
    delta = delta.unflatten(0, (len(maps), -1)).mT.unflatten(2, maps.shape[2:]).contiguous()
    level = maps.square().mean((1, 2, 3), keepdim=True).sqrt() * (_CLEAR * errors).clamp_min(FLOOR)[:, None, None, None]
    d = _sent_back(pair, maps, delta, train=batch.train)
    if batch.train:  # one factor of the pair's own maps is open, too
        pin = scale_by(unit.grad_beta, lambda _: d)
        assert pin is not None
        more = pin(maps, level)[0]
        if not 0 < more < math.inf:
            return None
        maps, level = more * maps, more * level
        d = _sent_back(pair, maps, delta, train=True)
    return d * confirmed(maps, d, unit.grad_beta, level).positive


def _sent_back(pair: ConvPair, maps: Tensor, delta: Tensor, *, train: bool) -> Tensor:
    """∂loss/∂maps, from δ at what the pair wrote."""
    leaf = maps.detach().requires_grad_()
    with torch.enable_grad():
        return torch.autograd.grad(_through(pair, leaf, train=train)[1], leaf, delta)[0]


def _through(pair: ConvPair, maps: Tensor, *, train: bool) -> list[Tensor]:
    """What the two convolutions write."""
    noted = Noted()
    hidden = played_layer(pair.first, pair.activation, maps, noted, train=train)
    played_layer(pair.second, None, hidden, noted, train=train)
    return noted.written
