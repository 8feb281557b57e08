"""Several local steps: samples, features and labels out of the change of weights that they leave
together."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unsum.certify.candidate import VAGUE
from unsum.certify.claim import TRUSTED_ERROR, Claim
from unsum.equation.observation import Observation
from unsum.equation.threads import few_threads
from unsum.errors import UnsumError
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.local_training import LocalTraining, mini_batches
from unsum.running.deadline import out_of_time
from unsum.running.declared import check_samples
from unsum.separate.exact.solver import exact
from unsum.separate.local_steps.chain import follow
from unsum.separate.local_steps.counting import first_alpha, size_of_step
from unsum.separate.local_steps.judge import StepsAnswer, judge
from unsum.separate.local_steps.movement import Schedule, Trajectory, observe_movement, of_one_step
from unsum.separate.local_steps.polish import Polished, Samples
from unsum.separate.local_steps.repeated import settle
from unsum.separate.method import SEPARATORS, working_type

_AT_RANDOM = 2  # the first kind of starts that is not the same for every seed
# of all visits in all epochs that must have directions of their own for steps to be followed
_APART = 0.75


@SEPARATORS.register(
    "local-steps",
    summary="the samples of several local steps, step by step at the weights of each (unsum)",
    needs="a weight delta whose local training is declared; fewer samples than half the classes",
)
def local_steps(head: Head, knowledge: Knowledge, *, seed: int) -> Leak:
    """Separate the samples of all local steps; features are those in the step that saw a sample
    first."""
    training = knowledge.training
    if training is None:
        raise UnsumError(
            "The attack 'local-steps' needs to know how the client trains; declare it with the "
            "update (training=LocalTraining(learning_rate, steps)), or use 'exact'."
        )
    if training.steps is None and training.epochs > 1:
        raise UnsumError(
            f"{training.epochs} epochs are of so many steps: say how many, with "
            "LocalTraining(steps=)."
        )
    check_samples(training.batch_size or 1)
    total = knowledge.known_batch_size or training.samples
    plain = replace(knowledge, batch_size=total if knowledge.labels is None else None)
    most = None if total is None else total * training.epochs
    observation = observe_movement(head, training, None)
    # directions that nobody accounts for
    excess = 0 if most is None else max(0, observation.rank - most)
    observation = observe_movement(head, training, most) if excess else observation
    R, C = observation.rank, observation.classes
    if R == 0 or C < 2 * R + 1:
        reason = (
            f"Steps were not followed: {R} directions in the movement are too many for {C} classes."
        )
        return _as_one(
            head,
            plain,
            seed,
            reason if R else "Nothing in the movement stands out of its rounding.",
        )
    try:
        with few_threads(observation.U.numel()):
            task = _Task.of(observation, training, total, knowledge.targets(C), head.b is not None)
            if task is None:
                reason = "No sample of the first step was found, so its learning rate is unknown."
                return _as_one(head, plain, seed, reason)
            found = task.run(head, plain, seed)
            if found is None or found.samples.number < task.trajectory.schedule.samples / 2:
                return _as_one(
                    head, plain, seed, "Following the steps found less than half of the samples."
                )
            known = total is not None
            confirmations = (
                task.confirmations(found, seed + 1)
                if found.completes(task.trajectory.schedule)
                else 0
            )
            case = StepsAnswer(
                head, task.trajectory, training, knowledge, found, known, excess, confirmations
            )
            return task.leak(head, found, judge(case))
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        # Samples that ran away, or that left no trace in float64.
        return _as_one(
            head, plain, seed, "Following the steps left nothing that could be inverted."
        )


@dataclass(frozen=True)
class _Task:
    trajectory: Trajectory
    classes: Tensor  # that may be labels
    rate: float

    @classmethod
    def of(
        cls,
        observation: Observation,
        training: LocalTraining,
        total: int | None,
        targets: Tensor | None,
        bias: bool,
    ) -> _Task | None:
        labels = (
            torch.arange(observation.classes)
            if targets is None
            else targets.argmax(1).unique().cpu()
        )
        classes, rate = labels.to(observation.U.device), training.learning_rate
        steps = (training.steps or 1) // training.epochs
        reach = float(Schedule.of(training, (1,)).reach[-1, 0])
        size = training.batch_size
        # a direction for every sample, as far as the steps have room
        if total is None and training.epochs == 1:
            total = (
                max(observation.rank, steps)
                if size is None
                else min(max(observation.rank, steps), size * steps)
            )
        if total is not None:
            size = mini_batches(total, steps, size)[0]
        if rate is None or size is None:
            alpha = first_alpha(observation, classes)
            if alpha is None:
                return None
            mean = observation.reduction == "mean"
            if size is None:  # a sum says nothing of it; nor does a mean of an unknown rate
                known = mean and rate is not None
                guess = (
                    rate * reach / alpha
                    if rate is not None and known
                    else observation.rank / training.epochs
                )
                size = (
                    size_of_step(observation, guess, training.epochs)
                    if known
                    else max(1, round(guess))
                )
            rate = rate or alpha * (size if mean else 1) / reach
        check_samples(total or size * steps)
        sizes = mini_batches(total or size * steps, steps, training.batch_size)
        if min(sizes) == 0:
            raise UnsumError(
                f"{total} samples cannot fill {steps} steps of an epoch; check the steps that are "
                "declared."
            )
        trajectory = Trajectory(
            observation, Schedule.of(training, sizes), bias, training.learning_rate is None
        )
        return cls(trajectory, classes, rate)

    @property
    def epochs_differ(self) -> bool:
        """Whether steps can be followed: visits have directions of their own, also where epochs
        repeat the samples."""
        schedule = self.trajectory.schedule
        visits = schedule.samples * schedule.epochs
        return schedule.epochs == 1 or self.trajectory.observation.rank >= _APART * visits

    def run(self, head: Head, knowledge: Knowledge, seed: int) -> Polished | None:
        """Step by step; where epochs repeat the samples and hardly differ, all epochs at once."""
        generator = torch.Generator().manual_seed(seed)
        schedule, found = self.trajectory.schedule, None
        if self.epochs_differ:
            found = follow(self.trajectory, self.rate, self.classes, generator)
            if found.completes(schedule):
                return found
        if schedule.epochs > 1:
            granted = (
                knowledge
                if knowledge.labels is not None
                else replace(knowledge, batch_size=schedule.samples)
            )
            start = exact(replace(head, divisor=None), granted, seed=seed)
            if start.batch_size == schedule.samples:
                T = start.features.double() @ self.trajectory.observation.A.T
                settled = settle(
                    self.trajectory, Samples(schedule.sizes, T, start.labels, self.rate)
                )
                if settled is not None:
                    return settled
        return self._certain(found)

    def _certain(self, found: Polished | None) -> Polished | None:
        """Without the samples that are hardly any."""
        if found is None or not found.explains or not bool((found.errors < VAGUE).any()):
            return None
        kept, samples = found.errors < VAGUE, found.samples
        counts = tuple(int(part.sum()) for part in kept.split(list(samples.counts)))
        left = replace(samples, counts=counts, T=samples.T[kept], labels=samples.labels[kept])
        return replace(found, samples=left, errors=found.errors[kept])

    def confirmations(self, found: Polished, seed: int) -> int:
        """1 where a second chain from other, random starts leads to the same samples of the same
        labels."""
        if not self.epochs_differ:
            return 0  # all epochs were solved at once, from the one start that there is
        generator = torch.Generator().manual_seed(seed)
        again = follow(self.trajectory, self.rate, self.classes, generator, first_kind=_AT_RANDOM)
        if not again.completes(self.trajectory.schedule):
            return 0
        distances = torch.cdist(found.samples.T, again.samples.T) / found.samples.T.norm(
            dim=1, keepdim=True
        )
        near, same = distances.min(1)
        labels = again.samples.labels[same] == found.samples.labels
        return int(float(near.max()) < TRUSTED_ERROR and bool(labels.all()))

    def leak(self, head: Head, found: Polished, claim: Claim) -> Leak:
        observation, samples = self.trajectory.observation, found.samples
        Y = self.trajectory.targets(samples.labels)
        walk = self.trajectory.walk(
            samples.counts, samples.T, Y, observation.U.new_tensor(samples.rate)
        )
        return Leak(
            method="local-steps",
            targets=Y,
            logits=samples.T @ observation.K + observation.b,
            features=(samples.T @ observation.A).to(working_type(head)),
            residual=float(walk.remainder.norm() / self.trajectory.equation.U.norm()),
            predicted_error=claim.predicted_error,
            exact=claim.exact,
            predicts=claim.predicts,
            counted=claim.counted,
            scale=samples.rate if self.trajectory.rate_free else 1.0,
            notes=[*self._notes(found), *claim.notes],
        )

    def _notes(self, found: Polished) -> list[str]:
        schedule, counts = self.trajectory.schedule, found.samples.counts
        notes = [
            (
                f"{schedule.steps} local steps were followed one by one; features are those in the "
                "step that saw a sample first."
            )
        ]
        if found.explains and not found.completes(schedule):
            notes.append(
                f"{found.samples.number} of {schedule.samples} samples were found, of the first "
                f"{len(counts)} steps."
            )
        if self.trajectory.rate_free:
            notes.append(f"The learning rate came out as {found.samples.rate:.4g}.")
        return notes


def _as_one(head: Head, knowledge: Knowledge, seed: int, reason: str) -> Leak:
    """One step, where that explains the movement; else the exact solver on the mean gradient, and a
    claim of nothing."""
    training = knowledge.training
    assert training is not None
    if training.several_steps and not out_of_time("one step in the place of several"):
        one = exact(of_one_step(head, training), knowledge, seed=seed)
        if one.exact:
            note = (
                "One step explains the movement: its gradient was accumulated, or the other steps "
                "moved nothing."
            )
            return replace(one, method="local-steps", notes=[note, *one.notes])
    leak = exact(replace(head, divisor=None), knowledge, seed=seed)
    notes = [
        reason,
        "The mean of the steps' gradients was solved as if it were one gradient.",
        *leak.notes,
    ]
    return replace(leak, method="local-steps", exact=False, notes=notes)
