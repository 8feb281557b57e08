"""Convolutions and train-mode BatchNorm whose second derivative costs as much as their first.

torch writes the second derivative of a convolution's weight gradient as a convolution with the errors as its kernel, 56 × 56
entries large in ResNet-50, and that of BatchNorm as some twenty passes over the maps. Written out, both need nothing else than
what a first derivative needs. With x the inputs, G the errors, U and V pulled back to ∂x = conv*(G, W) and ∂W = corr(x, G):

    convolution    ∂/∂G = conv(U, W) + conv(x, V)              ∂/∂x = conv*(G, V)
    BatchNorm      y = γ x̂ + β,  x̂ = s (x − μ),  s = 1 / σ,  p = γ s,  ⟨·⟩ the mean over all places of a channel
                   ∂x = p (G − ⟨G⟩ − x̂ ⟨G x̂⟩);  with U, a, b pulled back to ∂x, ∂γ and ∂β, and κ = a − p ⟨U x̂⟩,
                   ∂/∂G = p (U − ⟨U⟩) + κ x̂ + b                h = κ G − p ⟨G x̂⟩ U
                   ∂/∂x = s (h − ⟨h⟩ − x̂ (⟨h x̂⟩ + ⟨U ∂x⟩))

Weights are constants where pictures are searched: no second derivative is given by them.

    python benchmarks/twice.py --device cuda      # against torch's own on ResNet-50 at 224², B = 8: difference and milliseconds
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torchvision.models import resnet50

from unsum.cuda_graph import recorded
from unsum.gradients import quiet

_aten = torch.ops.aten
_Maybe = Tensor | None


@contextmanager
def cheap_twice(model: nn.Module) -> Iterator[None]:
    """The model's convolutions and BatchNorm layers compute the same as ever, and are cheaper to differentiate twice."""
    layers: list[nn.Module] = []
    for layer in model.modules():
        if type(layer) is nn.Conv2d and layer.padding_mode == "zeros" and not isinstance(layer.padding, str):
            layer.forward = partial(_convolved, layer)  # type: ignore[method-assign]
        elif type(layer) is nn.BatchNorm2d and layer.training and not layer.track_running_stats:
            layer.forward = partial(_normed, layer)  # type: ignore[method-assign]
        else:
            continue
        layers.append(layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _convolved(layer: nn.Conv2d, x: Tensor) -> Tensor:
    settings = ([*layer.stride], [*layer.padding], [*layer.dilation], False, [0, 0], layer.groups)
    found: Tensor = _Convolution.apply(x, layer.weight, settings)
    return found if layer.bias is None else found + layer.bias.view(-1, 1, 1)


def _normed(layer: nn.BatchNorm2d, x: Tensor) -> Tensor:
    weight = x.new_ones(x.shape[1]) if layer.weight is None else layer.weight
    bias = torch.zeros_like(weight) if layer.bias is None else layer.bias
    found: Tensor = _Norm.apply(x, weight, bias, layer.eps)
    return found


def _conv(x: Tensor, weight: Tensor, settings: Any) -> Tensor:
    found: Tensor = _aten.convolution(x, weight, None, *settings)
    return found


def _conv_backward(errors: Tensor, x: Tensor, weight: Tensor, settings: Any, *wanted: bool) -> tuple[Tensor, Tensor]:
    by_input, by_weight, _ = _aten.convolution_backward(errors, x, weight, None, *settings, [*wanted, False])
    return by_input, by_weight


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, settings: Any) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.settings = settings
        return _conv(x, weight, settings)

    @staticmethod
    def backward(ctx: Any, errors: Tensor) -> tuple[_Maybe, ...]:
        wanted = ctx.needs_input_grad[:2]
        return *_ConvolutionBackward.apply(errors, *ctx.saved_tensors, ctx.settings, wanted), None


