"""What pictures make a layer read, less what it read: the residual of the least squares, and its
derivative as two products.

In eval mode every sample stands for itself. In train mode BatchNorm's statistics tie the batch
together, and the whole batch is one problem, unless the statistics are held: those that the client
sent along, or a guess.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from unsum.batch_statistics import BatchStatistics
from unsum.gradients import TINY, quiet
from unsum.leak import MapHint
from unsum.running.deadline import out_of_time

Product = Callable[[Tensor], Tensor]


_ZERO = 1e-4  # of a map's root mean square: ten times what entries err by at most
_RELUS = {nn.functional.relu, torch.relu, Tensor.relu}


class _Relus(TorchFunctionMode):
    """Remembers the last ReLU of a pass: what went in, and what came out."""

    last: tuple[Tensor, Tensor] | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in _RELUS and out is not args[0]:
            self.last = args[0], out
        return out


class _ReadIt(Exception):  # noqa: N818 (not an error: the rest of the pass is not needed)
    """All layers have been read."""


@dataclass(frozen=True)
class Read:
    """(B, C, h, w) what a layer reads, and what went into the ReLU before it, where that is all
    that stands before it."""

    maps: Tensor
    before: Tensor | None


def read_by(model: nn.Module, layer: str, pictures: Tensor) -> Tensor:
    """(B, C, h, w) what the layer reads of pictures; nothing above it is computed."""
    return read_all(model, [layer], pictures)[layer].maps


def read_all(model: nn.Module, layers: Collection[str], pictures: Tensor) -> dict[str, Read]:
    """What each of the layers reads of pictures; nothing above them is computed."""
    seen: dict[str, Read] = {}

    def reached(name: str, _module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        last = relus.last
        seen[name] = Read(inputs[0], last[0] if last is not None and last[1] is inputs[0] else None)
        if len(seen) == len(layers):
            raise _ReadIt

    hooks = [
        model.get_submodule(layer).register_forward_pre_hook(partial(reached, layer))
        for layer in layers
    ]
    try:
        with _Relus() as relus:
            model(pictures)
    except _ReadIt:
        pass
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def least(maps: Tensor) -> Tensor:
    """(B, 1, 1, 1) what is below may be a ReLU's zero, read back with rounding: maps that a walk
    gives err by 1e-5."""
    return _ZERO * maps.square().mean((1, 2, 3), keepdim=True).sqrt()


def _note(
    seen: dict[str, Tensor], name: str, _module: nn.Module, inputs: tuple[Tensor, ...]
) -> None:
    seen[name] = inputs[0]


@dataclass(frozen=True)
class Derivative:
    """The residual (B, …) at a point, with v ↦ J v and u ↦ Jᵀ u."""

    residual: Tensor
    forward: Product
    back: Product


@dataclass(frozen=True)
class MapTarget:
    """The maps (B, C, h, w) that `layer` read, and which of their entries are known; the others are
    zero."""

    layer: str
    maps: Tensor
    known: Tensor

    @staticmethod
    def of(layer: str, maps: Tensor, like: Tensor) -> MapTarget:
        """Of maps that are NaN where nothing tells them."""
        return MapTarget(layer, maps.nan_to_num().to(like), maps.isfinite().to(like))

    @property
    def sizes(self) -> Tensor:
        return self.maps.flatten(1).norm(dim=1).clamp_min(TINY).view(-1, 1, 1, 1)

    def misfit(self, read: Read) -> Tensor:
        """Where the map is positive, what went into the ReLU before it counts: behind it, a
        negative one has no derivative."""
        found = (
            read.maps
            if read.before is None
            else torch.where(self.maps > least(self.maps), read.before, read.maps)
        )
        return self.known * (found - self.maps) / self.sizes

    def of_rows(self, rows: Tensor) -> MapTarget:
        return replace(self, maps=self.maps[rows], known=self.known[rows])


@dataclass
class OwnSquares:
    """JᵀJ of every picture by its own pixels (B, n, n), as of the pictures that were seen last
    (`own_squares` computes it)."""

    squares: Tensor | None = None
    products: int = 0  # of J and Jᵀ since then


@dataclass(frozen=True)
class Hint:
    """What gradients say of the maps that `told.layer` reads, which are of that `size`: each
    sample's share counts alike."""

    told: MapHint
    size: Tensor

    def misfit(self, read: Read) -> Tensor:
        return self.told.correction(read.maps) / self.size


