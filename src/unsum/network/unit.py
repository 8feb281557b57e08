"""A convolution and the BatchNorm behind it: what their gradients say of each other.

z = W ∗ x, y = γ x̂ + β with x̂ = (z − μ)/σ; μ and σ are those of the N places of the batch, or the
running ones in eval mode. Backwards, with d = ∂loss/∂y and, in train mode,

    ∂loss/∂z = (γ/σ) (d − ∇β/N − x̂ ∇γ/N),     ∇W = Σ_places (∂loss/∂z) × patch of x,
    ∇β = Σ d,     ∇γ = Σ d ∘ x̂ .
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.grad import conv2d_input, conv2d_weight

from unsum.errors import UnsumError
from unsum.network.layers import departure
from unsum.update import Update

# [of γ] keeps a channel without γ from dividing by zero; such channels get no weight.
# Chosen by: far below any γ.
_TINY = 1e-30


@dataclass(frozen=True)
class Unit:
    """All in float64. `batch_statistics`: BatchNorm used those of the batch, as in train mode."""

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
        parts, missing = dict(model.named_modules()), nn.Identity()
        layer, bn = parts.get(convolution, missing), parts.get(norm, missing)
        plain = isinstance(layer, nn.Conv2d) and layer.groups == 1 and layer.bias is None
        normed = isinstance(bn, nn.BatchNorm2d) and bn.affine and bn.running_var is not None
        if not plain or not normed:
            raise UnsumError(
                f"{convolution!r} and {norm!r} are not a plain convolution with a BatchNorm, so "
                "they cannot be undone."
            )
        for name, part in ((convolution, layer), (norm, bn)):
            if (changed := departure(part)) is not None:
                raise UnsumError(f"{name!r} {changed}, so it cannot be undone.")
        assert isinstance(layer, nn.Conv2d)
        assert isinstance(bn, nn.BatchNorm2d)
        assert bn.running_var is not None
        assert bn.running_mean is not None
        square = len({*layer.kernel_size}) == len({*layer.stride}) == 1 and layer.dilation == (1, 1)
        padding = layer.padding[0] if isinstance(layer.padding, tuple) else -1
        if not square or padding != layer.kernel_size[0] // 2 or layer.padding_mode != "zeros":
            raise UnsumError(
                f"{convolution!r} has an unusual kernel, dilation or padding, so it cannot be "
                "undone."
            )

        def sent(name: str) -> Tensor:
            if name not in update.gradients:
                raise UnsumError(
                    f"The update holds no gradient of {name!r}, so {convolution!r} cannot be "
                    "undone."
                )
            return update.gradients[name].to(layer.weight.device).double() / scale

        own = (layer.weight, bn.weight, bn.bias, bn.running_mean, bn.running_var)
        W, gamma, beta, mean, variance = (tensor.detach().double() for tensor in own)
        gradients = sent(f"{convolution}.weight"), sent(f"{norm}.weight"), sent(f"{norm}.bias")
        stride, trains = layer.stride[0], bn.training
        return Unit(
            convolution, W, gamma, beta, mean, variance, *gradients, bn.eps, stride, padding, trains
        )

    @property
    def divisor(self) -> Tensor:
        """γ, never zero."""
        return self.gamma.where(self.gamma.abs() > _TINY, _TINY)

    @property
    def kernel(self) -> int:
        return self.W.shape[-1]

    def taps(self, step: int, corner: tuple[int, int]) -> list[int]:
        return taps(self.kernel, self.stride, self.padding, step, corner)

    def output_size(self, size: torch.Size) -> torch.Size:
        h, w = ((side + 2 * self.padding - self.kernel) // self.stride + 1 for side in size[2:])
        return torch.Size((size[0], len(self.W), h, w))

    def linear(self, maps: Tensor) -> Tensor:
        """z (B, O, h', w') of `maps` (B, I, h, w)."""
        return F.conv2d(maps, self.W, stride=self.stride, padding=self.padding)

    def spread(self, dz: Tensor, size: torch.Size) -> Tensor:
        """The transpose of `linear`, for maps of `size`."""
        spread: Tensor = conv2d_input(size, self.W, dz, stride=self.stride, padding=self.padding)
        return spread

    def forward(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        """(σ, x̂): the deviations (O,) and the normalized output (B, O, h', w')."""
        z = self.linear(maps)
        if not self.batch_statistics:
            sigma = (self.variance + self.eps).sqrt()
            return sigma, (z - wide(self.mean)) / wide(sigma)
        z = z - z.mean((0, 2, 3), keepdim=True)
        sigma = (z.square().mean((0, 2, 3)) + self.eps).sqrt()
        return sigma, z / wide(sigma)

    def output(self, maps: Tensor) -> Tensor:
        """y, before any activation."""
        return self.forward(maps)[1] * wide(self.gamma) + wide(self.beta)

    def centered(self, d: Tensor) -> Tensor:
        """The factor of patches in ∇W, without γ/σ and without the part along x̂."""
        return d - d.mean((0, 2, 3), keepdim=True) if self.batch_statistics else d

    def told(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        """(σ/γ) ∇W + (∇γ/N) x̂ × patches, which is `centered(d)` times patches of `maps`; and σ."""
        sigma, normal = self.forward(maps)
        told = _tall(sigma / self.divisor) * self.grad_W
        if self.batch_statistics:
            places = normal.numel() // len(self.W)
            told = told + _tall(self.grad_gamma / places) * self.times(normal, maps)
        return told, sigma

    def times(self, d: Tensor, maps: Tensor) -> Tensor:
        """(O, I, k, k) Σ over places of d times the patch read there."""
        geometry = {"stride": self.stride, "padding": self.padding}
        product: Tensor = conv2d_weight(maps, self.W.shape, d, **geometry)
        return product

    def behind(self, d: Tensor, maps: Tensor) -> Tensor:
        """∂loss/∂z, of d = ∂loss/∂y."""
        sigma, normal = self.forward(maps)
        if self.batch_statistics:
            places = normal.numel() // len(self.W)
            d = self.centered(d) - normal * wide((d * normal).sum((0, 2, 3)) / places)
        return d * wide(self.gamma / sigma)

    def back(self, d: Tensor, maps: Tensor) -> Tensor:
        """∂loss/∂maps."""
        return self.spread(self.behind(d, maps), maps.shape)

    def misfit(self, d: Tensor, maps: Tensor) -> float:
        """How far the gradient of the weights is from what `d` and `maps` make of it, relative."""
        off = self.times(self.behind(d, maps), maps) - self.grad_W
        return float(off.norm() / self.grad_W.norm().clamp_min(1e-300))


def taps(kernel: int, stride: int, padding: int, step: int, corner: tuple[int, int]) -> list[int]:
    """The taps (u, v) of the kernel, as u k + v, that ever meet a place of the class.

    The class has the place at `corner` and every `step`-th one from there.
    """
    common = math.gcd(step, stride)
    met = [[t for t in range(kernel) if (start + padding - t) % common == 0] for start in corner]
    return [u * kernel + v for u in met[0] for v in met[1]]


def wide(values: Tensor) -> Tensor:
    return values.view(1, -1, 1, 1)


def _tall(values: Tensor) -> Tensor:
    return values.view(-1, 1, 1, 1)


def as_rows(maps: Tensor) -> Tensor:
    """(B, C, h, w) → (B h w, C)."""
    return maps.permute(0, 2, 3, 1).flatten(0, 2)


def as_maps(rows: Tensor, size: torch.Size) -> Tensor:
    """(B h w, C) → (B, C, h, w)."""
    return rows.reshape(size[0], size[2], size[3], -1).permute(0, 3, 1, 2)
