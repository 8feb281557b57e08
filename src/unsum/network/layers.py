"""Whether a layer computes what its class promises: W x + b for an `nn.Linear`, and so on for every
kind that attacks rely on.

Attacks recognize a layer by its class and compute with its weights. Subclasses, hooks and
parametrizations may compute something
else, so a layer that could is compared on random inputs with a plain layer of its kind and its
weights: values and derivatives.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from unsum.gradients import same_buffers, same_modes
from unsum.running.sharing import once

_MAPS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS: dict[type[nn.Module], int] = {  # and the axes of a map that they read behind the channels
    nn.BatchNorm1d: 1, nn.BatchNorm2d: 2, nn.BatchNorm3d: 3, nn.InstanceNorm2d: 2, nn.GroupNorm: 2,
}  # fmt: skip
_ACTIVATIONS = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.SiLU, nn.GELU, nn.LeakyReLU, nn.ELU)
_KINDS: tuple[type[nn.Module], ...] = (nn.Linear, *_MAPS, *_NORMS, nn.LayerNorm, *_ACTIVATIONS)
# which change no value while dropout is off
_PASSING = (nn.Identity, nn.Dropout, nn.Flatten, nn.Unflatten)
_SAME = 1e-5  # relative difference of two float32 passes that compute the same
_ROUNDINGS = 64  # units in the last place that coarser types may differ by
_REACH = 6.0  # entries of a probe for activations: beyond it the usual ones are straight
# [of a probe's usual entries] sizes of the inputs that a layer is compared on. Clips, quantizers
# and dead zones of subclasses show on some of them alone. Chosen by: arbitrary budget, three
# passes.
_SIZES = (1.0, 1e-3, 1e3)
HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
    "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs", "_forward_hooks_always_called",
)  # fmt: skip


def departure(layer: nn.Module) -> str | None:
    """Why this layer does not compute what its class promises, in words that follow its name; None
    where it does.

    >>> departure(nn.Linear(3, 2)) is None
    True
    >>> class Halved(nn.Linear):
    ...     def forward(self, x):
    ...         return super().forward(x / 2)
    >>> departure(Halved(3, 2))
    'is a Halved, which does not compute what an nn.Linear computes'
    """
    kind = next(
        (kind for kind in _KINDS if isinstance(layer, kind)),
        _Transposed if is_transposed(layer) else None,
    )
    if isinstance(layer, _PASSING) and _altered(layer):
        return f"is a {type(layer).__name__} with hooks, which may change what passes"
    if kind is None or (type(layer) is kind and not _altered(layer)):
        return None
    return once("departure", (layer,), lambda: _departure(layer, kind), of_model=True)


def is_transposed(layer: nn.Module) -> bool:
    """Hugging Face's Conv1D: a linear layer that keeps its weight as (inputs, outputs)."""
    weight = getattr(layer, "weight", None)
    return type(layer).__name__ == "Conv1D" and isinstance(weight, Tensor) and weight.ndim == 2


class _Transposed(nn.Module):
    """What a Conv1D computes."""

    weight: Tensor
    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = x @ self.weight
        return product if self.bias is None else product + self.bias


def tolerance(dtype: torch.dtype) -> float:
    """The relative difference within which two passes of this precision agree."""
    return max(_SAME, _ROUNDINGS * torch.finfo(dtype).eps)


def _altered(layer: nn.Module) -> bool:
    """Whether something besides its class may have a part in what the layer computes."""
    hooked = any(getattr(layer, name, None) for name in HOOKS)
    overridden = any(
        callable(value) for name, value in vars(layer).items() if not name.startswith("__")
    )
    return (
        hooked or overridden or any(parameter._backward_hooks for parameter in layer.parameters())
    )


def _departure(layer: nn.Module, kind: type[nn.Module]) -> str | None:
    own = type(layer).__name__
    if not issubclass(kind, _ACTIVATIONS) and "weight" not in layer._parameters:
        return (
            f"computes its weight anew in every pass ({own}), as weight_norm and parametrizations "
            "do"
        )
    altered = " with hooks" if type(layer) is kind else ""
    if _computes_alike(layer, _plain(layer, kind), kind):
        return None
    return (
        f"is a {own}{altered}, which does not compute what an nn.{kind.__name__.lstrip('_')} "
        "computes"
    )


