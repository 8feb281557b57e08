"""Which map tells the picture, and how much of it: by counting numbers against pixels.

Maps above follow from the largest one, so they add nothing to it. A zero behind a ReLU says only
that something was negative, so it counts as no equation; nor does an entry that nothing tells.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from unsum.errors import UnsumError
from unsum.gradients import in_eval_mode
from unsum.invert.pixels.equations import least, read_by
from unsum.leak import Leak

# Of a side, down to a map, the largest that fits: halvings first, up to six of them (a ResNet has
# five); 28² and 32² may end in maps of one size.
_REDUCTIONS = ([2**halvings for halvings in range(7)], [n for n in range(3, 64) if n & (n - 1)])
# times fewer numbers than pixels: a regression on them may still show what is on a picture
_BLURRED = 8
_HALF = 4  # times fewer pixels: a picture of half the side
_PLENTY = 4  # equations for each unknown from which a map needs no help


@dataclass(frozen=True)
class PixelReach:
    """The layer whose map (B, C, h, w) is used, NaN where it is unknown, the shape of one picture,
    equations and unknowns."""

    layer: str
    maps: Tensor
    shape: tuple[int, ...]
    # the next known map, where it may tell more than this one
    above: dict[str, Tensor] = field(default_factory=dict)
    hinted: int = 0  # equations of gradients that do not determine the maps below

    @property
    def layers(self) -> dict[str, Tensor]:
        """All maps that count, this one first."""
        return {self.layer: self.maps} | self.above

    @property
    def unknowns(self) -> int:
        return math.prod(self.shape)

    @property
    def equations(self) -> int:
        """Of the sample that has the fewest: entries that are not zero."""
        return _fewest(self.maps)

    @property
    def all_equations(self) -> int:
        """With those that help; some may say the same."""
        return self.equations + sum(_fewest(maps) for maps in self.above.values()) + self.hinted

    @property
    def determined(self) -> bool:
        """Whether every pixel may follow from the map."""
        return self.equations > self.unknowns

    @property
    def plenty(self) -> bool:
        """Whether a search converges without further equations."""
        return self.equations > _PLENTY * self.unknowns

    @property
    def useful(self) -> bool:
        """Whether the picture may follow at half its size or better."""
        return _HALF * self.all_equations > self.unknowns

    @property
    def blurred(self) -> bool:
        """Whether the map may tell enough for a guess that resembles the picture."""
        return _BLURRED * self.equations > self.unknowns

    @property
    def told(self) -> str:
        """In words, for notes and refusals."""
        more = self.all_equations - self.equations
        helped = f" and {more:,} equations beside them" if more else ""
        return (
            f"what {self.layer!r} read has {self.equations:,} numbers that are not zero{helped}, "
            f"for {self.unknowns:,} numbers of a picture"
        )


def find_reach(model: nn.Module, leak: Leak, shape: tuple[int, ...] | None = None) -> PixelReach:
    """The largest map of the leak, of several the one nearest to the picture, with the shape of the
    pictures behind it."""
    maps = {name: found for name, found in (leak.partly | leak.inner).items() if found.ndim == 4}
    if not maps:
        raise UnsumError(
            "Pixels follow from what a convolution read, and this leak holds no such map."
        )
    order = [name for name, _ in model.named_modules() if name in maps]
    layer = max(order, key=lambda name: int(maps[name][0].isfinite().sum()))  # the first of several
    reach = PixelReach(layer, maps[layer], shape or _shape_behind(model, layer, maps[layer]))
    # Inside a block, the next block's input tells what the shortcut added.
    following = order[order.index(layer) + 1 : order.index(layer) + 2]
    if reach.plenty:
        return reach
    hinted = 0 if leak.hint is None else leak.hint.numbers
    return replace(reach, above={name: maps[name] for name in following}, hinted=hinted)


def _fewest(maps: Tensor) -> int:
    maps = maps.nan_to_num()
    return int((maps.abs() > least(maps)).flatten(1).sum(1).min())


def _shape_behind(model: nn.Module, layer: str, maps: Tensor) -> tuple[int, ...]:
    """The picture's shape: its channels from the first convolution, its sides by trying multiples
    of the map's."""
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    channels = 3 if first is None else first.in_channels
    told = getattr(model, "image_size", None)
    rows, columns = maps.shape[2:]
    if told is not None and _map_shape(model, layer, (channels, told, told)) == maps.shape[1:]:
        return (channels, told, told)
    for factors in _REDUCTIONS:
        found = None
        for factor in factors:
            shape = (channels, factor * rows, factor * columns)
            reached = _map_shape(model, layer, shape)
            found = shape if reached == maps.shape[1:] else found
            if reached is not None and reached[1:].numel() > rows * columns:
                break  # a larger picture has no smaller map, and takes seconds
        if found is not None:
            return found
    raise UnsumError(
        f"No size of pictures leads to the map that {layer!r} read; give shape=(channels, height, "
        "width)."
    )


def _map_shape(model: nn.Module, layer: str, shape: tuple[int, ...]) -> torch.Size | None:
    """Of what the layer reads of one such picture; None where the model does not take it."""
    like = next(model.parameters())
    try:
        with torch.no_grad(), in_eval_mode(model):
            return read_by(
                model, layer, torch.zeros(1, *shape, device=like.device, dtype=like.dtype)
            ).shape[1:]
    except (RuntimeError, ValueError):  # too small, or of another kind
        return None
