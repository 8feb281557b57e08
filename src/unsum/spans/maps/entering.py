"""What a bottleneck itself read, out of the gradient of its first convolution: with it nothing
above is open any more.

The samples' maps behind that 1×1 convolution are known, and so is what the layers above send back
to them. So its gradient tells what it read (`rows`). In train mode BatchNorm hides two things that
the shortcut, which goes around it, shows again: the mean of every channel, whose lowest entries are
relu's zeros, and one factor of all maps, which the head's gradient tells. Then the whole block is
played again, and what it sends gives the maps once more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, fx, nn

from unsum.network.chain import activation_at
from unsum.network.conv_pair import (
    ConvLayer,
    ConvPair,
    conv_layer,
    module_at,
    read_by,
    tail_above,
)
from unsum.network.unit import as_maps, as_rows
from unsum.peel.residual.masks import confirmed, scale_by
from unsum.peel.residual.solve import FLOOR
from unsum.running.deadline import out_of_time
from unsum.spans.maps.asked import Asked
from unsum.spans.maps.batch import MapBatch
from unsum.spans.maps.bottleneck import Noted, played_layer, sent_behind
from unsum.spans.maps.gates import ReluGate, moved_over
from unsum.spans.maps.judge import MapAnswer
from unsum.spans.maps.rows import Behind, read_rows, where_on
from unsum.spans.maps.samples import maps_of
from unsum.spans.maps.scale import common_factor
from unsum.spans.maps.solve import FoundMaps
from unsum.spans.maps.tail import Tail, in_client_mode

_CLEAR = 10.0  # times the predicted error: entries above are no zeros
_ALIKE = 1e-4  # of a channel's range: zeros agree to that, and hardly ever anything else
_ROUNDED = 1e-6  # of maps: what sums in float32 err by at least
_WORTH = 0.9  # of what was left before: a round that leaves more than this was the last one
_ROUNDS = 4  # solves at most, each with what the last one's maps send


@dataclass(frozen=True)
class Entrance:
    """The 1×1 convolution whose relu feeds a pair, and what it reads, which the shortcut adds again
    behind the pair."""

    layer: ConvLayer
    behind: Behind
    source: fx.Node
    rectified: bool  # it reads what a relu wrote

    @classmethod
    def of(cls, asked: Asked, pair: ConvPair, *, train: bool) -> Entrance | None:
        """None where something else feeds the pair, gradients are missing, or the shortcut is no
        plain one."""
        model = asked.model
        norm = _fed_by(model, pair.source)
        node = (
            None
            if norm is None or not isinstance(module_at(model, norm), nn.BatchNorm2d)
            else _fed_by(model, norm)
        )
        layer = None if node is None else conv_layer(model, node, asked.update)
        source = None if node is None else read_by(model, node)
        if layer is None or source is None or not layer.placewise or not _adds(model, pair, source):
            return None
        behind, rectified = (
            Behind.of(layer, asked.update, asked.head.W.device, train=train),
            _is_relu(model, source),
        )
        if behind is None or not _is_relu(model, pair.source) or (train and not rectified):
            return None  # without zeros nothing shows a channel's mean
        return cls(layer, behind, source, rectified)


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
    end: ReluGate  # behind the pair
    beside: fx.GraphModule  # the logits, of what the entrance read and what the pair wrote

    @classmethod
    def of(cls, asked: Asked, pair: ConvPair, *, train: bool) -> _Block | None:
        entrance = Entrance.of(asked, pair, train=train)
        module = None if entrance is None else tail_above(asked.model, entrance.source)
        beside = None if entrance is None else tail_above(asked.model, entrance.source, pair.above)
        if entrance is None or module is None or beside is None:
            return None
        layers, head = (entrance.layer, pair.first, pair.second), asked.head
        tail = Tail.of(module, head, layers, asked.update, train=train)
        end = next(
            (gate for gate in tail.gates if gate.bias == f"{pair.second.norm_name}.bias"), None
        )
        if end is None:
            return None
        return cls(
            asked, pair, entrance, tail, end, in_client_mode(beside.to(head.W.device), train=train)
        )

    def placed(self, rows: Tensor, written: Tensor) -> Tensor:
        """(B, C, h, w) the maps: with their zeros, and in train mode with their means and their
        factor.

        `written` (B, C', h, w) is what the pair writes.
        """
        maps = as_maps(rows, written.shape)
        if not self.entrance.behind.train:
            return maps.clamp_min(0) if self.entrance.rectified else maps
        maps = (maps - _lowest(maps)).clamp_min(0)
        return maps * (
            common_factor(self.beside, self.asked.head, maps, written, self._guess(maps)) or 1.0
        )

    def _guess(self, maps: Tensor) -> float:
        """The factor with which the convolution writes what the running statistics expect."""
        behind = self.entrance.behind
        return float(
            (behind.deviation / (as_rows(maps) @ behind.W.T).std(0).clamp_min(1e-300)).median()
        )


def enter(asked: Asked, batch: MapBatch, found: FoundMaps, factor: float) -> MapAnswer | None:
    """The samples as what the block read, played through all of it again; None where its gradients
    do not tell that."""
    block = _Block.of(asked, batch.pair, train=batch.train)
    seen = None if block is None else _first(block, batch, found, factor)
    if block is None or seen is None:
        return None
    behind, below, on, d = block.entrance.behind, seen.maps, seen.on, seen.sent
    written = _written(batch.pair, below, train=batch.train)
    normed, sure = where_on(as_rows(below * on), behind)
    best = None
    for _ in range(_ROUNDS):
        read = read_rows(behind, as_rows(d * on), normed, sure)
        if read is None:
            break
        normed, maps = read.normed, block.placed(read.rows, written)
        sizes = maps.flatten(1).norm(dim=1).clamp_min(1e-300)
        stretch = (
            (maps - maps.mean((0, 2, 3), keepdim=True)).norm() / read.rows.norm()
            if batch.train
            else 1.0
        )
        errors = (
            stretch * read.deviations.unflatten(0, (len(maps), -1)).norm(dim=1) / sizes + _ROUNDED
        )
        moves = errors + (
            torch.inf if best is None else (maps - best.maps).flatten(1).norm(dim=1) / sizes
        )
        tail, reading, played = block.tail.settled(asked, maps, errors)
        least = math.inf if best is None else _WORTH * best.played.replay.unexplained
        if best is not None and not played.replay.unexplained < least:
            return replace(best, errors=torch.minimum(best.errors, moves))
        best = MapAnswer(
            maps, moves, found.hits, reading, played, tail, batch.missing, lengths_open=False
        )
        if out_of_time("further rounds of what a block read"):
            break
        # What the pair read is known better than what its entrance read: so only what comes from
        # above is played.
        d = _sent_back(block, below, played.sent[block.end.before], seen.errors, behind=True)
    return best


def _lowest(maps: Tensor) -> Tensor:
    """(1, C, 1, 1) the level of relu's zeros, which noise scatters: the mean of the entries that
    are as low as the lowest."""
    rows = as_rows(maps)
    least, most = rows.amin(0), rows.amax(0)
    near = rows <= least + _ALIKE * (most - least)
    return ((rows * near).sum(0) / near.sum(0)).view(1, -1, 1, 1)


class _FirstRead(NamedTuple):
    """What the pair read, (B, C, h, w), where that is on, ∂loss/∂maps, and relative errors (B,) of
    the maps."""

    maps: Tensor
    on: Tensor
    sent: Tensor
    errors: Tensor


def _first(block: _Block, batch: MapBatch, found: FoundMaps, factor: float) -> _FirstRead | None:
    """By the gradient of the pair's second convolution alone."""
    pair, grad_beta, train = block.pair, block.entrance.behind.grad_beta, batch.train
    maps = maps_of(batch, found, factor)
    errors = found.errors * factor / maps.flatten(1).norm(dim=1).clamp_min(1e-300)
    delta = as_maps(
        sent_behind(pair.second, found.condition.read(found.points), train=train), maps.shape
    ).contiguous()
    level = (
        maps.square().mean((1, 2, 3), keepdim=True).sqrt()
        * (_CLEAR * errors).clamp_min(FLOOR)[:, None, None, None]
    )
    d = _sent_back(block, maps, delta, errors, behind=False)
    if train:  # one factor of the pair's own maps is open, too
        pin = scale_by(grad_beta, lambda _: d)
        assert pin is not None
        more = pin(maps, level)[0]
        if not 0 < more < math.inf:
            return None
        maps, level = more * maps, more * level
        d = _sent_back(block, maps, delta, errors, behind=False)
    return _FirstRead(maps, confirmed(maps, d, grad_beta, level).positive, d, errors)


def _sent_back(
    block: _Block, maps: Tensor, delta: Tensor, errors: Tensor, *, behind: bool
) -> Tensor:
    """∂loss/∂maps, from that at what the pair wrote, or `behind` its last norm; maps err by
    `errors` (B,).

    One relu of the pair on the wrong side would spoil all that follows: the bias gradient of its
    norm tells.
    """
    pair, train, noted = block.pair, block.entrance.behind.train, Noted()
    grad_bias = block.tail.gradients.get(f"{pair.first.norm_name}.bias")
    with torch.enable_grad():
        leaf = maps.detach().requires_grad_()
        before = played_layer(pair.first, None, leaf, noted, train=train)
        hidden = pair.activation.function(before)
        end = played_layer(pair.second, None, hidden, noted, train=train)
        (sent,) = torch.autograd.grad(
            end if behind else noted.written[1], hidden, delta, retain_graph=True
        )
        values = before.detach()
        if grad_bias is not None and pair.activation.family == "relu":
            values = values + moved_over(values, sent, grad_bias, errors)
        return torch.autograd.grad(before, leaf, sent * pair.activation.slope(values))[0]


def _written(pair: ConvPair, maps: Tensor, *, train: bool) -> Tensor:
    """What the pair writes."""
    noted = Noted()
    played_layer(
        pair.second,
        None,
        played_layer(pair.first, pair.activation, maps, noted, train=train),
        noted,
        train=train,
    )
    return noted.written[1]
