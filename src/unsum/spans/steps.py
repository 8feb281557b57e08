"""Local training unrolled: the samples of every local step, out of the spans of the whole change of
weights.

A client that takes T steps sends  −Δ_l = Σ_t Σ_i w_ti δ_l,ti a_l,tiᵀ  for every layer l (less what
weight decay takes). The spans of Δ hold what all steps read, and a sample of the first step is a
root at the weights that were sent: samples of later steps met other weights, and are none. The
first step's samples and labels give its gradient, and this the weights of the second step, where
the second step's samples are the roots; and so on, until nothing is left of Δ.

Where a start ends beside a root, a sample of a later step is often near: such ends are the first
starts of the steps that follow.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from statistics import median

import torch
from torch import Tensor

from unsum.engine.budget import Budget
from unsum.engine.descend import Descent
from unsum.engine.found import FoundPoints
from unsum.engine.hunt import Hunt
from unsum.errors import UnsumError
from unsum.local_training import LocalTraining
from unsum.network.chain import Step
from unsum.running.deadline import out_of_time
from unsum.running.progress import SILENT, Progress
from unsum.separate.local_steps.movement import Schedule
from unsum.spans.basis import LayerSpan
from unsum.spans.labels import read_labels
from unsum.spans.roots import STARTS, Condition, descend, starts
from unsum.spans.search import roots_among, tried_starts
from unsum.spans.training import MetWeights, Unrolled, Visited, less

# that a round of starts is made for: one in five to one in thirty ends in a sample of the step at
# hand
_SAMPLES = 32
_STARTS = 256  # of a round of descents
# Six rounds, three of each kind, without a new sample, after which a step has no more.
# Chosen by: arbitrary budget.
_BUDGET = Budget(barren=6)
_UNTRIED = "further starts of a local step"
_POOL = 1024  # ends that later steps begin from
# times the misfit that noise leaves: a sample of this step; one of the next step may have thirty
_SLACK = 4.0
# relative distance of two weights of one step, or of a sum of weights from the learning rate
_ALIKE = 1e-2
_OFTEN = 8  # copies of a sample in one step at most
_MOST_STEPS = 4096  # whatever a client declares
_SEEN = 1e-3  # relative distance within which two visits are of one sample


@dataclass(frozen=True)
class Unrolling:
    """The search over steps: the change of weights, its two spans, and how the client trains."""

    change: list[Step]
    here: LayerSpan
    next: LayerSpan
    training: LocalTraining
    mean: bool  # the loss is a mean over a step's samples
    seed: int
    progress: Progress

    def run(self) -> Unrolled:
        """Step after step, until every direction has its sample, or a step has none."""
        training = self.training
        if training.momentum and training.learning_rate is None and training.steps is None:
            raise UnsumError(
                "With momentum 'spans' follows local steps only if it knows their rate or their "
                "number; declare one of them."
            )
        found, weights = Unrolled(self.change), MetWeights(self.change)
        pool = self.here.rows.new_zeros(0, self.change[0].W.shape[1])
        most = min(training.steps or _MOST_STEPS, _MOST_STEPS)
        while (
            len(found.seen) < most
            and found.visits < len(self.next)
            and not out_of_time("further local steps")
        ):
            seen, pool = self._step(found, weights, pool)
            if seen is None:
                break
            # of a step that lacks samples the gradient is not known
            last = self._lacking(found, seen)
            found, weights = self.taken(found, weights, seen)
            self.progress.part(min(found.visits, len(self.next)), len(self.next))
            if last:
                break
        return found

    def followed(self, steps: list[Visited]) -> Unrolled:
        """The same for samples that are known: what every step met, and what all of them leave."""
        found, weights = Unrolled(self.change), MetWeights(self.change)
        for seen in steps:
            found, weights = self.taken(found, weights, seen)
        return found

    def evened(self, found: Unrolled) -> Unrolled:
        """All steps with weights as their number makes them: η times how far the step's own
        movement reaches, over its samples.

        Where the rate is not known, it is what most steps say.
        """
        if not self.mean or not found.seen:
            return found
        reach = Schedule.of(replace(self.training, steps=len(found.seen)), (1,)).reach[-1].tolist()
        said = [
            float(seen.weights.sum()) / far for seen, far in zip(found.seen, reach, strict=True)
        ]
        rate = self.training.learning_rate or median(said)
        # trained otherwise, or a step lacks samples
        if max(abs(one / rate - 1) for one in said) > _ALIKE:
            return found
        steps = zip(found.seen, reach, strict=True)
        evened = [
            replace(seen, weights=seen.weights * (rate * far / seen.weights.sum()))
            for seen, far in steps
        ]
        return replace(self.followed(evened), even=True)

    def taken(
        self, found: Unrolled, weights: MetWeights, seen: Visited
    ) -> tuple[Unrolled, MetWeights]:
        """One step more: its samples taken out of what is left, and the weights after it."""
        put, reach = seen.contributions(weights.steps), self._reach(seen, len(found.seen))
        left = [less(step, *part) for step, part in zip(found.left, put, strict=True)]
        moved = [(by_W / reach, by_b / reach) for by_W, by_b in put]
        return Unrolled(left, [*found.seen, seen], [*found.met, weights]), weights.after(
            moved, self.training
        )

    def _reach(self, seen: Visited, step: int) -> float:
        """How often a step's own movement is in −Δ: more than once where a momentum repeats it."""
        training = self.training
        if training.momentum == 0:
            return 1.0
        if training.learning_rate is not None:
            sent = seen.weights.sum() if self.mean else seen.weights.median()
            return float(sent) / training.learning_rate
        return sum(training.momentum**i for i in range((training.steps or 0) - step))

    def _step(
        self, found: Unrolled, weights: MetWeights, pool: Tensor
    ) -> tuple[Visited | None, Tensor]:
        """(what the next step saw, ends for later steps); None where no root is a sample."""
        whole = Condition.of(weights.steps[0], self.here, self.next)
        generator = torch.Generator().manual_seed(self.seed + len(found.seen))
        rest = self.rest(found, weights, whole)
        step = _StepHunt(
            0, _BUDGET, _UNTRIED, SILENT, self, found, weights, pool, generator, whole, rest
        )
        roots = step.run(FoundPoints.none(whole.step.W))
        return step.seen, _apart(torch.cat([pool[:0], *step.near]), roots)[:_POOL]

    def ends(
        self, condition: Condition, pool: Tensor, turn: int, generator: torch.Generator
    ) -> Descent:
        """Ends of the pool at first, then of starts by turns with reflections and without.

        Reflections are faster, but where steps are short they arrive at samples of any step.
        """
        if turn == 0 and len(pool):
            return descend(condition, condition.unknowns_of(pool))
        if turn % 2:
            s = starts(condition, _STARTS, generator, rows=turn < 2)
            return descend(condition, s)
        return tried_starts(condition, _SAMPLES, generator, first=turn < 2)

    def whole(self, found: Unrolled, seen: Visited | None) -> bool:
        """Whether a step has all samples that it should have, each found twice."""
        return (
            seen is not None
            and int(seen.roots.hits.min()) > 1
            and self._lacking(found, seen) is False
        )

    def _lacking(self, found: Unrolled, seen: Visited) -> bool | None:
        """Whether a step lacks samples that it should have; None where nothing tells.

        Under a mean all together weigh η, times how far the step reaches. Else a step has as many
        as declared, or as the step before it.
        """
        training = self.training
        told = training.steps or not (training.momentum or training.weight_decay)
        if self.mean and training.learning_rate and told:
            reach = (
                1.0
                if training.steps is None
                else float(Schedule.of(training, (1,)).reach[-1, len(found.seen)])
            )
            return float(seen.weights.sum()) < (1 - _ALIKE) * training.learning_rate * reach
        number = training.batch_size or (len(found.seen[-1]) if found.seen else None)
        return None if number is None else len(seen) < min(number, len(self.next) - found.visits)

    def rest(self, found: Unrolled, weights: MetWeights, whole: Condition) -> Condition:
        """The condition without the samples that were found.

        What a later epoch sees again stays in the first layer's span, which then has fewer
        directions than there are visits.
        """
        if not found.seen:
            return whole
        passes = [seen.passes(met.steps) for seen, met in zip(found.seen, found.met, strict=True)]
        spans = [self.here, self.next]
        for i in range(2) if len(self.here) == len(self.next) else (1,):
            read, delta = (torch.cat([one[side][i] for one in passes]) for side in (0, 1))
            spans[i] = spans[i].without(delta, read, max(1, len(spans[i]) - found.visits))
        return Condition.of(weights.steps[0], spans[0], spans[1])

    def labeled(self, whole: Condition, weights: MetWeights, roots: FoundPoints) -> Visited | None:
        """Roots read again in the whole spans, with labels and weights; what weighs differently is
        no sample of this step."""
        if len(roots) == 0:
            return None
        read = descend(whole, whole.unknowns_of(roots.points))
        again = roots_among(whole, read, _SLACK)[0].distinct().confirmed_by(roots)
        if len(again) == 0:
            return None
        labels, shares = read_labels(weights.steps, self.here, self.next, again.points)
        ratios = shares / shares.median()
        times = ratios.round().clamp(1, _OFTEN)
        kept = (ratios / times - 1).abs() < _ALIKE
        if not bool(kept.any()):
            return None
        base = float((shares / times)[kept].median())
        return Visited(again, labels, base * times)[kept]


