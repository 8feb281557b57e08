"""What may be claimed about the samples of several steps: the doubts about one gradient, asked of
all steps together.

What else explains the movement? Steps of unequal sizes or rates weigh samples differently, a
momentum that was not declared moves the weights between the steps, a temperature or mixed labels
change what a sample sends. Each is an unknown more: to first order it changes the residual by a
column, and the samples follow as well as they can. What they cannot follow is all that shows.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from unsum.certify.candidate import runaways
from unsum.certify.claim import TRUSTED_ERROR, Claim, Evidence, grant
from unsum.certify.counted import count
from unsum.certify.doubts.faint import COUNTED, SURE
from unsum.certify.doubts.labels import SATURATED
from unsum.certify.doubts.merged import doubt_spread, hidden_spread
from unsum.certify.doubts.misfit import MEASURED
from unsum.certify.doubts.mixing import TRUSTED_MIXING
from unsum.certify.doubts.nuisance import TRUSTED, left_open
from unsum.certify.scatter import moved_by, prior_of
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.local_training import LocalTraining
from unsum.separate.local_steps.movement import Departure, Schedule, Trajectory, whole_movement
from unsum.separate.local_steps.polish import Here, Polished, Polisher

_MOMENTUM = 1e-3  # step of the difference that a derivative is taken from


@dataclass(frozen=True)
class StepsAnswer:
    """The answer of several steps, and what it stands on."""

    head: Head
    trajectory: Trajectory
    training: LocalTraining
    knowledge: Knowledge
    found: Polished
    number_known: bool
    excess: int  # directions of the movement beyond the number of samples that was told
    confirmations: int

    @property
    def steps(self) -> Tensor:
        """(m,) the local step that met each sample first."""
        counts = torch.tensor(self.found.samples.counts, device=self.found.samples.T.device)
        return torch.arange(len(counts), device=counts.device).repeat_interleave(counts)

    @property
    def complete(self) -> bool:
        return self.found.completes(self.trajectory.schedule)

    @property
    def missing(self) -> int:
        """Directions of the movement that no sample accounts for."""
        visits = self.found.samples.number * self.trajectory.schedule.epochs
        return self.excess + max(0, self.trajectory.observation.rank - visits)

    @property
    def misfit(self) -> float:
        return max(self.found.misfit, 1.0)

    @cached_property
    def polisher(self) -> Polisher:
        samples, rank = self.found.samples, self.trajectory.observation.rank
        polisher = Polisher(self.trajectory, samples, max(0, rank - samples.number))
        polisher.reweighted(polisher.start(samples))
        return polisher

    @cached_property
    def here(self) -> Here:
        return Here(self.polisher, self.polisher.start(self.found.samples))

    @cached_property
    def P(self) -> Tensor:
        return self.polisher.walk(self.here.at).P


def judge(case: StepsAnswer) -> Claim:
    """The claim that the evidence about this answer allows."""
    predicted = float(case.found.errors.nan_to_num(nan=torch.inf).max())
    doubts: list[str] = []
    if not case.found.explains:
        doubts.append(
            f"The answer misses the movement by {case.found.misfit:.1e} times its noise: it is not "
            "a solution."
        )
    elif case.complete and predicted < TRUSTED_ERROR:
        doubts = [
            *_doubt_misfit(case, predicted),
            *_doubt_number(case, predicted),
            *_doubt_samples(case),
        ]
        doubts = doubts or _doubt_departures(case)
    return grant(
        Evidence(
            case.found.errors,
            explained=case.complete,
            confirmations=case.confirmations,
            missing=case.missing,
            doubts=doubts,
            assumed=["The claim stands on the declared local training."],
            counted=count(
                case.found.samples.T,
                case.found.samples.labels,
                case.found.errors,
                case.knowledge,
                steps=case.steps,
            ),
        )
    )


def _doubt_misfit(case: StepsAnswer, predicted: float) -> list[str]:
    """A residual of several times the noise is no noise, and may shift the answer by more than
    noise would."""
    misfit, added = case.found.misfit, case.trajectory.observation.noise.added
    if predicted * case.misfit**2 < TRUSTED_ERROR and not (added and misfit > MEASURED):
        return []
    return [
        (
            f"The answer misses the movement by {misfit:.0f} times its noise: it may be farther "
            "off than predicted."
        )
    ]


def _doubt_number(case: StepsAnswer, predicted: float) -> list[str]:
    """The doubt that there were more samples: in epochs that cannot be counted, alike, or without a
    trace."""
    if case.number_known:
        return []
    doubts = []
    schedule, samples = case.trajectory.schedule, case.found.samples
    if schedule.epochs > 1 or case.trajectory.observation.rank != schedule.samples:
        doubts.append(
            "The movement does not tell how many samples there were; declare the batch size."
        )
    if (
        case.trajectory.observation.grad_b is None
        and case.trajectory.observation.rank >= case.head.W.shape[1]
    ):
        doubts.append(
            "Without the bias's movement there may be more samples than the head has inputs."
        )
    doubts += doubt_spread(max(_hidden_spread(case, step) for step in range(len(samples.counts))))
    if case.trajectory.rate_free and predicted >= COUNTED:
        doubts.append(
            f"A sample that sends {100 * predicted:.1g} % of the movement may be missing: others "
            "would make up for it."
        )
    if float((case.P - case.polisher.Y).abs().max()) < SURE:
        doubts.append(
            "The model is so sure of every sample that one without a trace may be missing."
        )
    return doubts


def _hidden_spread(case: StepsAnswer, step: int) -> float:
    """Of the samples of one step, at the weights that it saw."""
    counts, trajectory, at = case.found.samples.counts, case.trajectory, case.here.at
    first = sum(counts[:step])
    rows = slice(first, first + counts[step])
    before, whole = slice(0, first), case.polisher.walk(at)
    walk = trajectory.walk(counts[:step], whole.T[before], case.polisher.Y[before], at[-1].exp())
    observation = replace(trajectory.observation, K=walk.K, b=walk.b)
    alpha = float(at[-1].exp()) * trajectory.weight_of(step)
    moved = whole_movement(case.head, case.training)
    return hidden_spread(moved, observation, whole.T[rows], case.polisher.Y[rows], alpha)


def _doubt_samples(case: StepsAnswer) -> list[str]:
    """The doubt about samples that nothing holds, and about labels where the softmax does not
    bend."""
    doubts = []
    if bool(runaways(case.trajectory.observation, case.found.samples.T).any()):
        doubts.append("A sample came out far longer than the others, as false ones do.")
    if case.knowledge.labels is None and float((1 - case.P.amax(1)).max()) <= SATURATED:
        doubts.append(
            "The model answers every sample found with one class for certain: mixed labels would "
            "look the same here."
        )
    return doubts


def _doubt_departures(case: StepsAnswer) -> list[str]:
    """The doubt that something which was declared, or taken for granted, was different, and nothing
    tells."""
    m = case.found.samples.number

    def departed(theta: Tensor) -> Tensor:
        return _residual(
            case, trajectory=replace(case.trajectory, departure=Departure(theta[:m], theta[m]))
        )

    shifted = torch.func.jacfwd(departed)(case.here.at.new_zeros(m + 1)).T
    weights, temperature = torch.cat([shifted[:m], _momentum(case)]), shifted[m:]
    doubts = []
    if _added_error(case, weights) > TRUSTED:
        doubts.append(
            "Samples are taken to weigh the same, and the momentum to be as declared, and nothing "
            "tells: with steps of other sizes or rates features would be others."
        )
    if case.knowledge.loss is None and _added_error(case, temperature) > TRUSTED:
        doubts.append(
            "A temperature of the softmax would leave the same movement with features of another "
            "length, and nothing tells."
        )
    return doubts or _doubt_mixing(case)


def _residual(
    case: StepsAnswer, *, trajectory: Trajectory | None = None, Y: Tensor | None = None
) -> Tensor:
    """The equations at the answer, had something been different."""
    other = copy.copy(case.polisher)
    other.trajectory = trajectory or case.trajectory
    other.Y = case.polisher.Y if Y is None else Y
    return other.equations(case.here.at, case.here.left, case.here.right)


def _momentum(case: StepsAnswer) -> Tensor:
    """(1, …) per unit of the momentum, by a difference: it is a number of the schedule; none where
    there is one step."""
    schedule = case.trajectory.schedule
    if schedule.steps < 2:
        return case.here.residual[None][:0]
    moved = replace(case.training, momentum=min(case.training.momentum + _MOMENTUM, 0.9999))
    other = replace(case.trajectory, schedule=Schedule.of(moved, schedule.sizes))
    changed = _residual(case, trajectory=other) - case.here.residual
    return changed[None] / (moved.momentum - case.training.momentum)


def _doubt_mixing(case: StepsAnswer) -> list[str]:
    """The doubt that two samples' labels are a mixture of both, where they were assumed to be
    hard."""
    labels, T, Y = case.found.samples.labels, case.found.samples.T, case.polisher.Y
    if case.knowledge.labels is not None:
        return []
    distances = torch.cdist(T, T).masked_fill(labels[:, None] == labels, torch.inf)
    for i, k in enumerate(distances.argmin(1).tolist()):
        if not float(distances[i, k]) < torch.inf:
            continue
        # one label turns into the other, and the two are exchanged
        both = torch.zeros(2, *Y.shape).to(Y)
        both[:, i], both[1, k] = Y[k] - Y[i], Y[i] - Y[k]

        def moved(by: Tensor, both: Tensor = both) -> Tensor:
            return _residual(case, Y=Y + (by[:, None, None] * both).sum(0))

        # p does not depend on targets in their own step
        D = torch.func.jacfwd(moved)(case.here.at.new_zeros(2)).T
        pulled, moves = _followed(case, D)
        # None of the two unknowns is larger than 1.
        information = D @ D.T - pulled @ moves.T + case.misfit**2 * torch.eye(2).to(D)
        least = torch.linalg.eigvalsh(0.5 * (information + information.T))[0].clamp_min(1e-30)
        if case.misfit * float(least.rsqrt()) > TRUSTED_MIXING:
            return [f"Labels {i} and {k} may be mixed with each other: it would hardly show."]
    return []


def _followed(case: StepsAnswer, unit: Tensor) -> tuple[Tensor, Tensor]:
    """(n, …) JᵀD and how the unknowns follow n columns; none is larger than it came out."""
    pulled = unit @ case.here.jacobian
    return pulled, moved_by(
        case.here.normal_matrix, prior_of(case.found.samples.T, case.misfit, 1), pulled
    )


def _added_error(case: StepsAnswer, D: Tensor) -> float:
    """The largest relative error of a sample's features that the unknowns behind the columns D
    leave open."""
    norms = D.norm(dim=1).clamp_min(1e-300)
    unit = D / norms[:, None]
    pulled, moves = _followed(case, unit)
    along = unit @ case.here.residual.flatten() - moves @ (
        case.here.residual.flatten() @ case.here.jacobian
    )
    return left_open(unit, norms, pulled, moves, along, case.misfit, case.found.samples.T)
