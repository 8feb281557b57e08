"""What pictures would make a client send, and how far that is from what it sent: shared by
refinement and by matching.

l2      ‖∇(x) − ĝ‖²
cosine  1 − ⟨∇(x), ĝ⟩ / (‖∇(x)‖ ‖ĝ‖)          over all tensors that take part
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

Distance = Literal["l2", "cosine"]
TINY = 1e-30  # keeps a gradient of zeros from dividing by zero, and float32 holds it
_NORMS = nn.modules.batchnorm._NormBase


@contextmanager
def quiet(model: nn.Module, names: Collection[str]) -> Iterator[None]:
    """Derivatives for exactly the parameters in `names`; afterwards flags and buffers are as
    before.

    Train-mode BatchNorm gets no running statistics to update meanwhile: that costs time at every
    step, and `vmap` cannot do it.
    """
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    tracking = [
        m for m in model.modules() if isinstance(m, _NORMS) and m.training and m.track_running_stats
    ]
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in names)
    for norm in tracking:
        norm.track_running_stats = False
    try:
        with same_buffers(model):
            yield
    finally:
        for norm in tracking:
            norm.track_running_stats = True
        for parameter, flag in flags:
            parameter.requires_grad_(flag)


@contextmanager
def same_buffers(model: nn.Module) -> Iterator[None]:
    """Put every buffer back afterwards: BatchNorm's statistics, say."""
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, earlier in buffers:
                buffer.copy_(earlier)


@contextmanager
def same_modes(model: nn.Module) -> Iterator[None]:
    """Put every module's mode, train or eval, back afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Eval mode inside the block, every module's own mode again after it."""
    with same_modes(model):
        model.eval()
        yield


@contextmanager
def inputs_of(layer: nn.Module) -> Iterator[list[Tensor]]:
    """What the layer reads, pass by pass."""
    seen: list[Tensor] = []
    with layer.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0])):
        yield seen


def main_output(output: Tensor | Sequence[Tensor]) -> Tensor:
    """The main output of models that return auxiliary ones beside it (GoogLeNet, Inception in train
    mode)."""
    return output if isinstance(output, Tensor) else output[0]


def with_features(
    forward: Callable[[Tensor], Tensor], head: nn.Module, images: Tensor
) -> tuple[Tensor, Tensor]:
    """((B, H) what reaches the head, (B, C) logits) of one pass of `forward`, both
    differentiable."""
    with inputs_of(head) as seen:
        logits = main_output(forward(images))
    return seen[-1].flatten(1), logits


def distance(kind: Distance, found: Sequence[Tensor], sent: Sequence[Tensor]) -> Tensor:
    """The distance between two lists of gradients; `l2` is not divided by anything."""
    if kind == "cosine":
        inner = torch.stack([(a * b).sum() for a, b in zip(found, sent, strict=True)]).sum()
        return 1 - inner / (norm(found) * norm(sent)).clamp_min(TINY)
    return torch.stack([(a - b).square().sum() for a, b in zip(found, sent, strict=True)]).sum()


def norm(tensors: Sequence[Tensor]) -> Tensor:
    """The length of all entries together."""
    return torch.stack([tensor.square().sum() for tensor in tensors]).sum().sqrt()


def variation(images: Tensor) -> Tensor:
    """Total variation: mean absolute difference of neighboring pixels, down and across."""
    return images.diff(dim=-2).abs().mean() + images.diff(dim=-1).abs().mean()
