"""RGLA's optimizer: Adam on the logits, with a record of the three losses on the way."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from unsum.cuda_graph import recorded
from unsum.equation.threads import few_threads
from unsum.progress import SILENT, Progress
from unsum.separate.rgla.objective import LogitObjective


@dataclass
class Record:
    """The losses at some steps: `history` for the `Leak`, and whoever wants to watch."""

    objective: LogitObjective
    progress: Progress
    steps: list[int] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)  # left on the device: reading them would make it wait

    def add(self, step: int, logits: Tensor) -> Tensor:
        """Note the losses after `step` steps; returns them weighted and summed."""
        losses = self.objective.losses(logits)
        self.steps.append(step)
        self.losses.append(losses)
        if self.progress is not SILENT:
            self.progress.step(step, *losses.tolist())
        return self.objective.total(losses)

    @property
    def history(self) -> dict[str, Tensor]:
        """`step`, `loss_w`, `loss_b` and `loss_loss`, each (S,): the losses without their weights."""
        w, b, loss = torch.stack(self.losses).cpu().unbind(1)
        return {"step": torch.tensor(self.steps), "loss_w": w, "loss_b": b, "loss_loss": loss}


def minimize(
    objective: LogitObjective,
    start: Tensor,
    *,
    steps: int,
    rate: float,
    every: int,
    stop_below: float | None,
    record: Record,
) -> Tensor:
    """(B, C) the logits at which Adam ends; the losses are noted at the start, every so many steps and at the end.

    `stop_below` ends it early, looked at whenever the losses are noted.
    """
    logits = start.clone().requires_grad_()
    logits.grad = torch.zeros_like(logits)
    watched, gradient = logits.detach(), logits.grad  # the same memory, outside of autograd
    # Fused: one kernel per step. Capturable: its step counter lives on the device, as a recording needs it.
    optimizer = torch.optim.Adam([logits], rate, fused=True, capturable=logits.is_cuda)

    def advance() -> None:
        gradient.copy_(objective.gradient(watched))
        optimizer.step()

    record.add(0, watched)
    with torch.no_grad(), few_threads(logits.numel()):
        run, done = recorded(advance, logits.device)
        while done < steps:
            goal = min(steps, done - done % every + every)
            for _ in range(done, goal):
                run()
            done = goal
            total = record.add(done, watched)
            if stop_below is not None and float(total) < stop_below:
                break
    return watched
