"""One FedSGD step: the gradient of the mean cross-entropy over a batch, as the client would send it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from unsum.client.augment import as_probabilities
from unsum.errors import UnsumError
from unsum.update import Update


def capture(
    model: nn.Module,
    images: Tensor,
    targets: Tensor,
    *,
    train: bool = True,
    defenses: Iterable[Callable[[Update], Update]] | Callable[[Update], Update] = (),
) -> Update:
    """The update a client would send after one step on this batch.

    Args:
        model: left exactly as it was: mode, gradients and BatchNorm statistics are restored.
        images: (B, …) one batch of inputs.
        targets: (B,) class numbers or (B, C) rows of probabilities (smoothing, mixup).
        train: train mode (BatchNorm uses the batch's own statistics), as real clients do; False for eval mode.
        defenses: applied in order before the update leaves the client: `[Noise(0.01), Clip(4)]` or `Noise(0.01) | Clip(4)`.

    Returns:
        The `Update`: gradients of every trainable parameter and no word about the batch.
    """
    if len(images) == 0 or len(images) != len(targets):
        raise UnsumError(
            f"A batch needs as many targets as images; found {len(images)} images and {len(targets)} targets."
        )
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trainable:
        raise UnsumError(
            "The model has no trainable parameter; set requires_grad on the layers that the client trains."
        )
    with in_mode(model, train), torch.enable_grad():
        logits = _logits(model(images))
        rows = as_probabilities(targets, logits.shape[1]).to(logits)
        loss = nn.functional.cross_entropy(logits, rows)
        gradients = torch.autograd.grad(loss, list(trainable.values()), allow_unused=True)
    update = Update({name: g.detach() for name, g in zip(trainable, gradients, strict=True) if g is not None})
    for defense in [defenses] if callable(defenses) else defenses:
        update = defense(update)
    return update


def _logits(output: Tensor | tuple[Tensor, ...]) -> Tensor:
    """The main output of models that return auxiliary ones beside it (GoogLeNet, Inception in train mode)."""
    return output if isinstance(output, Tensor) else output[0]


@contextmanager
def in_mode(model: nn.Module, train: bool) -> Iterator[None]:
    """Run in the mode asked for, then put every module's mode and every buffer back."""
    modes = [(module, module.training) for module in model.modules()]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    model.train(train)
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
