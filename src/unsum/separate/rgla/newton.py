"""RGLA's equations solved by Levenberg–Marquardt instead of Adam, in float64: what the equations
themselves give away.

Minimizes the same α_w L_w + α_b L_b + α_loss L_loss over the logits. Each step solves

    (JᵀJ + μ) step = −½ ∂Ŷ

by conjugate gradients, JᵀJ never formed (`LogitObjective.curvature`); `engine.descend` chooses μ.
The term of JᵀJ that couples samples is α_w D Dᵀ for every class: its B×B inverse is the
preconditioner.

l̂ is only an estimate, so that the minimum of all three lies beside the truth. Once L_loss has done
its work, to lead away from twins, the equations that hold exactly, L_w and L_b, are solved alone
from there (`polish`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from unsum.engine.budget import Budget
from unsum.engine.conjugate import conjugate_gradients
from unsum.engine.descend import NonlinearProblem, descend
from unsum.equation.threads import few_threads
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.labels.bias_sign import hard_labels
from unsum.leak import Leak
from unsum.running.progress import SILENT, Progress
from unsum.separate.method import SEPARATORS
from unsum.separate.options import whole, yes_or_no
from unsum.separate.rgla.method import (
    EVERYTHING,
    RANDOM,
    Record,
    checked,
    declare_start,
    explain,
    starting_logits,
)
from unsum.separate.rgla.objective import LogitObjective

STEPS = 100  # of Levenberg–Marquardt, in each stage, where the paper takes 20 000 of Adam
_INNER_STEPS, _INNER_TOLERANCE = 300, 1e-3  # of conjugate gradients inside one step
_EXPLAINED = 1e-10  # L_w over ‖M‖² at which nothing but the gradient's rounding is left


@SEPARATORS.register(
    "rgla-newton",
    summary="RGLA's equations by Levenberg–Marquardt (unsum)",
    needs="bias gradient, hard labels, early training",
)
def rgla_newton(
    head: Head,
    knowledge: Knowledge,
    *,
    seed: int,
    progress: Progress = SILENT,
    objectives: Collection[str] = EVERYTHING,
    start: str = "randn",
    start_logits: Tensor | None = None,
    steps: int = STEPS,
    polish: bool = True,
    tries: int = 4,
) -> Leak:
    """As `rgla`, by second-order steps.

    Args:
        progress, objectives, start, start_logits: as for `rgla`; `leak.history` has an entry per
            step.
        steps: at most so many, in each of the two stages.
        polish: whether L_loss is dropped for the second stage (where it was in use beside L_w).
        tries: how many random starts at most, while L_w stays above rounding: a twin explains the
            gradient less well. Without `polish` L_loss keeps L_w above it in any case, and there is
            one try.
    """
    names = checked("rgla-newton", head, knowledge, objectives, start, start_logits, steps)
    whole("tries", tries, 1)
    yes_or_no("polish", polish)
    objective = LogitObjective.of(head, hard_labels(head, knowledge), names, torch.float64)
    stages = [objective]
    if polish and {"w", "loss"} <= set(names):
        stages.append(replace(objective, weights=objective.weights | {"loss": 0.0}))
    # l̂ keeps L_w from vanishing, twin or not
    checkable = stages[-1].weights["w"] > 0 == stages[-1].weights["loss"]
    answers = []
    for number in range(tries if checkable and start in RANDOM else 1):
        logits = starting_logits(start, start_logits, head, knowledge, objective.Y, seed + number)
        record = Record(objective, progress)
        with torch.no_grad(), few_threads(logits.numel()):
            for stage in stages:
                logits = _descend(stage, logits, steps, record)
        # L_w / ‖M‖² first
        answers.append((float(record.losses[-1][0] / objective.K.square().sum()), logits, record))
        if answers[-1][0] < _EXPLAINED:
            break
    unexplained, logits, record = min(answers, key=lambda answer: answer[0])
    leak = replace(explain("rgla-newton", head, objective, logits), history=record.history)
    if checkable and unexplained >= _EXPLAINED:
        leak.notes.append(
            f"None of {len(answers)} start(s) explained the gradient down to its rounding: expect "
            "a twin, or a defended gradient."
        )
    return declare_start(leak, knowledge, start, start_logits)


def _descend(objective: LogitObjective, logits: Tensor, steps: int, record: Record) -> Tensor:
    """Damped steps until nothing decreases any more; the record counts those that were accepted."""
    record.add(record.steps[-1] if record.steps else 0, logits)
    unit = float(objective.difference(logits.softmax(1)).square().sum(1).max()) * max(
        objective.weights.values()
    )

    problem = _Stage(objective, logits, unit, record)
    end = descend(problem, logits.flatten()[None], Budget(steps=steps)).s
    problem.note(end)
    return end.view_as(logits)


class _Stage(NonlinearProblem):
    """One stage, which records the logits that steps were taken to."""

    def __init__(
        self, objective: LogitObjective, logits: Tensor, unit: float, record: Record
    ) -> None:
        self.objective, self.shape, self.unit, self.record = objective, logits.shape, unit, record
        self.noted = logits.flatten()[None]

    def note(self, s: Tensor) -> None:
        if not torch.equal(s, self.noted):
            self.record.add(self.record.steps[-1] + 1, s.view(self.shape))
            self.noted = s

    def linearize(self, s: Tensor) -> _Equations:
        self.note(s)
        return _Equations(self, s.view(self.shape))

    def costs(self, s: Tensor) -> Tensor:
        return self.objective.total(self.objective.losses(s.view(self.shape)))[None]


class _Equations:
    """The weighted residuals at some logits, by JᵀJ alone; damping counts in units of the largest
    entry of α_w D Dᵀ."""

    def __init__(self, stage: _Stage, logits: Tensor) -> None:
        self.objective, self.logits, self.unit = stage.objective, logits, stage.unit
        self.costs = stage.costs
        self.curvature = self.objective.curvature(logits)

    @cached_property
    def cost(self) -> Tensor:
        return self.costs(self.logits)

    @cached_property
    def gradient(self) -> Tensor:
        return self.objective.gradient(self.logits).flatten() / 2

    def step(self, damping: Tensor) -> Tensor:
        """The solution of (JᵀJ + μ) step = −Jᵀr by preconditioned conjugate gradients."""
        D, mu = self.objective.difference(self.logits.softmax(1)), float(damping) * self.unit
        left: Tensor = torch.linalg.inv(
            self.objective.weights["w"] * D @ D.T + mu * torch.eye(len(D)).to(D)
        )
        return conjugate_gradients(
            lambda x: self._squared(x) + mu * x,
            lambda x: (left @ x.view_as(D)).flatten(),
            -self.gradient,
            _INNER_TOLERANCE,
            _INNER_STEPS,
        )[0][None]

    def promised(self, step: Tensor) -> Tensor:
        curved = (step[0] @ self._squared(step[0])).clamp_min(0)
        return -(2 * step[0] @ self.gradient + curved)[None]

    def _squared(self, x: Tensor) -> Tensor:
        return self.curvature(x.view_as(self.logits)).flatten()
