"""What pictures make a layer read, less what it read: the residual of the least squares, and its derivative as two products.

In eval mode every sample stands for itself. In train mode BatchNorm's statistics tie the batch together, and the whole batch is
one problem, unless the client sent the statistics along: then they are constants.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from unsum.batch_statistics import BatchStatistics
from unsum.gradients import TINY, inputs_of, quiet

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


class _Reached(Exception):  # noqa: N818 (not an error: the rest of the pass is not needed)
    """The layer has been read."""


def read_by(model: nn.Module, layer: str, pictures: Tensor) -> Tensor:
    """(B, C, h, w) what the layer reads of pictures; nothing above it is computed."""
    seen: list[Tensor] = []

    def reached(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen.append(inputs[0])
        raise _Reached

    hook = model.get_submodule(layer).register_forward_pre_hook(reached)
    try:
        model(pictures)
    except _Reached:
        pass
    finally:
        hook.remove()
    return seen[0]


@dataclass(frozen=True)
class Linear:
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
    together: bool  # one problem for the batch

    @property
    def sizes(self) -> Tensor:
        return self.maps.flatten(1).norm(dim=1).clamp_min(TINY).view(-1, 1, 1, 1)

    def residual(self, pictures: Tensor) -> Tensor:
        """Where the map is positive, what went into the ReLU before it counts: behind it, a negative one has no derivative."""
        with _Relus() as relus:
            read = read_by(self.model, self.layer, pictures)
        if relus.last is not None and relus.last[1] is read:
            read = torch.where(self.maps > 0, relus.last[0], read)
        return (read - self.maps) / self.sizes

    def of(self, rows: Tensor) -> Equations:
        """Those of some samples alone."""
        return Equations(self.model, self.layer, self.maps[rows], self.together)

    def linear(self, pictures_of: Product, unknowns: Tensor) -> Linear:
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

        return Linear(residual.detach(), forward, back)

    def dots(self, a: Tensor, b: Tensor) -> Tensor:
        """(B, 1, 1, 1) inner products, of each sample or of all."""
        products = (a * b).flatten(1).sum(1)
        if self.together:
            products = products.sum().expand(len(products))
        return products.view(-1, 1, 1, 1)


@contextmanager
def posed(
    model: nn.Module, layer: str, maps: Tensor, shape: tuple[int, ...], sent: BatchStatistics, dtype: torch.dtype
) -> Iterator[Equations]:
    """The equations, computed by a copy of the model in `dtype`; TF32 would leave nothing below 1e-3."""
    own = copy.deepcopy(model).to(dtype)
    maps = maps.to(next(own.parameters()))
    _hold_sent(own, sent, torch.zeros(len(maps), *shape, dtype=dtype, device=maps.device))
    together = any(isinstance(m, _BatchNorm) and (m.training or m.running_mean is None) for m in own.modules())
    for module in own.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False  # its input is needed for the derivative
    with quiet(own, []), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield Equations(own, layer, maps, together)


def _hold_sent(model: nn.Module, sent: BatchStatistics, like: Tensor) -> None:
    """Put the batch's own statistics, where the client sent those of every layer, in the place of the running ones."""
    norms = {name: m for name, m in model.named_modules() if isinstance(m, _BatchNorm) and m.training}
    if not norms or not norms.keys() <= sent.means.keys():
        return
    for name, norm in norms.items():
        with inputs_of(norm) as seen, torch.no_grad():
            model(like)
        count = seen[-1].numel() // seen[-1].shape[1]
        assert norm.running_mean is not None  # it was sent
        assert norm.running_var is not None
        norm.running_mean.copy_(sent.means[name])
        norm.running_var.copy_(sent.variances[name] * (1 - 1 / count))  # BatchNorm divides by n, keeps by n − 1
    for norm in norms.values():
        norm.eval()
