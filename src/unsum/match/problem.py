"""What a matcher is given: the model, the gradients received, and what is known or was found about the batch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from unsum.errors import UnsumError
from unsum.gradients import main_output, quiet
from unsum.head import find_head
from unsum.leak import Leak
from unsum.progress import SILENT, Progress
from unsum.update import Update

_DROPOUTS = nn.modules.dropout._DropoutNd


@dataclass(frozen=True)
class Problem:
    """`targets` is None where labels are unknown and the method optimizes them along with the pictures."""

    method: str
    model: nn.Module
    head: nn.Module
    head_names: tuple[str, ...]
    sent: dict[str, Tensor]
    reduction: str
    batch_size: int
    classes: int
    shape: tuple[int, int, int]
    targets: Tensor | None = None  # (B, C)
    separated: Leak | None = None  # where a separator ran first
    auxiliary: tuple[Tensor, Tensor] | None = None  # labeled samples of the attacker's own
    seed: int = 0
    progress: Progress = SILENT
    checkpoint: Path | None = None
    checkpoint_seconds: float = 20.0
    preview: Path | None = None

    @property
    def zero(self) -> Tensor:
        return next(iter(self.sent.values())).new_zeros(())

    @property
    def device(self) -> torch.device:
        return self.zero.device

    def loss_gradient(self, logits: Tensor, targets: Tensor) -> Tensor:
        """∂ cross-entropy / ∂ logits = (softmax − targets) / B, which takes fewer passes to differentiate than the loss."""
        apart = logits.float().softmax(-1) - targets if logits.dtype == torch.bfloat16 else logits.softmax(-1) - targets
        return (apart / len(targets) if self.reduction == "mean" else apart).to(logits.dtype)

    def names(self, which: Literal["all", "backbone"] = "all") -> list[str]:
        """The gradients to match; `backbone` leaves the head's out."""
        return [name for name in self.sent if which == "all" or name not in self.head_names]


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
    """The problem, checked: what cannot be matched is refused in one sentence before anything is optimized."""
    update.validate(model)
    _refuse_dropout(method, model)
    name, head = find_head(model)
    heads = tuple(f"{name}.{part}" if name else part for part in ("weight", "bias"))
    first = next(model.parameters())
    scale = 1.0 if separated is None else separated.scale
    sent = {name: gradient.detach().to(first) for name, gradient in update.gradients.items()}
    if scale != 1:  # no copy where none is needed: gradients can be as large as the model
        sent = {name: gradient / scale for name, gradient in sent.items()}
    if all(name in heads for name in sent) and any(name not in heads for name, _ in model.named_parameters()):
        raise UnsumError(
            f"The update holds no gradient but the head's, so {method!r} has nothing to match; use 'exact', "
            "which needs no other."
        )
    problem = Problem(
        method, model, head, heads, sent, update.reduction, batch_size, head.out_features, shape, separated=separated
    )
    reached = _reached(problem)
    rows = None if targets is None else targets.detach().to(first)
    return Problem(
        **{**vars(problem), "sent": {name: g for name, g in sent.items() if name in reached}, "targets": rows}
    )


def _refuse_dropout(method: str, model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, _DROPOUTS) and module.training and module.p > 0:
            raise UnsumError(
                f"{method!r} cannot match gradients through dropout ({name!r}), whose masks only the client knew; "
                "use a model without it, eval mode (--eval-mode), or 'exact', which does not mind."
            )


def _reached(problem: Problem) -> set[str]:
    """Which of the parameters sent the loss depends on; also a try whether the model takes pictures of this shape."""
    images = torch.full((problem.batch_size, *problem.shape), 0.5).to(problem.zero)
    targets = images.new_full((problem.batch_size, problem.classes), 1 / problem.classes)
    parameters = {name: p for name, p in problem.model.named_parameters() if name in problem.sent}
    with quiet(problem.model, parameters), torch.enable_grad():
        try:
            logits = main_output(problem.model(images))
        except (RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:200].rstrip(".")
            raise UnsumError(
                f"The model does not take a batch of {tuple(images.shape)} ({reason}); give the pictures' side with "
                "image_size=, and the batch size that the client had."
            ) from error
        loss = nn.functional.cross_entropy(logits, targets)
        found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    return {name for name, gradient in zip(parameters, found, strict=True) if gradient is not None}
