"""Gradients of many batches on one ResNet, and the way back to their pictures, with every derivative written out.

torch differentiates a gradient a second time by convolutions whose kernels are maps of 56 × 56 places, and by some twenty passes
over the maps for a BatchNorm layer; it starts thousands of small kernels for one batch of eight. Here K batches go through the
network together, each with BatchNorm statistics of its own. Let v be a direction in the space of the weights. Then

    ∂/∂x ⟨v, ∇L(x)⟩ = ∂/∂x L̇,       L̇ = d/dε L(x, W + ε v)

so that four passes do, each as cheap as a forward pass or two:

    forward    y = W a                          backward   δa = Wᵀ δy,   ∇W = δy aᵀ
    tangent    ẏ = W ȧ + v a                    second     ða = Wᵀ ðy + vᵀ δy

BatchNorm, with x̂ = (y − μ) / σ, z = γ x̂ + β, ⟨·⟩ the mean over all places of a channel, and vγ, vβ the parts of v:

    backward   δy = γ/σ (δz − ⟨δz⟩ − x̂ ⟨δz x̂⟩)
    tangent    ẋ = (ẏ − ⟨ẏ⟩ − x̂ ⟨ẏ x̂⟩) / σ,      ż = γ ẋ + vγ x̂ + vβ
    second     c = γ ðz + vγ δz − γ/σ (δz ⟨ẏ x̂⟩ + ẏ ⟨δz x̂⟩),    ðy = (c − ⟨c⟩ − x̂ (⟨c x̂⟩ + γ ⟨δz ẋ⟩)) / σ

A head on unpooled features has 100 million weights, and its gradient Gᵀ F is never formed: ⟨Gᵀ F, ĝ⟩ = ⟨G ĝ, F⟩ and
‖Gᵀ F‖² = ⟨G Gᵀ, F Fᵀ⟩. Maps lie with their channels innermost: a 1×1 convolution is a matrix product for all batches, and a
k×k one is after its patches are laid out.

    python benchmarks/resnet_passes.py --device cuda      # against torch's own on ResNet-50 at 224², B = 8: milliseconds
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.models import ResNet, resnet50
from torchvision.models.resnet import Bottleneck

from unsum.cuda_graph import recorded

_aten = torch.ops.aten
ERRORS = 2.0**6  # errors are kept times this, as mixed-precision training does: float16 ends at 6e-8 and at 65 504
_FEATURES = 2.0**8  # by which features are divided before they meet a received gradient
_TINY = 1e-30  # length of a direction that is none
_LARGEST = 2.0**6  # entry of a received gradient as it is kept
_SHORT = 1 << 18  # entries of a product below which it is cut along its long sum: few blocks leave a large GPU idle
Maps = Tensor  # (K, B, h, w, channels)
Rows = Tensor  # (K, places of all B maps, channels)


def _rows(maps: Maps) -> Rows:
    return maps.flatten(1, 3)


def _channels_first(maps: Maps) -> Tensor:
    """A view: torch's convolutions take maps laid out like this as they are."""
    return maps.flatten(0, 1).permute(0, 3, 1, 2)


def _channels_last(maps: Tensor, like: Maps) -> Maps:
    return maps.permute(0, 2, 3, 1).contiguous().unflatten(0, like.shape[:2])


