"""Gradients of many candidate batches, without a way back: for searches and for learning, which
need no derivative of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.func import functional_call, vjp, vmap

from unsum.errors import needed
from unsum.gradients import main_output, quiet
from unsum.match.evaluate import plain_norms
from unsum.match.problem import Problem

_ENTRIES_AT_ONCE = 1 << 26  # of gradients and of pixels: a quarter of a gibibyte each
_ENTRIES_ON_A_GPU = 1 << 30  # four gibibytes each: few candidates at a time leave a large GPU idle


class Many:
    """(N, B, c, h, w) pictures → one (N, …) tensor per gradient in `problem.sent`; use it inside
    `ready()`."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        parameters = dict(problem.model.named_parameters())
        self._parameters: dict[str, Tensor] = {
            name: parameters[name].detach() for name in problem.sent
        }
        self._together = True
        largest = max(
            sum(p.numel() for p in parameters.values()),
            64 * problem.batch_size * problem.shape[-1] ** 2,
        )
        self.at_once = max(
            1, (_ENTRIES_AT_ONCE if problem.device.type == "cpu" else _ENTRIES_ON_A_GPU) // largest
        )

    @contextmanager
    def ready(self) -> Iterator[None]:
        with quiet(self.problem.model, []), plain_norms(self.problem.model):
            yield

    def __call__(self, images: Tensor) -> list[Tensor]:
        parts = [self._some(some) for some in images.split(self.at_once)]
        return (
            parts[0]
            if len(parts) == 1
            else [torch.cat(tensors) for tensors in zip(*parts, strict=True)]
        )

    def _some(self, images: Tensor) -> list[Tensor]:
        if self._together:
            try:
                return list(vmap(self._one)(images))
            except (RuntimeError, NotImplementedError, ValueError):
                # as in `evaluate`: not every layer can
                self._together = False
        found = [self._one(batch) for batch in images]
        return [torch.stack(tensors) for tensors in zip(*found, strict=True)]

    def _one(self, batch: Tensor) -> tuple[Tensor, ...]:
        targets = needed(self.problem.targets, "The labels of the batch")

        def logits(parameters: dict[str, Tensor]) -> Tensor:
            return main_output(functional_call(self.problem.model, parameters, (batch,)))

        rows, backward = vjp(logits, self._parameters)[:2]
        (found,) = backward(self.problem.loss_gradient(rows, targets))
        return tuple(tensor.detach() for tensor in found.values())