class _ConvolutionBackward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, errors: Tensor, x: Tensor, weight: Tensor, settings: Any, wanted: Any
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(errors, x, weight)
        ctx.settings = settings
        ctx.set_materialize_grads(False)
        return _conv_backward(errors, x, weight, settings, *wanted)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, U: _Maybe, V: _Maybe) -> tuple[_Maybe, ...]:
        errors, x, weight = ctx.saved_tensors
        by_errors, by_x = None, None
        if U is not None:
            by_errors = _conv(U, weight, ctx.settings)
        if V is not None:
            through = _conv(x, V, ctx.settings)
            by_errors = through if by_errors is None else by_errors.add_(through)
            if ctx.needs_input_grad[1]:
                by_x = _conv_backward(errors, x, V, ctx.settings, True, False)[0]
        return by_errors, by_x, None, None, None


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        found, mean, scale = torch.native_batch_norm(x, weight, bias, None, None, True, 0.0, eps)
        ctx.save_for_backward(x, weight, mean, scale)
        ctx.eps = eps
        return found

    @staticmethod
    def backward(ctx: Any, errors: Tensor) -> tuple[_Maybe, ...]:
        return *_NormBackward.apply(errors, *ctx.saved_tensors, ctx.eps), None


class _NormBackward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, errors: Tensor, x: Tensor, weight: Tensor, mean: Tensor, scale: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        found = _norm_backward(errors, x, weight, mean, scale, eps)
        ctx.save_for_backward(errors, x, weight, mean, scale, *found[1:])
        ctx.eps = eps
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, U: Tensor, a: Tensor, b: Tensor) -> tuple[_Maybe, ...]:
        G, x, weight, mean, scale, G_xhat, G_sum = ctx.saved_tensors
        by_errors, U_xhat, U_sum = _norm_backward(U, x, weight, mean, scale, ctx.eps)
        n, p = x.numel() / x.shape[1], weight * scale
        G_mean, Gx, U_mean, Ux = G_sum / n, G_xhat / n, U_sum / n, U_xhat / n
        inner = p * ((U * G).sum((0, 2, 3)) / n - U_mean * G_mean - Ux * Gx)  # ⟨U ∂x⟩
        kappa, alpha = a - p * Ux, -p * Gx
        slope = scale.square() * (alpha * Ux + kappa * Gx + inner)
        constant = slope * mean - scale * (alpha * U_mean + kappa * G_mean)
        by_x = torch.addcmul(_wide(constant), x, _wide(-slope))
        by_x.addcmul_(U, _wide(scale * alpha)).addcmul_(G, _wide(scale * kappa))
        by_errors = by_errors.addcmul_(x, _wide(a * scale)).add_(_wide(b - a * scale * mean))
        return by_errors, by_x, None, None, None, None


def _norm_backward(
    errors: Tensor, x: Tensor, weight: Tensor, mean: Tensor, scale: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """∂x, ∂γ and ∂β of one backward pass; ∂γ and ∂β are the sums of G x̂ and of G."""
    everything = [True, True, True]
    found: tuple[Tensor, Tensor, Tensor] = _aten.native_batch_norm_backward(
        errors, x, weight, None, None, mean, scale, True, eps, everything
    )
    return found


def _wide(channels: Tensor) -> Tensor:
    return channels.view(1, -1, 1, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    device = torch.device(options.device)
    model = resnet50(num_classes=1000).to(device, memory_format=torch.channels_last).train()
    images = torch.rand(options.batch, 3, options.side, options.side, device=device)
    images = images.contiguous(memory_format=torch.channels_last).requires_grad_()
    weights = [torch.randn_like(p) for p in model.parameters()]
    found = {}
    for name, layers in (("torch's own", nullcontext), ("cheap", partial(cheap_twice, model))):
        with quiet(model, [name for name, _ in model.named_parameters()]), layers(), torch.enable_grad():
            work = partial(_pulled, model, images, weights)
            work()
            plain = _milliseconds(work, device, options.repeats)
            found[name] = work().clone()
            print(f"{name}: {plain:.1f} ms a pass", flush=True)
            run = recorded(work, device)[0]
            print(f"{name}, recorded: {_milliseconds(run, device, options.repeats):.1f} ms", flush=True)
    one, other = found.values()
    print(f"relative difference {float((one - other).norm() / one.norm()):.1e}")


def _pulled(model: nn.Module, images: Tensor, weights: list[Tensor]) -> Tensor:
    """The derivative by the images of a weighted sum of all gradients."""
    logits = model(images)
    errors = logits.softmax(1) - 1 / logits.shape[1]
    gradients = torch.autograd.grad(logits, list(model.parameters()), errors, create_graph=True)
    (found,) = torch.autograd.grad(gradients, images, weights)
    return found


def _milliseconds(work: Callable[[], Any], device: torch.device, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - start) / repeats


if __name__ == "__main__":
    main()
