"""One FedSGD step: the gradient of the mean loss over a batch, as the client would send it."""

from __future__ import annotations

from torch import Tensor, nn

from unsum.batch_statistics import BatchStatistics
from unsum.client.step import (
    ClientStep,
    Defenses,
    after,
    before,
    first_step,
    in_mode,
    ordered,
    sent_statistics,
)
from unsum.losses import Loss
from unsum.update import Update

__all__ = ["capture", "capture_trained", "in_mode"]


def capture(
    model: nn.Module,
    images: Tensor,
    targets: Tensor,
    *,
    train: bool = True,
    defenses: Defenses = (),
    loss: str | Loss | None = None,
    buffers: bool = False,
) -> Update:
    """The update a client would send after one step on this batch.

    The gradient of the mean loss over the batch: of cross-entropy, (1/B) Σ_i −y_i · log
    softmax(model(x_i)).

    Args:
        model: left exactly as it was: mode, gradients and BatchNorm statistics are restored.
        images: (B, …) one batch of inputs.
        targets: (B,) class numbers or (B, C) rows: of probabilities (smoothing, mixup) or, with
            `bce`, of any labels; for a model of one output, (B,) numbers.
        train: train mode (BatchNorm uses the batch's own statistics), as real clients do; False for
            eval mode.
        defenses: applied in order before the update leaves the client: `[Noise(0.01), Clip(4)]` or
            `Noise(0.01) | Clip(4)`. Those that change the batch (`SmoothLabels`, `Mixup`) come
            first, then at most one that computes the gradient in its own way (`DPSGD`), then those
            that change the update; any function from Update to Update is of the last kind.
        loss: what the client minimizes, if not cross-entropy: `bce`, `mse`, `focal:GAMMA`, or an
            object of `unsum.losses`.
        buffers: the client sends BatchNorm's running statistics along, as a whole state dict has
            them; `update.statistics` is what the server reads off them.

    Returns:
        The `Update`: gradients of every trainable parameter and no other word about the batch.

    Examples:
        >>> import torch, unsum
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Linear(8, 6)
        >>> inputs, labels = torch.randn(3, 8), torch.tensor([4, 4, 1])
        >>> update = unsum.capture(model, inputs, labels)
        >>> P, Y = model(inputs).softmax(1), torch.nn.functional.one_hot(labels, 6)
        >>> torch.allclose(  # ∇W = Gᵀ F
        ...     update.gradients["weight"], ((P - Y) / 3).T @ inputs, atol=1e-6
        ... )
        True
    """
    return capture_trained(
        first_step(model, images, targets, train, loss), defenses, buffers=buffers
    )[0]


def capture_trained(
    step: ClientStep, defenses: Defenses, *, buffers: bool = False
) -> tuple[Update, Tensor, Tensor]:
    """`capture`, with the images and targets that the client trained on: other ones where a defense
    changes the batch."""
    parts = ordered(defenses)
    step = before(parts, step)
    sent = sent_statistics(step) if buffers else BatchStatistics()
    return (
        after(parts, Update(step.gradient(step), statistics=sent), step),
        step.images,
        step.targets,
    )
