"""What pictures make a layer read, less what it read: the residual of the least squares, and its derivative as two products.

In eval mode every sample stands for itself. In train mode BatchNorm's statistics tie the batch together, and the whole batch is
one problem, unless the statistics are held: those that the client sent along, or a guess.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from unsum.batch_statistics import BatchStatistics
from unsum.deadline import out_of_time
from unsum.gradients import TINY, quiet

Product = Callable[[Tensor], Tensor]


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
    """The layer has been read."""


def read_by(model: nn.Module, layer: str, pictures: Tensor) -> Tensor:
    """(B, C, h, w) what the layer reads of pictures; nothing above it is computed."""
    seen: list[Tensor] = []

    def reached(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen.append(inputs[0])
        raise _ReadIt

    hook = model.get_submodule(layer).register_forward_pre_hook(reached)
    try:
        model(pictures)
    except _ReadIt:
        pass
    finally:
        hook.remove()
    return seen[0]


def _note(seen: dict[str, Tensor], name: str, _module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    seen[name] = inputs[0]


@dataclass(frozen=True)
class Derivative:
    """The residual (B, …) at a point, with v ↦ J v and u ↦ Jᵀ u."""

    residual: Tensor
    forward: Product
    back: Product


@dataclass(frozen=True)
class Equations:
    """read(x)/‖map‖ − map/‖map‖ for the maps (B, C, h, w) that `layer` read; every sample counts the same."""

    model: nn.Module
    layer: str
    maps: Tensor
    norms: Mapping[str, _BatchNorm]  # that normalize by the batch's own statistics, unless these are held
    known: Tensor  # (B, C, h, w) entries of the maps that count; the others are zero
    end: float = math.inf  # when a search that has not ended by itself does

    @property
    def together(self) -> bool:
        """Whether the whole batch is one problem."""
        return any(norm.training for norm in self.norms.values())

    @property
    def sizes(self) -> Tensor:
        return self.maps.flatten(1).norm(dim=1).clamp_min(TINY).view(-1, 1, 1, 1)

    def residual(self, pictures: Tensor) -> Tensor:
        """Where the map is positive, what went into the ReLU before it counts: behind it, a negative one has no derivative."""
        with _Relus() as relus:
            read = read_by(self.model, self.layer, pictures)
        if relus.last is not None and relus.last[1] is read:
            read = torch.where(self.maps > 0, relus.last[0], read)
        return self.known * (read - self.maps) / self.sizes

    def over(self) -> bool:
        """Whether the search must give what it has."""
        return out_of_time("further steps towards the pictures") or time.monotonic() > self.end

    def of(self, rows: Tensor) -> Equations:
        """Those of some samples alone."""
        return replace(self, maps=self.maps[rows], known=self.known[rows])

    def hold(self, pictures: Tensor, sent: BatchStatistics | None = None) -> None:
        """Take the statistics of these pictures, or those that were sent of as many, for constants: samples stand alone."""
        self.release()
        seen: dict[str, Tensor] = {}
        hooks = [norm.register_forward_pre_hook(partial(_note, seen, name)) for name, norm in self.norms.items()]
        with torch.no_grad():
            read_by(self.model, self.layer, pictures)
        for hook in hooks:
            hook.remove()
        for name, read in seen.items():
            dims = [0, *range(2, read.ndim)]
            mean, variance = read.mean(dims), read.var(dims, correction=0)
            if sent is not None:  # BatchNorm divides by n, and keeps what was divided by n − 1
                mean, variance = sent.means[name], sent.variances[name] * (1 - read.shape[1] / read.numel())
            self.norms[name].running_mean, self.norms[name].running_var = mean.to(read), variance.to(read)
        for norm in self.norms.values():
            norm.eval()

    def release(self) -> None:
        """Statistics of the batch again."""
        for norm in self.norms.values():
            norm.train()

    def linear(self, pictures_of: Product, unknowns: Tensor) -> Derivative:
        """The derivative by `unknowns`, of which `pictures_of` makes pictures.

        J v is the derivative of u ↦ Jᵀ u, which costs one more pass back and takes no memory for tangents.
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
def posed(model: nn.Module, layer: str, maps: Tensor, dtype: torch.dtype, end: float = math.inf) -> Iterator[Equations]:
    """The equations of maps that are NaN where nothing tells them, computed by a copy of the model in `dtype`.

    TF32 would leave nothing below 1e-3.
    """
    own = copy.deepcopy(model).to(dtype)
    for module in own.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False  # its input is needed for the derivative
    norms = {name: m for name, m in own.named_modules() if isinstance(m, _BatchNorm) and m.training}
    with quiet(own, []), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        like = next(own.parameters())
        yield Equations(own, layer, maps.nan_to_num().to(like), norms, maps.isfinite().to(like), end)
