"""The contrast of a batch that BatchNorm normalizes: the first layer's gradients tell it.

Behind a convolution z = W ∗ x, BatchNorm in train mode writes x̂ = (z − μ)/√(σ² + ε). Longer
weights of a channel change x̂ through ε alone, so that the gradient is nearly at right angles to
them, and by how much it is not says what σ² is:

    ⟨W, ∇W⟩ = γ ∇γ · ε / (σ² + ε)            for every channel

The left side is a small difference of large numbers. Rounding leaves a hundredth of a channel's σ²,
and a thousandth or so of the scale of the pictures, which all channels share. How much it leaves
differs from channel to channel a hundredfold, and the pictures themselves tell: sent again in
float32, in other orders and a rounding apart, they miss the equation by as much as the client did.
Each channel counts by that. How far the channels scatter about the scale says how well it is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from unsum.gradients import same_buffers
from unsum.invert.pixels.gradient import computing
from unsum.update import Update

_SCALES = 20_001  # tried, from a tenth to ten times: steps of 2e-4, below what rounding leaves
_AGAIN = 8  # times that pictures are sent again, for the rounding of each channel
# relative, of pictures that are sent again: enough for another rounding, too little for another
# gradient
_APART = 1e-6
_DRAWN = 2.0  # sendings that the usual rounding counts for
_UNLIKE = 3.0  # times more left at the best scale than without any: then nothing is told


@dataclass(frozen=True)
class Contrast:
    """What to multiply pictures by, and the standard error of that factor, relative."""

    factor: float
    error: float


def told_scale(
    model: nn.Module, update: Update, pictures: Tensor, targets: Tensor
) -> Contrast | None:
    """The factor for the deviations that the first layer's gradients tell; None where they do not.

    `targets` (B, C) are the pictures' labels, for what rounding does to a gradient.
    """
    found = _first_layer(model, pictures)
    if found is None:
        return None
    convolution, norm, z = found
    names = f"{convolution}.weight", f"{norm}.weight"
    if not all(name in update.gradients for name in names):
        return None
    bn = model.get_submodule(norm)
    assert isinstance(bn, _BatchNorm)
    W, gamma = (model.get_parameter(name).detach().double() for name in names)
    variances = z.double().var([0, *range(2, z.ndim)], correction=0)

    def sides(gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """⟨W, ∇W⟩ and γ ∇γ ε of every channel."""
        grad_W, grad_gamma = (gradient.to(W) for gradient in gradients)
        return (W * grad_W).flatten(1).sum(1), gamma * grad_gamma * bn.eps

    inner, along = sides([update.gradients[name] for name in names])
    missed = []
    for gradients in _sent_again(model, names, pictures, targets):
        left, right = sides(gradients)
        missed.append(left - right / (variances + bn.eps))
    rounding = _spread(torch.stack(missed), W, update.gradients[names[0]].to(W))  # but for a factor
    squares = torch.logspace(-2, 2, _SCALES, dtype=torch.float64, device=W.device)[:, None]
    left = ((inner - along / (squares * variances + bn.eps)) / rounding).square().sum(1)
    best = int(left.argmin())
    if best in (0, _SCALES - 1) or _UNLIKE * float(left[best]) > float(
        (inner / rounding).square().sum()
    ):
        return None
    at = squares[best, 0] * variances
    off = (inner - along / (at + bn.eps)) / rounding
    slope = 2 * along * at / (at + bn.eps).square() / rounding  # by the logarithm of the factor
    between = -(slope * off).sum() / slope.square().sum().clamp_min(1e-300)  # the factors tried
    return Contrast(float(squares[best, 0].sqrt() * between.exp()), _standard_error(off, slope))


def _sent_again(
    model: nn.Module, names: Sequence[str], pictures: Tensor, targets: Tensor
) -> Iterator[Sequence[Tensor]]:
    """The named gradients of the sum of losses in float32, a few times: each rounds otherwise."""
    generator = torch.Generator().manual_seed(0)
    with computing(model, torch.float32, list(names)) as gradient:
        for _ in range(_AGAIN):
            order = torch.randperm(len(pictures), generator=generator).to(pictures.device)
            off = _APART * torch.randn(pictures.shape, generator=generator).to(pictures)
            yield gradient(
                (pictures * (1 + off))[order].float(), targets.to(pictures)[order].float(), 1.0
            )


def _spread(missed: Tensor, W: Tensor, grad_W: Tensor) -> Tensor:
    """(O,) the deviation of each channel's (K, O) misses, drawn a little towards what channels of
    its size have: K are few."""
    size = (W.flatten(1).norm(dim=1) * grad_W.flatten(1).norm(dim=1)).clamp_min(1e-300)
    usual = size.square() * (missed / size).square().mean(0).median()
    return (
        ((missed.square().sum(0) + _DRAWN * usual) / (len(missed) + _DRAWN))
        .sqrt()
        .clamp_min(1e-300)
    )


def _standard_error(off: Tensor, slope: Tensor) -> float:
    """Of a number that channels with these slopes tell, from how far they are off; the larger of
    two ways to reckon.

    One takes all channels to be equally noisy, the other each to be as noisy as it is off.
    """
    known = slope.square().sum().clamp_min(1e-300)
    alike = (off.square().sum() / max(len(off) - 1, 1) / known).sqrt()
    own = (slope * off).square().sum().sqrt() / known
    return float(torch.maximum(alike, own))


def _first_layer(model: nn.Module, pictures: Tensor) -> tuple[str, str, Tensor] | None:
    """Names of the convolution that reads the pictures and of the train-mode BatchNorm that reads
    what it writes, and that."""
    wrote: dict[str, Tensor] = {}
    pairs: list[tuple[str, str, Tensor]] = []

    def convolved(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if inputs[0] is pictures:
                wrote[name] = output

        return hook

    def normalized(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            pairs.extend((first, name, z) for first, z in wrote.items() if z is inputs[0])

        return hook

    hooks = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d) and module.bias is None:
            hooks.append(module.register_forward_hook(convolved(name)))
        if isinstance(module, _BatchNorm) and module.training and module.affine:
            hooks.append(module.register_forward_pre_hook(normalized(name)))
    try:
        with torch.no_grad(), same_buffers(model):
            model(pictures)
    finally:
        for hook in hooks:
            hook.remove()
    return pairs[0] if len(pairs) == 1 else None
