"""Several local steps before anything is sent (FedAvg): the update is how far the weights moved.

w_{t+1} = w_t − η g(w_t, batch t),   delta = w_T − w_0 = −η Σ_t g(w_t, batch t)
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn

from unsum.client.step import AnyDefense, after, before, first_step, ordered
from unsum.errors import UnsumError
from unsum.update import Update


def capture_local(
    model: nn.Module,
    images: Tensor,
    targets: Tensor,
    *,
    learning_rate: float,
    epochs: int = 1,
    batch_size: int | None = None,
    rate_known: bool = True,
    train: bool = True,
    defenses: Iterable[AnyDefense] | AnyDefense = (),
) -> Update:
    """The update of a client that trains by plain SGD on its own data, then sends the change of its weights.

    Args:
        model: what the server sent; left exactly as it was.
        images, targets: all of the client's samples, taken in this order in every epoch (shuffle them before).
        learning_rate, epochs, batch_size: of the local training; by default the samples are one batch.
        rate_known: whether the server knows the learning rate; if not, the gradients' scale is open.
        train: BatchNorm's mode, as for `capture`; its running statistics are not sent.
        defenses: as for `capture`. Those on the batch or on how a gradient is computed act in every step, those on the
            update once, at the end, on delta / −learning_rate (on −delta where the rate is unknown).

    Returns:
        A weight delta as `Update.from_delta` holds it: with the rate known, `gradients` is Σ_t g(w_t, batch t).

    Examples:
        >>> import torch, unsum
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Linear(8, 6)
        >>> inputs, labels = torch.randn(3, 8), torch.tensor([4, 4, 1])
        >>> update = unsum.capture_local(model, inputs, labels, learning_rate=0.1, batch_size=1)  # three steps
        >>> update.kind, update.learning_rate
        ('delta', 0.1)
    """
    size = len(images) if batch_size is None else batch_size
    if not learning_rate > 0 or epochs < 1 or size < 1:
        raise UnsumError(
            "Local training needs a positive learning rate, at least one epoch and batches of at least one sample; "
            f"found {learning_rate}, {epochs} and {size}."
        )
    whole = first_step(model, images, targets, train)
    parts = ordered(defenses)
    trained = copy.deepcopy(model)
    weights = dict(trained.named_parameters())
    start = {name: p.detach().clone() for name, p in weights.items()}
    moved: set[str] = set()
    for _ in range(epochs):
        for batch, rows in zip(images.split(size), targets.split(size), strict=True):
            step = before(parts, replace(whole, model=trained, images=batch, targets=rows))
            gradients = step.gradient(step)
            moved |= gradients.keys()
            with torch.no_grad():
                for name, gradient in gradients.items():
                    weights[name].sub_(gradient, alpha=learning_rate)
    delta = {name: weights[name].detach() - start[name] for name in start if name in moved}
    update = Update.from_delta(delta, learning_rate if rate_known else None)
    return after(parts, update, whole)
