"""One step of a client, in three stages, so that defenses can work where they belong.

    batch     images and targets are changed before they are used (label smoothing, mixup)
    gradient  the gradient is computed in another way than by the mean loss (DP-SGD)
    update    what was computed is changed, with the model and the batch at hand (Soteria) or
              without (noise, clipping, …)

Every defense is asked twice: `before` the gradient exists and `after`. A plain function Update →
Update is of the last stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from unsum.batch_statistics import BatchStatistics, read_statistics
from unsum.client.augment import as_probabilities, target_rows
from unsum.errors import UnsumError
from unsum.gradients import main_output, same_buffers, same_modes
from unsum.losses import Loss, Softmax, declared
from unsum.update import Update

if TYPE_CHECKING:
    from typing_extensions import TypeIs

Gradients = dict[str, Tensor]


class Stage(IntEnum):
    """What a defense changes; later stages cannot come before earlier ones."""

    BATCH = 0
    GRADIENT = 1
    UPDATE = 2


@dataclass(frozen=True)
class ClientStep:
    """What the client has at hand; `gradient(step)` computes what it will send."""

    model: nn.Module
    images: Tensor
    targets: Tensor
    train: bool
    gradient: Callable[[ClientStep], Gradients]
    loss: Loss | None = None  # None is cross-entropy

    @property
    def classes(self) -> int:
        """The number of classes, from the targets if they are rows, else from the model's output
        for one image."""
        if self.targets.ndim == 2:
            return self.targets.shape[1]
        with in_mode(self.model, False), torch.no_grad():
            return main_output(self.model(self.images[:1])).shape[1]


@runtime_checkable
class InsideClient(Protocol):
    """What `capture` asks of a defense that is more than a function from Update to Update."""

    @property
    def stage(self) -> Stage: ...

    def parts(self) -> Sequence[InsideClient]: ...

    def before(self, step: ClientStep) -> ClientStep: ...

    def after(self, update: Update, step: ClientStep) -> Update: ...


_KINDS: dict[type, bool] = {}


def is_inside(part: object) -> TypeIs[InsideClient]:
    """`isinstance` of the protocol, looked up once for each class: of a small client it would take
    a tenth of the time."""
    kind = type(part)
    if kind not in _KINDS:
        _KINDS[kind] = isinstance(part, InsideClient)
    return _KINDS[kind]


AnyDefense = InsideClient | Callable[[Update], Update]
Defenses = Iterable[AnyDefense] | AnyDefense


def ordered(defenses: Defenses) -> list[AnyDefense]:
    """The single defenses in order of application; refuses an order that the client could not
    keep."""
    given = [defenses] if callable(defenses) or is_inside(defenses) else defenses
    several = (one.parts() if is_inside(one) else (one,) for one in given)
    parts = [part for some in several for part in some]
    for first, second in pairwise(parts):
        one, two = _stage(first), _stage(second)
        if two < one:
            raise UnsumError(
                f"{second!r} changes the {two.name.lower()} and cannot come after {first!r}, which "
                f"changes the {one.name.lower()}; name {second!r} first."
            )
        if one == two == Stage.GRADIENT:
            raise UnsumError(
                f"{first!r} and {second!r} both decide how the gradient is computed; choose one of "
                "them."
            )
    return parts


def before(parts: Iterable[AnyDefense], step: ClientStep) -> ClientStep:
    """The step as the defenses want it computed."""
    for part in parts:
        if is_inside(part):
            step = part.before(step)
    return step


def after(parts: Iterable[AnyDefense], update: Update, step: ClientStep) -> Update:
    """The update as it leaves the client."""
    for part in parts:
        update = part.after(update, step) if is_inside(part) else part(update)
    return update


def mean_loss_gradient(step: ClientStep) -> Gradients:
    """∇ (1/B) Σ_i loss_i of every trainable parameter that the loss depends on."""
    trainable = {name: p for name, p in step.model.named_parameters() if p.requires_grad}
    with in_mode(step.model, step.train), torch.enable_grad():
        try:
            logits = main_output(step.model(step.images))
        except (RuntimeError, ValueError) as error:
            _explain(step, error)
            raise
        loss = mean_loss(step.loss, logits, loss_rows(step.loss, step.targets, logits.shape[1]))
        gradients = torch.autograd.grad(loss, list(trainable.values()), allow_unused=True)
    return {name: g.detach() for name, g in zip(trainable, gradients, strict=True) if g is not None}


def _explain(step: ClientStep, error: Exception) -> None:
    """One sentence for what a model cannot do with these inputs, where that is known."""
    like = next((p for p in step.model.parameters() if p.is_floating_point()), None)
    if like is not None and step.images.is_floating_point() and like.dtype != step.images.dtype:
        raise UnsumError(
            f"The model computes in {_precision(like)} and its inputs are "
            f"{_precision(step.images)}; bring both to one precision: model.float(), say."
        ) from error
    if "more than 1 value per channel" in str(error):
        raise UnsumError(
            "BatchNorm in train mode needs more than one value of each channel; take a batch of "
            "two samples or more, or eval mode (train=False, --eval-mode)."
        ) from error


def _precision(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def sent_statistics(step: ClientStep) -> BatchStatistics:
    """What the client's buffers say of this batch, if it sends them: in a pass of its own, since
    gradients put buffers back.

    Random numbers are put back as well, so that dropout draws the same ones for the gradient.
    """
    before = {name: buffer.detach().clone() for name, buffer in step.model.named_buffers()}
    with torch.random.fork_rng(), in_mode(step.model, step.train), torch.no_grad():
        step.model(step.images)
        return read_statistics(step.model, before, dict(step.model.named_buffers()))


def loss_rows(loss: Loss | None, targets: Tensor, classes: int) -> Tensor:
    """(B, C) targets as the loss takes them: probabilities under a softmax, else whatever numbers
    they are."""
    under_softmax = loss is None or isinstance(loss, Softmax)
    return as_probabilities(targets, classes) if under_softmax else target_rows(targets, classes)


def mean_loss(loss: Loss | None, logits: Tensor, rows: Tensor) -> Tensor:
    """The mean loss; of one other than cross-entropy, something with the same gradient, which is
    all that a `Loss` tells."""
    rows = rows.to(logits)
    if loss is None:
        return nn.functional.cross_entropy(logits, rows)
    return (logits * loss.gradient(logits.detach(), rows)).sum() / loss.divisor(rows)


def first_step(
    model: nn.Module, images: Tensor, targets: Tensor, train: bool, loss: str | Loss | None = None
) -> ClientStep:
    """The undefended step on this batch, or one sentence why there is none."""
    if len(images) == 0 or len(images) != len(targets):
        raise UnsumError(
            f"A batch needs as many targets as images; found {len(images)} images and "
            f"{len(targets)} targets."
        )
    if not any(p.requires_grad for p in model.parameters()):
        raise UnsumError(
            "The model has no trainable parameter; set requires_grad on the layers that the client "
            "trains."
        )
    return ClientStep(model, images, targets, train, mean_loss_gradient, declared(loss))


@contextmanager
def in_mode(model: nn.Module, train: bool) -> Iterator[None]:
    """Run in the mode asked for, then put every module's mode and every buffer back."""
    with same_modes(model), same_buffers(model):
        model.train(train)
        yield


def _stage(defense: AnyDefense) -> Stage:
    return defense.stage if is_inside(defense) else Stage.UPDATE
