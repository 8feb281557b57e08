"""What the engine takes: a problem, with all that is known or was found about the batch, and a
plan, which a method declares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from unsum.errors import UnsumError
from unsum.gradients import main_output, quiet
from unsum.head import find_head
from unsum.leak import Leak
from unsum.match.objective import Objective
from unsum.match.optimizers import Optimizer
from unsum.match.protocol import Protocol
from unsum.match.regularizers import Regularizer
from unsum.match.unknown import Pixels, Unknown
from unsum.models.accepted_size import refusal
from unsum.running.progress import SILENT, Progress
from unsum.update import Reduction, Update

_DROPOUTS = nn.modules.dropout._DropoutNd
# Sides of pictures, all tried: two that fit are no answer.
_USUAL = (28, 32, 48, 64, 84, 96, 112, 128, 160, 192, 224, 256, 299, 336, 384)


@dataclass(frozen=True)
class Problem:
    """`targets` is None where labels are unknown and the method optimizes them along with the
    pictures.

    With a `protocol` the network is no classifier: it has no head, and its targets are of any kind.
    """

    method: str
    model: nn.Module
    head: nn.Module | None
    head_names: tuple[str, ...]
    sent: dict[str, Tensor]
    reduction: Reduction
    batch_size: int
    classes: int
    shape: tuple[int, int, int]
    targets: Tensor | None = None  # (B, C), or as the protocol has them
    separated: Leak | None = None  # where a separator ran first
    auxiliary: tuple[Tensor, Tensor] | None = None  # labeled samples of the attacker's own
    seed: int = 0
    progress: Progress = SILENT
    checkpoint: Path | None = None
    checkpoint_seconds: float = 20.0
    preview: Path | None = None
    protocol: Protocol | None = None

    @property
    def zero(self) -> Tensor:
        return next(iter(self.sent.values())).new_zeros(())

    @property
    def device(self) -> torch.device:
        return self.zero.device

    def loss_gradient(self, logits: Tensor, targets: Tensor) -> Tensor:
        """∂ cross-entropy / ∂ logits = (softmax − targets) / B, which takes fewer passes to
        differentiate than the loss."""
        apart = (
            logits.float().softmax(-1) - targets
            if logits.dtype == torch.bfloat16
            else logits.softmax(-1) - targets
        )
        return (apart / len(targets) if self.reduction == "mean" else apart).to(logits.dtype)


def pose(
    method: str,
    model: nn.Module,
    update: Update,
    *,
    batch_size: int,
    shape: tuple[int, int, int],
    targets: Tensor | None,
    separated: Leak | None,
) -> Problem:
    """The problem, checked: what cannot be matched is refused in one sentence before anything is
    optimized."""
    check_masks(method, model, update)
    name, head = find_head(model)
    heads = tuple(f"{name}.{part}" if name else part for part in ("weight", "bias"))
    first = next(model.parameters())
    scale = 1.0 if separated is None else separated.scale
    sent = {name: gradient.detach().to(first) for name, gradient in update.gradients.items()}
    if scale != 1:  # no copy where none is needed: gradients can be as large as the model
        sent = {name: gradient / scale for name, gradient in sent.items()}
    if all(name in heads for name in sent) and any(
        name not in heads for name, _ in model.named_parameters()
    ):
        raise UnsumError(
            f"The update holds no gradient but the head's, so {method!r} has nothing to match; use "
            "'exact', which needs no other."
        )
    rows = None if targets is None else targets.detach().to(first)
    classes = head.out_features
    problem = Problem(
        method,
        model,
        head,
        heads,
        sent,
        update.reduction,
        batch_size,
        classes,
        shape,
        rows,
        separated,
    )
    reached = _reached(problem)
    return replace(problem, sent={name: g for name, g in sent.items() if name in reached})


def pose_any(
    method: str,
    model: nn.Module,
    update: Update,
    protocol: Protocol,
    batch_size: int,
    targets: Tensor | None,
) -> Problem:
    """The problem of a network that is no classifier, whose targets are granted or None."""
    check_masks(method, model, update)
    first = next(model.parameters())
    sent = {name: gradient.detach().to(first) for name, gradient in update.gradients.items()}
    given = None if targets is None else targets.detach().to(first.device)
    reduction = update.reduction
    return Problem(
        method,
        model,
        None,
        (),
        sent,
        reduction,
        batch_size,
        0,
        protocol.shape,
        given,
        protocol=protocol,
    )


def check_masks(method: str, model: nn.Module, update: Update) -> None:
    """Refuse an update of another model, and random masks that nobody but the client knew."""
    update.validate(model)
    for name, module in model.named_modules():
        if isinstance(module, _DROPOUTS) and module.training and module.p > 0:
            raise UnsumError(
                f"{method!r} cannot match gradients through dropout ({name!r}), whose masks only "
                "the client knew; use a model without it, eval mode (--eval-mode), or 'exact', "
                "which does not mind."
            )


def _reached(problem: Problem) -> set[str]:
    """Which of the parameters sent the loss depends on; also a try whether the model takes pictures
    of this shape."""
    images = torch.full((problem.batch_size, *problem.shape), 0.5).to(problem.zero)
    targets = images.new_full((problem.batch_size, problem.classes), 1 / problem.classes)
    parameters = {name: p for name, p in problem.model.named_parameters() if name in problem.sent}
    with quiet(problem.model, parameters), torch.enable_grad():
        try:
            logits = main_output(problem.model(images))
        except (RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:200].rstrip(".")
            raise UnsumError(
                f"The model does not take a batch of {tuple(images.shape)} ({reason}); give the "
                "pictures' side with image_size=, and the batch size that the client had."
            ) from error
        loss = nn.functional.cross_entropy(logits, targets)
        found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    return {name for name, gradient in zip(parameters, found, strict=True) if gradient is not None}


def picture_shape(
    model: nn.Module, image_size: int | tuple[int, int, int] | None
) -> tuple[int, int, int]:
    """(c, h, w) of one picture: given, written on the model, or the only one of the usual that the
    model takes."""
    if isinstance(image_size, tuple):
        if len(image_size) != 3 or min(image_size) < 1:
            raise UnsumError(
                "image_size must be the side of the pictures or (channels, height, width), not "
                f"{image_size}."
            )
        return image_size
    channels = next((m.in_channels for m in model.modules() if isinstance(m, nn.Conv2d)), 3)
    side = image_size if image_size is not None else getattr(model, "image_size", None)
    if side is not None:
        if not isinstance(side, int) or side < 1:
            raise UnsumError(
                f"The pictures' side must be a whole number of at least 1, not {side!r}."
            )
        return channels, side, side
    # No more than two of the sides that the model takes: one is an answer, two are none.
    taken = list(islice((side for side in _USUAL if refusal(model, side, channels) is None), 2))
    if len(taken) != 1:
        which = (
            f"takes several ({', '.join(map(str, taken))}, …)"
            if taken
            else "takes none of the usual ones"
        )
        raise UnsumError(
            f"The pictures' size is unknown, and the model {which}; give it with image_size=."
        )
    return channels, taken[0], taken[0]


Amend = Callable[[list[Tensor]], None]


@dataclass(frozen=True)
class Plan:
    """What to minimize, over what, and how."""

    objective: Objective  # the distance between gradients
    optimizer: Optimizer
    steps: int  # of the optimizer
    regularizers: tuple[Regularizer, ...] = ()  # terms added to the objective, each with its weight
    unknown: Unknown = field(default_factory=Pixels)  # what is optimized, and the pictures it makes
    restarts: int = 1  # how many starts; the one of lowest loss is the answer
    # Restarts go through the model together where the optimizer is Adam, `vmap` can run the model,
    # and it pays (on a GPU, or for a few small pictures).
    together: bool = True
    gradients: Literal["all", "backbone"] = "all"  # which of those received to match
    soft_labels: bool = False  # the labels are unknown, too, and optimized along
    # called with one restart's leaves, to change them in place (a denoiser, say)
    amend: Amend | None = None
    amend_every: int = 0  # steps
    # steps between looks: losses read, the best pictures kept, progress told, checkpoints written
    look_every: int = 0
    # bfloat16 passes on a GPU; cheaper, and coarser than gradients of trained models may bear
    half: bool = False
    stage: str = ""  # tells checkpoints apart where a method solves several plans
