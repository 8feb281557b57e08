"""Several local steps before anything is sent (FedAvg): the update is how far the weights moved.

v_t = μ v_{t−1} + g(w_t, batch t) + λ w_t,   w_{t+1} = w_t − η v_t,   delta = w_T − w_0
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from unsum.client.step import ClientStep, Defenses, after, before, first_step, ordered
from unsum.errors import UnsumError
from unsum.local_training import LocalTraining, mini_batches
from unsum.losses import Loss
from unsum.update import Update

Watch = Callable[[int, ClientStep], None]


def capture_local(
    model: nn.Module,
    images: Tensor,
    targets: Tensor,
    *,
    learning_rate: float,
    local_steps: int | None = None,
    epochs: int = 1,
    batch_size: int | None = None,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    rate_known: bool = True,
    training_known: bool = False,
    train: bool = True,
    defenses: Defenses = (),
    loss: str | Loss | None = None,
) -> Update:
    """The update of a client that trains by SGD on its own data, then sends the change of its
    weights.

    θ_{t+1} = θ_t − η v_t with v_t = μ v_{t−1} + ∇loss(θ_t) + λ θ_t, and θ_T − θ_0 is sent.

    Args:
        model: what the server sent; left exactly as it was.
        images, targets: (N, …), and (N,) or (N, C): the client's samples, in the order of every
            epoch (shuffle them before).
        learning_rate, momentum, weight_decay: as torch.optim.SGD has them.
        local_steps, epochs: how many optimizer steps, those of all epochs together, and how often
            all samples are gone through.
        batch_size: samples of one step, in the place of `local_steps`; by default all samples are
            one batch.
        rate_known: whether the server knows the learning rate; if not, the gradients' scale is
            open.
        training_known: whether the server knows how the client trains, all of the above but the
            batch size: the update then says so (`training`), and `local-steps` can follow the
            steps.
        train: BatchNorm's mode, as for `capture`; its running statistics are not sent.
        defenses: as for `capture`. Those on the batch or on how a gradient is computed act in every
            step, those on the update once, at the end, on delta / −learning_rate (on −delta where
            the rate is unknown).
        loss: as for `capture`.

    Returns:
        A weight delta as `Update.from_delta` holds it: with the rate known, `gradients` is Σ_t v_t;
        with `training_known`, as `Update.of_training` does.

    Examples:
        >>> import torch, unsum
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Linear(8, 6)
        >>> inputs, labels = torch.randn(3, 8), torch.tensor([4, 4, 1])
        >>> update = unsum.capture_local(  # three steps
        ...     model, inputs, labels, learning_rate=0.1, batch_size=1
        ... )
        >>> update.kind, update.learning_rate
        ('delta', 0.1)
    """
    count = len(images)
    if not learning_rate > 0 or epochs < 1 or (batch_size is not None and batch_size < 1):
        raise UnsumError(
            "Local training needs a positive learning rate, at least one epoch and batches of at "
            f"least one sample; found {learning_rate}, {epochs} and {batch_size}."
        )
    if batch_size is not None and local_steps is not None:
        raise UnsumError(
            "The samples are split by local_steps or by batch_size; give one of the two."
        )
    size = batch_size or count
    steps = local_steps or epochs * max(1, -(-count // size))
    training = LocalTraining(learning_rate, steps, batch_size, weight_decay, momentum, epochs)
    step = first_step(model, images, targets, train, loss)
    return train_locally(
        step, training, defenses, rate_known=rate_known, training_known=training_known
    )


def train_locally(
    whole: ClientStep,
    training: LocalTraining,
    defenses: Defenses,
    *,
    rate_known: bool = True,
    training_known: bool = True,
    watch: Watch = lambda _number, _step: None,
) -> Update:
    """`capture_local`, by what is declared; `watch(number, step)` sees every step, with the weights
    as it found them."""
    if training.learning_rate is None:
        raise UnsumError(
            "A client that trains needs a learning rate; give LocalTraining(learning_rate=…)."
        )
    parts, sizes = ordered(defenses), list(_sizes(len(whole.images), training))
    trained = copy.deepcopy(whole.model)
    weights = dict(trained.named_parameters())
    start = {name: p.detach().clone() for name, p in weights.items()}
    moved: dict[str, Tensor] = {}
    optimizer = torch.optim.SGD(
        trained.parameters(),
        training.learning_rate,
        training.momentum,
        weight_decay=training.weight_decay,
    )
    batches = list(zip(whole.images.split(sizes), whole.targets.split(sizes), strict=True))
    for number, (batch, rows) in enumerate(batches * training.epochs):
        step = before(parts, replace(whole, model=trained, images=batch, targets=rows))
        gradients = step.gradient(step)
        watch(number, step)
        moved |= gradients
        for name, weight in weights.items():
            weight.grad = gradients.get(name)
        optimizer.step()
    delta = {name: weights[name].detach() - start[name] for name in moved}
    rate = training.learning_rate if rate_known else None
    update = after(parts, Update.from_delta(delta, rate), whole)
    disclosed = replace(training, learning_rate=rate, batch_size=None)
    return update.of_training(disclosed, start) if training_known else update


def _sizes(samples: int, training: LocalTraining) -> tuple[int, ...]:
    """Of one epoch's mini-batches."""
    steps = (training.steps or 1) // training.epochs
    if steps > samples:
        raise UnsumError(
            f"{steps} steps in an epoch of {samples} samples leave some without any; take fewer "
            "steps."
        )
    return mini_batches(samples, steps, training.batch_size)