@dataclass
class _StepHunt(Hunt[FoundPoints]):
    """The samples of the next step; ends beside them are starts of later steps."""

    search: Unrolling
    found: Unrolled
    weights: MetWeights
    pool: Tensor
    generator: torch.Generator
    whole: Condition
    condition: Condition
    seen: Visited | None = None
    near: list[Tensor] = field(default_factory=list)

    def round(self, found: FoundPoints, barren: int) -> FoundPoints:  # noqa: ARG002
        ends = self.search.ends(self.condition, self.pool, len(self.near), self.generator)
        self.near.append(self.condition.inputs(ends.s[ends.misfit < STARTS.near]))
        return roots_among(self.condition, ends)[0]

    def joined(self, found: FoundPoints, new: FoundPoints) -> FoundPoints:
        roots = super().joined(found, new)
        self.seen = self.search.labeled(self.whole, self.weights, roots)
        return roots

    def complete(self, found: FoundPoints) -> bool:  # noqa: ARG002
        return self.search.whole(self.found, self.seen)

    def ended(self, barren: int, idle: float) -> bool:
        """Samples of several steps are in the way of each other: both must be exhausted."""
        return barren >= self.budget.barren and idle >= self.budget.patient_seconds

    def deflate(self, found: FoundPoints, *, gained: bool) -> None:  # noqa: ARG002
        """What was found twice is in the way of what was not."""
        sure = None if self.seen is None else self.seen[self.seen.roots.hits > 1]
        if gained and sure:
            after = self.search.taken(self.found, self.weights, sure)[0]
            self.condition = self.search.rest(after, self.weights, self.whole)


def _apart(X: Tensor, roots: FoundPoints) -> Tensor:
    """Ends that are none of the samples found."""
    return X[FoundPoints.unranked(X).apart_from(roots, _SEEN, blur=0.0)]