def _wide(x: Tensor) -> Tensor:
    """Sums and differences are taken in float32 at least."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def _product(left: Rows, right: Rows) -> Tensor:
    """(K, m, n) sums over places of left ⊗ right; a long sum with a small result is cut into parts."""
    K, places, m = left.shape
    parts, entries = 1, K * m * right.shape[2]
    while left.is_cuda and parts * entries < _SHORT and places % (2 * parts) == 0 and places // parts > 1024:
        parts *= 2
    cut = [side.reshape(K * parts, places // parts, -1) for side in (left, right)]
    found = torch.bmm(cut[0].mT, cut[1])
    return found if parts == 1 else _wide(found.unflatten(0, (K, parts))).sum(1).to(found.dtype)


def _gram(rows: Tensor) -> Tensor:
    """(K, B, B), free of rounding: differences of it are what a distance is made of."""
    return torch.bmm(rows.double(), rows.double().mT).to(rows.dtype)


class Convolution:
    """One weight for all batches; `own` are K weights, one for each batch, out of the direction v."""

    def __init__(self, name: str, layer: nn.Conv2d, dtype: torch.dtype) -> None:
        self.name, self.stride, self.padding = name, layer.stride[0], int(layer.padding[0])
        self.size, self.shape = layer.kernel_size[0], layer.weight.shape
        assert layer.bias is None
        assert layer.groups == 1
        weight = layer.weight.detach().to(dtype)
        self.matrix = weight.permute(0, 2, 3, 1).reshape(len(weight), -1)  # (out, k k in)
        self.weight = weight.contiguous(memory_format=torch.channels_last)
        self._settings = ([self.stride] * 2, [self.padding] * 2, [1, 1], False, [0, 0], 1)

    def patches(self, a: Maps) -> Rows:
        """(K, places of the output, k k channels) what the kernel sees at each place."""
        s = self.stride
        if self.size == 1:
            return _rows(a[:, :, ::s, ::s])
        p = self.padding
        padded = functional.pad(a, (0, 0, p, p, p, p))
        return _rows(_windows(padded, self.size, s))

    def forward(self, a: Maps) -> Maps:
        if self.size == 1:
            a = a[:, :, :: self.stride, :: self.stride]
            return (a.flatten(0, 3) @ self.matrix.T).unflatten(0, a.shape[:4])
        return _channels_last(_aten.convolution(_channels_first(a), self.weight, None, *self._settings), a)

    def backward(self, errors: Maps, a: Maps) -> Maps:
        """Wᵀ errors, of the shape of a."""
        if self.size == 1 and self.stride == 1:
            return (errors.flatten(0, 3) @ self.matrix).view_as(a)
        found = _aten.convolution_backward(
            _channels_first(errors), _channels_first(a), self.weight, None, *self._settings, [True, False, False]
        )[0]
        return _channels_last(found, a)

    def gradient(self, errors: Maps, patches: Rows) -> Tensor:
        """(K, out · k k in)"""
        return _product(_rows(errors), patches).flatten(1)

    def add_own(self, y: Maps, patches: Rows, own: Tensor) -> Maps:
        """y + v a"""
        matrix = own.view(len(own), len(self.matrix), -1)
        return torch.baddbmm(_rows(y), patches, matrix.mT).view_as(y)

    def add_own_backward(self, found: Maps, errors: Maps, own: Tensor) -> Maps:
        """found + vᵀ errors"""
        kernel = own.view(len(own), len(self.matrix), self.size, self.size, -1)  # (K, out, k, k, in)
        if self.stride == 1:  # a convolution with the kernel turned round
            p, turned = self.size - 1 - self.padding, kernel.flip(2, 3) if self.size > 1 else kernel
            seen = _rows(
                errors if self.size == 1 else _windows(functional.pad(errors, (0, 0, p, p, p, p)), self.size, 1)
            )
            matrix = turned.permute(0, 2, 3, 1, 4).flatten(1, 3)  # (K, k k out, in)
            return torch.baddbmm(_rows(found), seen, matrix).view_as(found)
        if self.size == 1:
            through = torch.bmm(_rows(errors), kernel[:, :, 0, 0]).view(*errors.shape[:4], -1)
            found = found.clone()
            found[:, :, :: self.stride, :: self.stride] += through
            return found
        return found + torch.stack([self._own_backward(e, f, k) for e, f, k in zip(errors, found, kernel, strict=True)])

    def _own_backward(self, errors: Tensor, like: Tensor, kernel: Tensor) -> Tensor:
        """Of one batch: patches with a stride overlap, and torch knows best how to add them up."""
        weight = kernel.permute(0, 3, 1, 2)
        first = errors.permute(0, 3, 1, 2)
        found = _aten.convolution_backward(
            first, like.permute(0, 3, 1, 2), weight, None, *self._settings, [True, False, False]
        )[0]
        return found.permute(0, 2, 3, 1)


def _windows(padded: Maps, size: int, stride: int) -> Tensor:
    """(K, B, h, w, k k channels), copied."""
    K, B, H, W, C = padded.shape
    h, w = (H - size) // stride + 1, (W - size) // stride + 1
    a, b, c, d, e = padded.stride()
    view = padded.as_strided((K, B, h, w, size, size, C), (a, b, c * stride, d * stride, c, d, e))
    return view.reshape(K, B, h, w, size * size * C)


# BatchNorm, all in (K, places, channels). Each of these functions is a few fused kernels where it is compiled.


def _statistics(y: Rows, eps: float) -> tuple[Tensor, Tensor]:
    wide = _wide(y)  # two sums in one pass; Welford's way takes torch's compiler longer
    mean = wide.mean(1, keepdim=True)
    variance = (wide.square().mean(1, keepdim=True) - mean.square()).clamp_min(0)
    return mean, (variance + eps).rsqrt()


def _normed(y: Rows, mean: Tensor, scale: Tensor, weight: Tensor, bias: Tensor, rest: Rows | None, relu: bool) -> Rows:
    z = (_wide(y) - mean) * (scale * weight) + bias
    if rest is not None:
        z = z + _wide(rest)
    return (z.relu() if relu else z).to(y.dtype)


def _normed_back(
    errors: Rows, a: Rows | None, y: Rows, mean: Tensor, scale: Tensor, weight: Tensor
) -> tuple[Rows, Tensor, Tensor]:
    """δy, ⟨δz⟩ and ⟨δz x̂⟩"""
    dz = _wide(errors) if a is None else _wide(errors) * (a > 0)
    hat = (_wide(y) - mean) * scale
    plain, with_hat = dz.mean(1, keepdim=True), (dz * hat).mean(1, keepdim=True)
    return ((dz - plain - hat * with_hat) * (scale * weight)).to(y.dtype), plain, with_hat


def _normed_along(
    dot: Rows,
    a: Rows | None,
    y: Rows,
    mean: Tensor,
    scale: Tensor,
    weight: Tensor,
    v: Tensor,
    u: Tensor,
    rest: Rows | None,
) -> tuple[Rows, Tensor, Tensor]:
    """ż (after the relu), ⟨ẏ⟩ and ⟨ẏ x̂⟩; v and u are what γ and β are moved by."""
    dy, hat = _wide(dot), (_wide(y) - mean) * scale
    plain, with_hat = dy.mean(1, keepdim=True), (dy * hat).mean(1, keepdim=True)
    dz = (dy - plain - hat * with_hat) * (scale * weight) + hat * v + u
    if rest is not None:
        dz = dz + _wide(rest)
    return (dz if a is None else dz * (a > 0)).to(y.dtype), plain, with_hat


def _normed_second(
    second: Rows, errors: Rows, a: Rows | None, y: Rows, dot: Rows, mean: Tensor, scale: Tensor, weight: Tensor, v: Tensor,
    errors_plain: Tensor, errors_hat: Tensor, dot_plain: Tensor, dot_hat: Tensor,
) -> Rows:  # fmt: skip
    on = 1.0 if a is None else (a > 0)
    s, dz, dy, hat = _wide(second) * on, _wide(errors) * on, _wide(dot), (_wide(y) - mean) * scale
    inner = scale * ((dz * dy).mean(1, keepdim=True) - errors_plain * dot_plain - errors_hat * dot_hat)  # ⟨δz ẋ⟩
    c = weight * s + (v - weight * scale * dot_hat) * dz - (weight * scale * errors_hat) * dy
    c_plain, c_hat = c.mean(1, keepdim=True), (c * hat).mean(1, keepdim=True)
    return ((c - c_plain - hat * (c_hat + weight * inner)) * scale).to(y.dtype)


def _sums(flat: Tensor, sent: Tensor) -> tuple[Tensor, Tensor]:
    """(K,) ⟨g, ĝ⟩ and ‖g‖² below the head."""
    return (_wide(flat) * _wide(sent)).sum(1), _wide(flat).square().sum(1)


def _direction(flat: Tensor, sent: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return (a[:, None] * _wide(flat) + b[:, None] * _wide(sent)).to(flat.dtype)


def _masked_sum(one: Rows, errors: Rows, a: Rows) -> Rows:
    """one + errors where the relu let something through: what reaches a plain shortcut."""
    return (_wide(one) + _wide(errors) * (a > 0)).to(one.dtype)


@dataclass(frozen=True)
class _Kernels:
    """The functions above, compiled for a GPU."""

    statistics: Callable[..., Any] = _statistics
    normed: Callable[..., Any] = _normed
    back: Callable[..., Any] = _normed_back
    along: Callable[..., Any] = _normed_along
    second: Callable[..., Any] = _normed_second
    masked_sum: Callable[..., Any] = _masked_sum
    sums: Callable[..., Any] = _sums
    direction: Callable[..., Any] = _direction

    @classmethod
    @cache
    def compiled(cls) -> _Kernels:
        torch._dynamo.config.recompile_limit = 1000  # one version for each shape of maps
        torch._dynamo.config.accumulated_recompile_limit = 10_000
        every = (_statistics, _normed, _normed_back, _normed_along, _normed_second, _masked_sum, _sums, _direction)
        return cls(*(torch.compile(function, dynamic=False) for function in every))


@dataclass
class Layer:
    """A convolution and the BatchNorm layer after it, with all that the passes leave behind."""

    convolution: Convolution
    norm: str
    weight: Tensor
    bias: Tensor
    eps: float
    relu: bool
    kept: dict[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return [f"{self.convolution.name}.weight", f"{self.norm}.weight", f"{self.norm}.bias"]

    def forward(self, a: Maps, kernels: _Kernels, rest: Maps | None = None) -> Maps:
        y = self.convolution.forward(a)
        mean, scale = kernels.statistics(_rows(y), self.eps)
        given = (_rows(y), mean, scale, self.weight, self.bias, None if rest is None else _rows(rest), self.relu)
        out = kernels.normed(*given).view_as(y)
        self.kept = {"a": a, "y": y, "mean": mean, "scale": scale, "out": out}
        return out

    def backward(self, errors: Maps, kernels: _Kernels, *, first: bool = False) -> Maps:
        kept = self.kept
        dy, plain, hat = kernels.back(_rows(errors), self._on(), *self._normal())
        dy, n = dy.view_as(kept["y"]), _rows(errors).shape[1]
        patches = self.convolution.patches(kept["a"])
        kept |= {"errors": errors, "dy": dy, "errors_plain": plain, "errors_hat": hat, "patches": patches}
        kept["gradients"] = [self.convolution.gradient(dy, patches), n * hat[:, 0], n * plain[:, 0]]
        return errors if first else self.convolution.backward(dy, kept["a"])  # nobody asks for that of pictures

    def along(self, dot: Maps | None, v: list[Tensor], kernels: _Kernels, rest: Maps | None = None) -> Maps:
        kept = self.kept
        ahead = torch.zeros_like(kept["y"]) if dot is None else self.convolution.forward(dot)
        dot_y = self.convolution.add_own(ahead, kept["patches"], v[0])
        given = (_rows(dot_y), self._on(), *self._normal(), v[1][:, None], v[2][:, None])
        found, plain, hat = kernels.along(*given, None if rest is None else _rows(rest))
        kept |= {"dot": dot_y, "dot_plain": plain, "dot_hat": hat}
        return found.view_as(kept["y"])

    def second(self, errors: Maps, v: list[Tensor], kernels: _Kernels) -> Maps:
        kept, (y, *normal) = self.kept, self._normal()
        names = ("errors_plain", "errors_hat", "dot_plain", "dot_hat")
        given = (_rows(errors), _rows(kept["errors"]), self._on(), y, _rows(kept["dot"]), *normal, v[1][:, None])
        found = kernels.second(*given, *(kept[name] for name in names)).view_as(kept["y"])
        return self.convolution.add_own_backward(self.convolution.backward(found, kept["a"]), kept["dy"], v[0])

    def _on(self) -> Rows | None:
        return _rows(self.kept["out"]) if self.relu else None

    def _normal(self) -> tuple[Tensor, ...]:
        return _rows(self.kept["y"]), self.kept["mean"], self.kept["scale"], self.weight


@dataclass
class Block:
    """Layers one after the other beside a shortcut, which is plain or a layer of its own; a relu follows their sum."""

    layers: list[Layer]
    shortcut: Layer | None

    def forward(self, a: Maps, kernels: _Kernels) -> Maps:
        rest = a if self.shortcut is None else self.shortcut.forward(a, kernels)
        for layer in self.layers[:-1]:
            a = layer.forward(a, kernels)
        return self.layers[-1].forward(a, kernels, rest)

    def backward(self, errors: Maps, kernels: _Kernels) -> Maps:
        found = errors
        for layer in reversed(self.layers):
            found = layer.backward(found, kernels)
        if self.shortcut is None:
            return self._masked(found, errors, kernels)
        return found + self.shortcut.backward(self._masked(torch.zeros_like(errors), errors, kernels), kernels)

    def along(self, dot: Maps, v: Callable[[Layer], list[Tensor]], kernels: _Kernels) -> Maps:
        rest = dot if self.shortcut is None else self.shortcut.along(dot, v(self.shortcut), kernels)
        for layer in self.layers[:-1]:
            dot = layer.along(dot, v(layer), kernels)
        return self.layers[-1].along(dot, v(self.layers[-1]), kernels, rest)

    def second(self, errors: Maps, v: Callable[[Layer], list[Tensor]], kernels: _Kernels) -> Maps:
        found = errors
        for layer in reversed(self.layers):
            found = layer.second(found, v(layer), kernels)
        if self.shortcut is None:
            return self._masked(found, errors, kernels)
        passed = self._masked(torch.zeros_like(errors), errors, kernels)
        return found + self.shortcut.second(passed, v(self.shortcut), kernels)

    def _masked(self, found: Maps, errors: Maps, kernels: _Kernels) -> Maps:
        out = self.layers[-1].kept["out"]
        return kernels.masked_sum(_rows(found), _rows(errors), _rows(out)).view_as(found)


class Passes:
    """The K gradients of (K, B, 3, h, w) pictures with (K, B, C) targets beside those received, K of them or one for all.

    A call returns ⟨g, ĝ⟩ and ‖g‖² of each batch; `sent_square` is ‖ĝ‖². `pull` is the derivative of ⟨a g + b ĝ, g(x)⟩ by the
    pictures with a g + b ĝ held constant, so that it serves any loss that is a function of these three.
    """

    def __init__(
        self,
        model: ResNet,
        sent: Sequence[Mapping[str, Tensor]],
        targets: Tensor,
        dtype: torch.dtype,
        *,
        compiled: bool = False,
    ) -> None:
        self.dtype, self.targets = dtype, targets.to(dtype if dtype == torch.float64 else torch.float32)
        self.kernels = _Kernels.compiled() if compiled else _Kernels()
        self.stem = self._layer(model, "conv1", "bn1", relu=True)
        stages = [getattr(model, f"layer{stage}") for stage in (1, 2, 3, 4)]
        self.blocks = [
            self._block(model, f"layer{number}.{place}", block)
            for number, stage in enumerate(stages, 1)
            for place, block in enumerate(stage)
        ]
        self.pooled = not isinstance(model.avgpool, nn.Identity)
        self.channels = self.blocks[-1].layers[-1].convolution.shape[0]
        self.head = self.inner(model.fc.weight.detach()).to(dtype)
        self.head_bias = model.fc.bias.detach().to(self.targets.dtype)
        self._received = self._laid_out(sent)
        self.sent, self.sent_head, self._sent_factor, self.sent_square, self._sent_below = self._received

    def _layer(self, model: ResNet, convolution: str, norm: str, *, relu: bool) -> Layer:
        wide = self.targets.dtype
        layer, norms = model.get_submodule(convolution), model.get_submodule(norm)
        assert isinstance(layer, nn.Conv2d)
        assert isinstance(norms, nn.BatchNorm2d)
        assert norms.training
        values = (norms.weight.detach().to(wide), norms.bias.detach().to(wide))
        return Layer(Convolution(convolution, layer, self.dtype), norm, *values, norms.eps, relu)

    def _block(self, model: ResNet, name: str, block: nn.Module) -> Block:
        numbers = (1, 2, 3) if isinstance(block, Bottleneck) else (1, 2)
        layers = [self._layer(model, f"{name}.conv{n}", f"{name}.bn{n}", relu=True) for n in numbers]
        own = block.downsample is not None
        shortcut = self._layer(model, f"{name}.downsample.0", f"{name}.downsample.1", relu=False) if own else None
        return Block(layers, shortcut)

    def inner(self, weight: Tensor) -> Tensor:
        """(…, C, H) columns in the order in which maps lie here: channels innermost."""
        if self.pooled:
            return weight
        side = round((weight.shape[-1] / self.channels) ** 0.5)
        return weight.unflatten(-1, (self.channels, side, side)).movedim(-3, -1).flatten(-3).contiguous()

    def layers(self) -> Iterable[Layer]:
        yield self.stem
        for block in self.blocks:
            yield from block.layers
            if block.shortcut is not None:
                yield block.shortcut

    def laid_out(self, one: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Tensors named as the model's parameters: all but the head's weights in a row, and these, in the order used here."""
        names = [name for layer in self.layers() for name in layer.names]
        parts = [one[n].permute(0, 2, 3, 1) if one[n].ndim == 4 else one[n] for n in names]
        return torch.cat([part.flatten() for part in [*parts, one["fc.bias"]]]), self.inner(one["fc.weight"])

    def aim(self, sent: Sequence[Mapping[str, Tensor]]) -> None:
        """Take other gradients as those received, in the place of the last ones: a recorded pass reads from there."""
        for kept, new in zip(self._received, self._laid_out(sent), strict=True):
            kept.copy_(new)

    def _laid_out(self, sent: Sequence[Mapping[str, Tensor]]) -> tuple[Tensor, ...]:
        """What is kept of K gradients: below the head, the head's, the factors they were multiplied by, and ‖ĝ‖²."""
        wide = self.targets.dtype
        largest = torch.stack([torch.stack([g.abs().max() for g in one.values()]).max() for one in sent])
        factors = 2.0 ** torch.log2(_LARGEST / largest).floor().to(wide)
        rows = [
            [(g * factor).to(self.dtype) for g in self.laid_out(one)] for one, factor in zip(sent, factors, strict=True)
        ]
        below, heads = (torch.stack(column) for column in zip(*rows, strict=True))
        squares = torch.stack([torch.stack([g.to(wide).square().sum() for g in one.values()]).sum() for one in sent])
        return below, heads, factors, squares, _wide(below).square().sum(1)

    @torch.no_grad()
    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """(K,) ⟨g, ĝ⟩ and (K,) ‖g‖²"""
        a = self.stem.forward(images.movedim(2, -1).to(self.dtype).contiguous(), self.kernels)
        pooled, self._places = _aten.max_pool2d_with_indices(_channels_first(a), [3, 3], [2, 2], [1, 1])
        a = _channels_last(pooled, a)
        for block in self.blocks:
            a = block.forward(a, self.kernels)
        self._top = a
        self.features = self._read(a)
        logits = _wide(self.features.flatten(0, 1) @ self.head.T).unflatten(0, a.shape[:2]) + self.head_bias
        self._P = logits.softmax(-1)
        self.G = (self._P - self.targets) * (ERRORS / a.shape[1])
        self._to_features = (self.G.to(self.dtype).flatten(0, 1) @ self.head).view_as(self.features)
        errors = self._unread(self._to_features)
        for block in reversed(self.blocks):
            errors = block.backward(errors, self.kernels)
        self.stem.backward(self._unpool(errors), self.kernels, first=True)
        parts = [part.to(self.dtype) for layer in self.layers() for part in layer.kept["gradients"]]
        self.flat = torch.cat([*parts, self.G.sum(1).to(self.dtype)], dim=1)
        return self._products()

    def _products(self) -> tuple[Tensor, Tensor]:
        F = _wide(self.features)
        self._through = self._by_sent(self.G.to(self.dtype))  # G ĝ
        self._below = self.kernels.sums(self.flat, self.sent)
        self._gram_G, self._gram_F = _gram(self.G), _gram(F)
        dot = self._below[0] + (_wide(self._through) * F).sum((1, 2))
        square = self._below[1] + (self._gram_G * self._gram_F).sum((1, 2))
        return dot / (ERRORS * self._sent_factor), square / ERRORS**2

    def _by_sent(self, rows: Tensor) -> Tensor:
        """(K, B, H) rows ĝ of the head."""
        if len(self.sent_head) == 1:
            return (rows.flatten(0, 1) @ self.sent_head[0]).unflatten(0, rows.shape[:2])
        return torch.bmm(rows, self.sent_head)

    @torch.no_grad()
    def pull(self, a: Tensor, b: Tensor) -> Tensor:
        """(K, B, 3, h, w) ∂/∂x ⟨v, g(x)⟩, v = a g + b ĝ; on the way v has length 1 below the head."""
        a, b = a / ERRORS, b / self._sent_factor
        dot, square = self._below
        own_square, sent_square = a.square() * square, b.square() * self._sent_below
        length = (own_square + 2 * a * b * dot + sent_square).clamp_min(1e-6 * (own_square + sent_square)).sqrt()
        length = length.clamp_min(_TINY)
        a, b = a / length, b / length
        parts = self.kernels.direction(self.flat, self.sent, a, b).split(
            [part.shape[1] for part in self._parts()], dim=1
        )
        own = {}
        for layer, three in zip(self.layers(), zip(*[iter(parts)] * 3, strict=False), strict=False):
            own[id(layer)] = [three[0], _wide(three[1]), _wide(three[2])]

        def v(layer: Layer) -> list[Tensor]:
            return own[id(layer)]

        dot = self._pool_along(self.stem.along(None, v(self.stem), self.kernels))
        for block in self.blocks:
            dot = block.along(dot, v, self.kernels)
        dots = self._read(dot)
        logits_dot = self._head_along(dots, a, b) + _wide(parts[-1])[:, None]
        second = self._P * (logits_dot - (self._P * logits_dot).sum(-1, keepdim=True)) * (ERRORS / dot.shape[1])
        errors = self._unread(self._head_second(second, a, b))
        for block in reversed(self.blocks):
            errors = block.second(errors, v, self.kernels)
        found = self.stem.second(self._unpool(errors), v(self.stem), self.kernels)
        return _wide(found).movedim(-1, 2) * (length / ERRORS).view(-1, 1, 1, 1, 1)

    def _parts(self) -> list[Tensor]:
        return [*(part for layer in self.layers() for part in layer.kept["gradients"]), self.G[:, 0]]

    def _head_along(self, dots: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """Ḟ Wᵀ + F vᵀ"""
        F = self.features
        plain = _wide(dots.flatten(0, 1) @ self.head.T).unflatten(0, dots.shape[:2])
        own = torch.bmm(self._gram_F, self.G)
        small = F / _FEATURES  # F ĝᵀ is as large as ‖f‖², more than float16 holds
        if len(self.sent_head) == 1:
            sent = (small.flatten(0, 1) @ self.sent_head[0].T).unflatten(0, F.shape[:2])
        else:
            sent = torch.bmm(small, self.sent_head.mT)
        return plain + a[:, None, None] * own + (_FEATURES * b)[:, None, None] * _wide(sent)

    def _head_second(self, second: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """ðL W + G v"""
        plain = (second.to(self.dtype).flatten(0, 1) @ self.head).view_as(self.features)
        own = torch.bmm(self._gram_G, _wide(self.features))
        return (_wide(plain) + a[:, None, None] * own + b[:, None, None] * _wide(self._through)).to(self.dtype)

    def _read(self, maps: Maps) -> Tensor:
        """(K, B, H) what the head reads."""
        return _wide(maps).mean((2, 3)).to(maps.dtype) if self.pooled else maps.flatten(2)

    def _unread(self, errors: Tensor) -> Maps:
        if not self.pooled:
            return errors.view_as(self._top)
        places = self._top.shape[2] * self._top.shape[3]
        return (errors / places)[:, :, None, None].expand_as(self._top).contiguous()

    def _unpool(self, errors: Maps) -> Maps:
        like = self.stem.kept["out"]
        found = _aten.max_pool2d_with_indices_backward(
            _channels_first(errors), _channels_first(like), [3, 3], [2, 2], [1, 1], [1, 1], False, self._places
        )
        return _channels_last(found, like)

    def _pool_along(self, dot: Maps) -> Maps:
        """Each place of the pool moves as the place that won it."""
        places = self._places.permute(0, 2, 3, 1)
        flat = dot.flatten(0, 1).flatten(1, 2)  # (K B, h w, channels)
        found = flat.gather(1, places.flatten(1, 2))
        return found.view(*dot.shape[:2], *places.shape[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--together", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    device = torch.device(options.device)
    model = resnet50(num_classes=1000).to(device).train()
    model.avgpool = nn.Identity()
    model.fc = nn.Linear(2048 * (options.side // 32) ** 2, 1000).to(device)
    sent = {name: torch.randn_like(p) for name, p in model.named_parameters()}
    B, K = options.batch, max(options.together)
    images = torch.rand(K, B, 3, options.side, options.side, device=device)
    targets = functional.one_hot(torch.randint(1000, (K, B), device=device), 1000).float()
    print(f"torch's own: {_milliseconds(lambda: _torch_pull(model, images[0], targets[0], sent), device, 3):.1f} ms")
    for dtype in options.dtypes:
        for K in options.together:
            passes = Passes(model, [sent] * K, targets[:K], getattr(torch, dtype), compiled=device.type == "cuda")
            start = time.perf_counter()

            def work(passes: Passes = passes, K: int = K) -> None:
                dot, square = passes(images[:K])
                passes.pull(dot / square, -torch.ones_like(dot))

            run = recorded(work, device)[0]
            ready = time.perf_counter() - start
            pace = _milliseconds(run, device, options.repeats)
            print(f"{dtype}, {K} together: {pace:.1f} ms, {pace / K:.2f} each; ready in {ready:.0f} s", flush=True)


def _torch_pull(model: nn.Module, images: Tensor, targets: Tensor, sent: dict[str, Tensor]) -> Tensor:
    """The derivative by the images of ⟨v, g⟩ with v as in `main`, by torch."""
    images = images.clone().requires_grad_()
    logits = model(images)
    G = (logits.softmax(-1) - targets) / len(images)
    found = torch.autograd.grad(logits, list(model.parameters()), G, create_graph=True)
    dot = sum((g.detach() * s).sum() for g, s in zip(found, sent.values(), strict=True))
    square = sum(g.detach().square().sum() for g in found)
    v = [dot / square * g.detach() - s for g, s in zip(found, sent.values(), strict=True)]
    (pulled,) = torch.autograd.grad(found, images, v)
    return pulled


def _milliseconds(work: Callable[[], Any], device: torch.device, repeats: int) -> float:
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - start) / repeats


if __name__ == "__main__":
    main()
