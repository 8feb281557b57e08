"""What a server knows of a client whose network is no classifier: its loss, and what samples look
like.

The gradient of the client's own loss is a function of inputs and targets, so both can be matched,
whatever the network returns. Targets are granted, or estimated along with the pictures:

    classes   class numbers, one a sample or a pixel   softmax of the unknown over dimension 1
    shares    numbers from 0 to 1                      sigmoid of the unknown
    numbers   any others                               the unknown itself
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from unsum.errors import UnsumError, first_line
from unsum.gradients import quiet
from unsum.network.loss_function import LossFunction
from unsum.network.passes import main_tensor

Form = Literal["classes", "shares", "numbers"]
_SAME = 1e-4  # relative difference of two values of one loss that rounding makes


@dataclass(frozen=True)
class Protocol:
    """`shape` and `target` are of one sample; the targets themselves are nowhere in it."""

    loss: LossFunction
    shape: tuple[int, int, int]
    target: tuple[int, ...]
    form: Form

    def gradients(
        self, model: nn.Module, images: Tensor, targets: Tensor, parameters: Sequence[Tensor]
    ) -> list[Tensor]:
        """∇ of the client's loss, differentiable by images and targets."""
        total = self.loss(model(images), targets)
        found = torch.autograd.grad(total, list(parameters), create_graph=True, allow_unused=True)
        return [
            torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)
        ]

    def unknown(self, model: nn.Module, count: int) -> tuple[int, ...]:
        """The shape of what stands for the targets of `count` samples that are not known."""
        if self.form != "classes":
            return count, *self.target
        output = self._output(model, count)
        return count, output.shape[1], *self.target

    def start(self, shape: tuple[int, ...], restart: int, generator: torch.Generator) -> Tensor:
        """Class numbers begin undecided, numbers with other signs at every restart, because a
        cosine does not lead from one sign to the other."""
        if self.form != "numbers":
            return torch.zeros(shape)
        signs = [1.0 - 2.0 * (restart >> sample & 1) for sample in range(shape[0])]
        drawn = torch.randn(shape, generator=generator).abs()
        return drawn * torch.tensor(signs).view(-1, *[1] * (len(shape) - 1))

    def targets(self, unknown: Tensor) -> Tensor:
        """From what is optimized to what the loss takes."""
        if self.form == "classes":
            return unknown.softmax(1)
        return unknown.sigmoid() if self.form == "shares" else unknown

    def check_estimate(self, model: nn.Module) -> None:
        """Refuse where targets cannot be estimated: the loss must take probabilities in the place
        of class numbers."""
        if self.form != "classes":
            return
        output = self._output(model, 2)
        fits = output.shape[:1] + output.shape[2:] == (2, *self.target)
        drawn = torch.randint(
            output.shape[1], (2, *self.target), generator=torch.Generator().manual_seed(0)
        )
        rows = (
            nn.functional.one_hot(drawn, output.shape[1]).movedim(-1, 1).to(output)
            if fits
            else output
        )
        try:
            with quiet(model, ()), torch.no_grad():
                returned = model(torch.full((2, *self.shape), 0.5).to(output))
                one, other = (
                    float(self.loss(returned, form)) for form in (drawn.to(output.device), rows)
                )
        except Exception as error:  # the user's own loss
            raise UnsumError(
                f"the loss takes class numbers alone ({type(error).__name__}: {first_line(error)})"
            ) from error
        if not fits or abs(one - other) > _SAME * max(abs(one), abs(other)):
            raise UnsumError(
                "the loss takes class numbers alone, and those cannot be varied by degrees"
            )

    def _output(self, model: nn.Module, count: int) -> Tensor:
        """What the model returns for so many gray pictures."""
        like = next(model.parameters())
        with quiet(model, ()), torch.no_grad():
            output = main_tensor(model(torch.full((count, *self.shape), 0.5).to(like)))
        if output is None or output.ndim < 2:
            raise UnsumError("the model's output has no dimension of classes")
        return output
