"""A convolution and the BatchNorm behind it: what their gradients say of each other.

z = A Wᵀ, y = γ x̂ + β with x̂ = (z − μ)/σ over the batch; A are the convolution's columns, one row for each of the N places
that it writes. Backwards, with d = ∂loss/∂y:

    ∂loss/∂z = (γ/σ) (d − ∇β/N − x̂ ∇γ/N),     ∇W = (∂loss/∂z)ᵀ A,     ∇β = Σ d,     ∇γ = Σ d ∘ x̂ .
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unsum.errors import UnsumError
from unsum.update import Update


@dataclass(frozen=True)
class Unit:
    """All in float64. `batch_statistics`: the client trained with those of its batch, as BatchNorm in train mode does."""

    name: str  # of the convolution
    W: Tensor  # (O, I, k, k)
    gamma: Tensor  # (O,)
    beta: Tensor
    mean: Tensor  # running statistics
    variance: Tensor
    grad_W: Tensor
    grad_gamma: Tensor
    grad_beta: Tensor
    eps: float
    stride: int
    padding: int
    batch_statistics: bool

    @staticmethod
    def of(model: nn.Module, update: Update, scale: float, convolution: str, norm: str) -> Unit:
        layer, bn = model.get_submodule(convolution), model.get_submodule(norm)
        plain = isinstance(layer, nn.Conv2d) and layer.groups == 1 and layer.bias is None
        if not plain or not isinstance(bn, nn.BatchNorm2d) or not bn.affine or bn.running_var is None:
            raise UnsumError(
                f"{convolution!r} and {norm!r} are not a plain convolution with a BatchNorm, so they cannot be undone."
            )
        assert isinstance(layer, nn.Conv2d)
        assert bn.running_mean is not None
        square = len({*layer.kernel_size}) == len({*layer.stride}) == 1 and layer.dilation == (1, 1)
        padding = layer.padding[0] if isinstance(layer.padding, tuple) else -1
        if not square or padding != layer.kernel_size[0] // 2 or layer.padding_mode != "zeros":
            raise UnsumError(f"{convolution!r} has an unusual kernel, dilation or padding, so it cannot be undone.")

        def sent(name: str) -> Tensor:
            if name not in update.gradients:
                raise UnsumError(f"The update holds no gradient of {name!r}, so {convolution!r} cannot be undone.")
            return update.gradients[name].to(layer.weight.device).double() / scale

        own = (layer.weight, bn.weight, bn.bias, bn.running_mean, bn.running_var)
        W, gamma, beta, mean, variance = (tensor.detach().double() for tensor in own)
        gradients = sent(f"{convolution}.weight"), sent(f"{norm}.weight"), sent(f"{norm}.bias")
        stride, trains = layer.stride[0], bn.training
        return Unit(convolution, W, gamma, beta, mean, variance, *gradients, bn.eps, stride, padding, trains)

    @property
    def kernel(self) -> int:
        return self.W.shape[-1]

    def read(self, maps: Tensor) -> Tensor:
        """What of `maps` (B, I, h, w) the convolution looks at: a 1×1 convolution with a stride passes places over."""
        return maps[:, :, :: self.stride, :: self.stride] if self.kernel == 1 else maps

    def columns(self, read: Tensor) -> Tensor:
        """(N, I k k) the patches of what was read, one row for each place that is written."""
        if self.kernel == 1:
            return as_rows(read)
        patches = F.unfold(read, self.kernel, padding=self.padding, stride=self.stride)
        return patches.transpose(1, 2).flatten(0, 1)

    def folded(self, columns: Tensor, size: torch.Size) -> Tensor:
        """The mean of the copies of every entry of (B, I, h, w) maps that `columns` holds."""
        if self.kernel == 1:
            return as_maps(columns, size)
        return self.summed(columns, size) / self.summed(torch.ones_like(columns), size)

    def summed(self, columns: Tensor, size: torch.Size) -> Tensor:
        """The copies of every entry added up, as (B, I, h, w) maps."""
        patches = columns.unflatten(0, (size[0], -1)).transpose(1, 2)
        side = (size[2], size[3])
        return F.fold(patches, side, self.kernel, padding=self.padding, stride=self.stride)

    def forward(self, columns: Tensor) -> tuple[Tensor, Tensor]:
        """(σ, x̂): the deviations (O,) and the normalized output (N, O)."""
        z = columns @ self.W.flatten(1).T
        if not self.batch_statistics:
            sigma = (self.variance + self.eps).sqrt()
            return sigma, (z - self.mean) / sigma
        z = z - z.mean(0)
        sigma = (z.square().mean(0) + self.eps).sqrt()
        return sigma, z / sigma

    def behind(self, d: Tensor, sigma: Tensor, normal: Tensor) -> Tensor:
        """(N, O) ∂loss/∂z of d = ∂loss/∂y."""
        if self.batch_statistics:
            d = d - d.mean(0) - normal * (self.grad_gamma / len(d))
        return d * (self.gamma / sigma)

    def back(self, dz: Tensor, size: torch.Size) -> Tensor:
        """(B, I, h, w) the gradient of what was read."""
        if self.kernel == 1:
            return as_maps(dz @ self.W.flatten(1), size)
        patches = (dz @ self.W.flatten(1)).contiguous()
        return self.summed(patches, size)


def as_rows(maps: Tensor) -> Tensor:
    """(B, C, h, w) → (B h w, C)."""
    return maps.permute(0, 2, 3, 1).flatten(0, 2)


def as_maps(rows: Tensor, size: torch.Size) -> Tensor:
    """(B h w, C) → (B, C, h, w)."""
    return rows.reshape(size[0], size[2], size[3], -1).permute(0, 3, 1, 2)
