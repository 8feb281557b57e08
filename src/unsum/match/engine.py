"""The one engine of all gradient-matching methods: a problem and a plan in, the pictures of lowest
loss out."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from unsum.errors import UnsumError
from unsum.files.writing import write_pictures
from unsum.match import checkpoint
from unsum.match.evaluate import Evaluator
from unsum.match.optimizers import LBFGS
from unsum.match.problem import Plan, Problem
from unsum.running.deadline import out_of_time

UNTRIED = "further steps of gradient matching"
LOOKS, _RAREST_LOOK = 40, 50  # looks of one run at its losses, and the most steps between two
_PREVIEW_SECONDS = 2.0  # between two writings of the pictures so far


@dataclass(frozen=True)
class Matched:
    """The restart of lowest loss: its pictures, targets and losses; every restart's loss; how they
    fell.

    `leaves` are the unknowns behind the pictures, for a stage that goes on from there; `photos`
    says which photos of its own the attacker used, for the list of what was granted.
    """

    images: Tensor  # (B, c, h, w)
    targets: Tensor  # (B, C)
    loss: float
    match: float
    restart_losses: Tensor  # (R,)
    steps: int
    history: dict[str, Tensor] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    leaves: list[Tensor] = field(default_factory=list)
    photos: str = ""


def solve(problem: Problem, plan: Plan) -> Matched:
    """Minimize what the plan declares. The model is left as it was: flags, gradients, buffers,
    modes."""
    if plan.steps < 1 or plan.restarts < 1:
        raise UnsumError("Matching needs at least one step and one restart.")
    run = _Run(problem, plan)
    with run.evaluator.ready():
        run.go()
    return run.result()


class _Run:
    """The state of one solve; looks at it now and then read losses, so that other steps never wait
    for the device."""

    def __init__(self, problem: Problem, plan: Plan) -> None:
        self.problem, self.plan = problem, plan
        # (R, …), each restart's drawn from a generator of its own, so that they do not depend on
        # how many there are.
        starts = [_start(problem, plan, restart) for restart in range(plan.restarts)]
        stacked = [torch.stack(parts).to(problem.zero) for parts in zip(*starts, strict=True)]
        plan.unknown.project(stacked[:-1] if plan.soft_labels else stacked)
        self.evaluator = Evaluator(problem, plan, stacked)
        self.driver = plan.optimizer.driver(self.evaluator)
        R = plan.restarts
        self.best = [leaf.detach().clone() for leaf in self.evaluator.leaves]
        self.best_losses = torch.full((R,), torch.inf, dtype=torch.float64)
        self.best_matches = self.best_losses.clone()
        self.rows: list[list[float]] = []
        self.step = 0
        self.renewed = [0] * R
        rarest = (
            1
            if isinstance(plan.optimizer, LBFGS)
            else min(_RAREST_LOOK, max(1, plan.steps // LOOKS))
        )
        self.look_every = plan.look_every or rarest
        self.saved = self.shown = time.monotonic()
        self.identity = _identity(problem, plan)
        self.file = problem.checkpoint
        if self.file is not None and plan.stage:
            self.file = self.file.with_name(f"{self.file.stem}-{plan.stage}{self.file.suffix}")

    def go(self) -> None:
        self._resume()
        while (
            self.step < self.plan.steps
            and float(self.best_losses.min()) > 0
            and not out_of_time(UNTRIED)
        ):
            looking = self.step % self.look_every == 0
            before = [leaf.detach().clone() for leaf in self.evaluator.leaves] if looking else []
            losses = self.driver.step(self.step / self.plan.steps)
            self._keep_inside()
            self.step += 1
            if looking:
                self._look(self.step - 1, before, *losses)
                self._renew(losses[0])
                if time.monotonic() - self.saved >= self.problem.checkpoint_seconds:
                    self._save()
        if not self.rows or self.rows[-1][0] < self.step:
            self._look(
                self.step,
                [leaf.detach().clone() for leaf in self.evaluator.leaves],
                *self.evaluator.all(),
            )
        self._save()

    def _inside(self) -> None:
        leaves = [leaf.detach() for leaf in self.evaluator.leaves]
        self.plan.unknown.project(self.evaluator.parts(leaves)[0])

    def _keep_inside(self) -> None:
        self._inside()
        if (
            self.plan.amend is not None
            and self.plan.amend_every
            and (self.step + 1) % self.plan.amend_every == 0
        ):
            with torch.no_grad():
                for views in self.evaluator.views:
                    self.plan.amend([view.detach() for view in views])

    def _renew(self, totals: Tensor) -> None:
        """A restart that diverged, as L-BFGS without a line search often does, begins anew for the
        steps that remain."""
        for r in (~torch.isfinite(totals)).nonzero().flatten().tolist():
            self.renewed[r] += 1
            begun = _start(self.problem, self.plan, r, self.renewed[r])
            for view, start in zip(self.evaluator.views[r], begun, strict=True):
                view.detach().copy_(start)
            self.driver.forget(r)
        self._inside()

    def _look(self, step: int, leaves: list[Tensor], totals: Tensor, matches: Tensor) -> None:
        totals, matches = totals.double().cpu().nan_to_num(torch.inf), matches.double().cpu()
        lower = totals < self.best_losses
        for r in lower.nonzero().flatten().tolist():
            self.best_losses[r], self.best_matches[r] = totals[r], matches[r]
            for kept, leaf in zip(self.best, leaves, strict=True):
                kept[r] = leaf[r]
        first = int(totals.argmin())
        self.rows.append([step, float(totals[first]), float(matches[first])])
        self.problem.progress.step(step, float(totals[first]), float(matches[first]))
        now = time.monotonic()
        if self.problem.preview is not None and (
            now - self.shown >= _PREVIEW_SECONDS or step == self.plan.steps
        ):
            write_pictures(self.problem.preview, self._found()[0])
            self.shown = now

    @torch.no_grad()
    def _found(self) -> tuple[Tensor, Tensor]:
        """The pictures and targets of the lowest loss so far."""
        first = int(self.best_losses.argmin())
        leaves, targets = self.evaluator.parts([leaf[first] for leaf in self.best])
        return self.plan.unknown.pictures(leaves).clamp(0, 1), targets

    def _save(self) -> None:
        if self.file is None:
            return
        state: dict[str, Any] = {
            "leaves": [leaf.detach() for leaf in self.evaluator.leaves],
            "best": self.best,
            "best_losses": self.best_losses,
            "best_matches": self.best_matches,
            "rows": torch.tensor(self.rows, dtype=torch.float64),
            "step": self.step,
            "renewed": self.renewed,
            "optimizer": self.driver.state(),
        }
        checkpoint.write(self.file, self.identity, state)
        self.saved = time.monotonic()

    def _resume(self) -> None:
        state = (
            None
            if self.file is None
            else checkpoint.read(self.file, self.identity, self.problem.device)
        )
        if state is None:
            return
        for leaf, value in zip(
            [*self.evaluator.leaves, *self.best], [*state["leaves"], *state["best"]], strict=True
        ):
            leaf.detach().copy_(value)
        self.best_losses, self.best_matches = (
            state["best_losses"].cpu(),
            state["best_matches"].cpu(),
        )
        self.rows = state["rows"].tolist()
        self.step, self.renewed = state["step"], state["renewed"]
        self.driver.restore(state["optimizer"])

    def result(self) -> Matched:
        first, count = int(self.best_losses.argmin()), sum(self.renewed)
        anew = (
            [f"{count} start{'s' if count > 1 else ''} diverged, and others took their place."]
            if count
            else []
        )
        columns = torch.tensor(self.rows, dtype=torch.float64).T
        return Matched(
            *self._found(),
            float(self.best_losses[first]),
            float(self.best_matches[first]),
            self.best_losses,
            self.step,
            dict(zip(("step", "loss", "match"), columns, strict=True)),
            [*self.evaluator.notes, *anew],
            [leaf[first] for leaf in self.best],
        )


def _start(problem: Problem, plan: Plan, restart: int, renewed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(problem.seed + 7919 * restart + 1_000_003 * renewed)
    leaves = plan.unknown.start(problem.batch_size, problem.shape, generator)
    if plan.soft_labels and problem.protocol is not None:
        shape = problem.protocol.unknown(problem.model, problem.batch_size)
        return [*leaves, problem.protocol.start(shape, restart, generator)]
    if plan.soft_labels:
        leaves = [*leaves, torch.randn(problem.batch_size, problem.classes, generator=generator)]
    return leaves


def _identity(problem: Problem, plan: Plan) -> dict[str, Any]:
    """What must not change between the runs that share a checkpoint."""
    digest = hashlib.sha256()
    for name, gradient in problem.sent.items():
        digest.update(name.encode())
        digest.update(gradient.double().norm().cpu().numpy().tobytes())
    return {
        "method": problem.method,
        "update": digest.hexdigest()[:16],
        "batch size": problem.batch_size,
        "image size": list(problem.shape),
        "seed": problem.seed,
        "steps": plan.steps,
        "restarts": plan.restarts,
        **{
            name: repr(getattr(plan, name))
            for name in ("objective", "optimizer", "regularizers", "unknown")
        },
    }
