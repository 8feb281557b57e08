"""A gradient-matching method as a declaration: everything the engine needs to know about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from unsum.match.objective import Objective
from unsum.match.optimizers import Optimizer
from unsum.match.regularizers import Regularizer
from unsum.match.unknown import Pixels, Unknown

Amend = Callable[[list[Tensor]], None]


@dataclass(frozen=True)
class Plan:
    """What to minimize, over what, and how.

    Args:
        objective: the distance between gradients.
        optimizer: `Adam(…)` or `LBFGS(…)`.
        steps: how many of its steps.
        regularizers: terms added to the objective, each with its weight.
        unknown: what is optimized, and the pictures it makes.
        restarts: how many starts; the one of lowest loss is the answer.
        together: send restarts through the model together, where the optimizer is Adam, `vmap` can run the model, and it pays (on
            a GPU, or for a few small pictures).
        gradients: which of the received gradients to match.
        soft_labels: the labels are unknown, too, and optimized along.
        amend: called with one restart's leaves every `amend_every` steps, to change them in place (a denoiser, say).
        patience: stop after so many looks (one every `look_every` steps) that do not lower any restart's loss by 0.1 %; 0: never.
        enough: stop when a loss is no larger than this.
        look_every: at how many steps losses are read, the best pictures kept, progress told and checkpoints written.
        half: bfloat16 passes on a GPU; cheaper, and coarser than gradients of trained models may bear.
        stage: tells checkpoints apart where a method solves several plans.
    """

    objective: Objective
    optimizer: Optimizer
    steps: int
    regularizers: tuple[Regularizer, ...] = ()
    unknown: Unknown = field(default_factory=Pixels)
    restarts: int = 1
    together: bool = True
    gradients: Literal["all", "backbone"] = "all"
    soft_labels: bool = False
    amend: Amend | None = None
    amend_every: int = 0
    patience: int = 0
    enough: float = 0.0
    look_every: int = 0
    half: bool = False
    stage: str = ""