def _plain(layer: nn.Module, kind: type[nn.Module]) -> nn.Module:
    """A layer of just that class, with the same weights, settings and buffers."""
    plain = kind.__new__(kind)
    kept = {
        name: value
        for name, value in vars(layer).items()
        if name not in HOOKS and not callable(value)
    }
    vars(plain).update(kept | {name: OrderedDict() for name in HOOKS})
    weights = {
        name: None if p is None else nn.Parameter(p.detach(), p.requires_grad)
        for name, p in layer._parameters.items()
    }
    vars(plain)["_parameters"] = weights  # without the hooks of the parameters themselves
    return plain


def _computes_alike(layer: nn.Module, plain: nn.Module, kind: type[nn.Module]) -> bool:
    """In both modes, since the client's need not be the one that the model was handed over in."""
    x = _probe(layer, kind)
    try:
        with same_buffers(layer), same_modes(layer), torch.random.fork_rng(devices=[]):
            for training, size in itertools.product((False, True), _SIZES):
                passed = []
                for one in (layer.train(training), plain.train(training)):
                    torch.manual_seed(0)
                    passed.append(_passed(one, size * x))
                if not agree(*passed, within=tolerance(x.dtype)):
                    return False
    except Exception:  # the user's own forward: what does not take a plain layer's input is none
        return False
    return True


def _passed(layer: nn.Module, x: Tensor) -> list[Tensor]:
    """What a layer writes, and the derivatives of a random sum of that by its input and by its
    parameters.
    """
    x = x.clone().requires_grad_()
    own = {
        name: p for name, p in layer._parameters.items() if p is not None and p.is_floating_point()
    }
    flags = [(p, p.requires_grad) for p in own.values()]
    try:
        with torch.enable_grad():
            for p in own.values():
                p.requires_grad_()
            written = layer(x)
            weights = torch.randn(written.shape, generator=torch.Generator().manual_seed(1)).to(
                written
            )
            found = torch.autograd.grad((written * weights).sum(), [x, *own.values()])
    finally:
        for p, flag in flags:
            p.requires_grad_(flag)
    return [written.detach(), *found]


def agree(one: Sequence[Tensor], other: Sequence[Tensor], *, within: float) -> bool:
    """Whether two lists of tensors are the same, each up to a relative difference; not a number
    agrees with nothing.
    """
    return len(one) == len(other) and all(
        a.shape == b.shape and float((a - b).double().norm()) <= within * float(b.double().norm())
        for a, b in zip(one, other, strict=True)
    )


def _probe(layer: nn.Module, kind: type[nn.Module]) -> Tensor:
    """Random inputs of a shape that a layer of this kind takes."""
    generator = torch.Generator().manual_seed(0)
    like = next((p for p in layer._parameters.values() if p is not None), torch.zeros(0))
    shape: tuple[int, ...] = (64,)
    if isinstance(layer, nn.Linear):
        shape = (3, layer.in_features)
    elif kind is _Transposed:
        shape = (3, len(layer.weight))  # type: ignore[arg-type]
    elif isinstance(layer, _MAPS):
        reaches = (d * (k - 1) + 1 for d, k in zip(layer.dilation, layer.kernel_size, strict=True))
        shape = (2, layer.in_channels, *(reach + 3 for reach in reaches))
    elif kind in _NORMS:
        channels = layer.num_channels if isinstance(layer, nn.GroupNorm) else layer.num_features
        assert isinstance(channels, int)
        shape = (2, channels, *(3,) * _NORMS[kind])
    elif isinstance(layer, nn.LayerNorm):
        shape = (2, layer.normalized_shape[0], *layer.normalized_shape)
    else:
        return torch.linspace(-_REACH, _REACH, shape[0])
    return torch.randn(shape, generator=generator).to(like)