@dataclass(frozen=True)
class Equations:
    """read(x)/‖map‖ − map/‖map‖ for the maps that layers read, the first of them the main one;
    every sample counts the same."""

    model: nn.Module
    targets: tuple[MapTarget, ...]
    # that normalize by the batch's own statistics, unless these are held
    norms: Mapping[str, _BatchNorm]
    hint: Hint | None = None
    end: float = math.inf  # when a search that has not ended by itself does
    own: OwnSquares = field(default_factory=OwnSquares)  # what helps conjugate gradients

    @property
    def together(self) -> bool:
        """Whether the whole batch is one problem."""
        return self.hint is not None or self.ties

    @property
    def ties(self) -> bool:
        """Whether BatchNorm's statistics tie the batch together."""
        return any(norm.training for norm in self.norms.values())

    @property
    def layer(self) -> str:
        return self.targets[0].layer

    @property
    def maps(self) -> Tensor:
        return self.targets[0].maps

    @property
    def known(self) -> Tensor:
        return self.targets[0].known

    def residual(self, pictures: Tensor) -> Tensor:
        """(B, m, 1, 1), each sample's in one column: the maps', and the hint's."""
        parts: list[MapTarget | Hint] = [*self.targets, *([] if self.hint is None else [self.hint])]
        names = [part.layer if isinstance(part, MapTarget) else part.told.layer for part in parts]
        read = read_all(self.model, dict.fromkeys(names), pictures)
        found = [
            part.misfit(read[name]).flatten(1) for part, name in zip(parts, names, strict=True)
        ]
        return torch.cat(found, 1)[:, :, None, None]

    def misfits(self, pictures: Tensor) -> Tensor:
        """(B,) what each picture leaves of its maps, relative: the mean over layers, and over the
        hint."""
        with torch.no_grad():
            left = self.residual(pictures).flatten(1).norm(dim=1)
        return left / (len(self.targets) + (self.hint is not None)) ** 0.5

    def over(self) -> bool:
        """Whether the search must give what it has."""
        return out_of_time("further steps towards the pictures") or time.monotonic() > self.end

    def of(self, rows: Tensor) -> Equations:
        """Those of some samples alone."""
        return replace(
            self, targets=tuple(target.of_rows(rows) for target in self.targets), own=OwnSquares()
        )

    def hold(self, pictures: Tensor, sent: BatchStatistics | None = None) -> None:
        """Take the statistics of these pictures, or those that were sent of as many, for constants:
        samples stand alone."""
        self.release()
        seen: dict[str, Tensor] = {}
        hooks = [
            norm.register_forward_pre_hook(partial(_note, seen, name))
            for name, norm in self.norms.items()
        ]
        with torch.no_grad():
            read_all(self.model, [target.layer for target in self.targets], pictures)
        for hook in hooks:
            hook.remove()
        for name, read in seen.items():
            dims = [0, *range(2, read.ndim)]
            mean, variance = read.mean(dims), read.var(dims, correction=0)
            if sent is not None:  # BatchNorm divides by n, and keeps what was divided by n − 1
                mean, variance = (
                    sent.means[name],
                    sent.variances[name] * (1 - read.shape[1] / read.numel()),
                )
            self.norms[name].running_mean, self.norms[name].running_var = (
                mean.to(read),
                variance.to(read),
            )
        for norm in self.norms.values():
            norm.eval()

    def release(self) -> None:
        """Statistics of the batch again."""
        for norm in self.norms.values():
            norm.train()

    def linear(self, pictures_of: Product, unknowns: Tensor) -> Derivative:
        """The derivative by `unknowns`, of which `pictures_of` makes pictures.

        J v is the derivative of u ↦ Jᵀ u, which costs one more pass back and takes no memory for
        tangents.
        """
        with torch.enable_grad():
            x = unknowns.detach().requires_grad_()
            residual = self.residual(pictures_of(x))
            u = torch.zeros_like(residual, requires_grad=True)
            (product,) = torch.autograd.grad(residual, x, u, create_graph=True)

        def forward(v: Tensor) -> Tensor:
            return torch.autograd.grad(product, u, v, retain_graph=True)[0]

        def back(v: Tensor) -> Tensor:
            return torch.autograd.grad(residual, x, v, retain_graph=True)[0]

        return Derivative(residual.detach(), forward, back)

    def dots(self, a: Tensor, b: Tensor) -> Tensor:
        """(B, 1, 1, 1) inner products, of each sample or of all."""
        products = (a * b).flatten(1).sum(1)
        if self.together:
            products = products.sum().expand(len(products))
        return products.view(-1, 1, 1, 1)


@contextmanager
def posed(
    model: nn.Module,
    layers: Mapping[str, Tensor],
    dtype: torch.dtype,
    end: float = math.inf,
    hint: MapHint | None = None,
    like: Tensor | None = None,
) -> Iterator[Equations]:
    """The equations of what layers read, NaN where nothing tells it, computed by a copy of the
    model in `dtype`.

    `like` are pictures whose maps are as large as those of which there is a hint. TF32 would leave
    nothing below 1e-3.
    """
    own = copy.deepcopy(model).to(dtype)
    for module in own.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False  # its input is needed for the derivative
    norms = {name: m for name, m in own.named_modules() if isinstance(m, _BatchNorm) and m.training}
    first = next(own.parameters())
    targets = tuple(MapTarget.of(layer, maps, first) for layer, maps in layers.items())
    with quiet(own, []), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        said = None
        if hint is not None and like is not None:
            with torch.no_grad():
                size = read_by(own, hint.layer, like.to(first)).flatten(1).norm(dim=1).mean()
            said = Hint(hint, size)
        yield Equations(own, targets, norms, said, end)
