"""Features of many clients at once: BatchNorm in train mode mixes a client's own batch, and nobody
else's."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from unsum.errors import UnsumError
from unsum.head import find_head
from unsum.models.inner import tap


class ClientFeatures(nn.Module):
    """(N, 3, s, s) images of several clients → (N, H) what reaches the head, or what its inner
    `layer` reads.

    The statistics of every BatchNorm come from the client's own share, as in its own training step.
    Weights are copied and frozen. `forward` takes what `sharing` returns, so that one compiled
    graph serves clients of every size.
    """

    def __init__(self, model: nn.Module, layer: str | None = None) -> None:
        super().__init__()
        name, _ = find_head(model)
        if layer == name:
            raise UnsumError(
                f"{layer!r} is the head; leave the layer out to invert what the head reads."
            )
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self._sharing = _Sharing()
        self._tap = None if layer is None else tap(self.model, layer)
        for path, module in list(self.model.named_modules(remove_duplicate=False)):
            if path and isinstance(module, _BatchNorm):
                self.model.set_submodule(path, _ClientBatchNorm(module, self._sharing))
        if name:
            self.model.set_submodule(name, nn.Identity())
        else:
            self.model = nn.Identity()

    def forward(self, images: Tensor, sharing: Tensor | None) -> Tensor:
        """`sharing` None: running statistics, as of a client in eval mode."""
        self._sharing.matrix = sharing
        features: Tensor = self.model(images)
        # compiled, the layers above are left out: nothing asks for what they compute
        if self._tap is not None:
            features = self._tap.read
        return features.flatten(1)


def sharing(images: int, client: int, smallest: int) -> Tensor:
    """(G, G) how G groups of `smallest` images average their statistics into clients of `client`
    images."""
    if images % smallest or client % smallest:
        raise UnsumError(
            f"A step of {images} photos cannot be cut into clients of {client} by groups of "
            f"{smallest}; choose client sizes and a batch that are multiples of the smallest "
            "client."
        )
    owner = torch.arange(images // smallest) // max(1, min(client, images) // smallest)
    together = (owner[:, None] == owner[None]).float()
    return together / together.sum(1, keepdim=True)


class _Sharing:
    """What every BatchNorm of one model looks at."""

    matrix: Tensor | None = None


class _ClientBatchNorm(nn.Module):
    def __init__(self, layer: _BatchNorm, sharing: _Sharing) -> None:
        super().__init__()
        self.layer = layer
        self.sharing = sharing

    def forward(self, x: Tensor) -> Tensor:
        matrix = self.sharing.matrix
        if matrix is None:
            usual: Tensor = self.layer(x)
            return usual
        groups = x.float().unflatten(0, (len(matrix), -1))
        inner = [1, *range(3, groups.ndim)]
        # Two sums in one pass over the data: half of the memory traffic of a mean followed by a
        # variance.
        mean, square = matrix @ groups.mean(inner), matrix @ groups.square().mean(inner)
        scale = (square - mean.square()).clamp(min=0).add(self.layer.eps).rsqrt()
        if self.layer.affine:
            scale = scale * self.layer.weight
        shift = -mean * scale + (self.layer.bias if self.layer.affine else 0)
        shape = (len(matrix), 1, -1, *(1,) * (groups.ndim - 3))
        normal = groups * scale.view(shape) + shift.view(shape)
        together: Tensor = normal.flatten(0, 1)
        return together.to(x.dtype)
