"""What may be claimed about samples that were read out of two spans: the evidence, laid before
`certify.claim`.

The roots know nothing of labels, of the loss, or of the gradient's scale. So these are checks of
their own: one loss must explain the gradients at the logits, and the samples, sent through the
layers again, must explain every tensor but for its rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unsum.certify.claim import FALSE_ERROR, Claim, Evidence, grant
from unsum.certify.counted import count
from unsum.certify.doubts.replay import doubt_drowned, doubt_several, doubt_unexplained
from unsum.engine.found import FoundPoints
from unsum.engine.replay import tolerance
from unsum.engine.twins import FAR
from unsum.knowledge import Knowledge
from unsum.leak import Counted
from unsum.local_training import LocalTraining
from unsum.network.chain import Shape
from unsum.peel.method import MARGIN
from unsum.peel.replay import PlayedBatch, Replayed, replay
from unsum.spans.targets import LossReading
from unsum.spans.training import Unrolled, Visited

# times what rounding the weights of all steps should leave; over thousands of entries it hardly
# varies
_ROUNDED = 2.0
_LENGTHS = (
    "Without biases a temperature in the loss looks like longer samples; declare the loss to have "
    "lengths vouched for."
)
_MIRRORED = 8  # samples that are mirrored one by one
_MOVED, _STAYS, _FARTHEST = (
    30.0,
    1e-3,
    5e-3,
)  # predicted errors and parts of a sample that the last solve may move it by
# of the gradients at the logits: what a loss that is the right one leaves at most
_LOSS_LEAVES = 1e-3


@dataclass(frozen=True)
class Answer:
    """Samples with what the head says about them, and what they leave of the gradients when they
    are played again."""

    roots: FoundPoints
    X: Tensor  # (R, n), the roots' or better ones
    errors: Tensor
    reading: LossReading
    played: Replayed
    missing: int
    lengths_open: bool = False  # the spans alone do not tell how long samples are

    @property
    def moved(self) -> Tensor:
        """(R,) whether the last solve took a sample farther from where the spans have it than they
        allow."""
        far = (self.X - self.roots.points).norm(dim=1) / self.X.norm(dim=1).clamp_min(1e-300)
        return ~(far < (_MOVED * self.roots.errors + _STAYS).clamp_max(_FARTHEST))

    @property
    def left(self) -> float:
        """What all samples leave of a gradient; a part of them explains nothing as a whole."""
        unexplained = self.played.replay.unexplained
        return 1.0 if self.missing or math.isnan(unexplained) else unexplained


def judge(answer: Answer, knowledge: Knowledge, seed: int) -> Claim:
    """The claim about all samples."""
    replayed, reading = answer.played, answer.reading
    limit = tolerance(*(step.grad_W.dtype for step in replayed.batch.steps))
    explained = replayed.replay.explains
    doubts = (
        []
        if answer.missing
        else [*doubt_reading(reading, knowledge), *doubt_number(reading, knowledge)]
    )
    if answer.lengths_open and knowledge.loss is None:
        doubts.append(_LENGTHS)
    if bool(answer.moved.any()):
        doubts.append(
            "The spans and the sum of all samples disagree about one: samples may weigh "
            "differently than was assumed."
        )
    if not answer.missing:
        doubts += doubt_unexplained(replayed.replay, "samples")
    if explained and not doubts:
        doubts += doubt_mirror(replayed, answer.errors, limit, knowledge)
        doubts += _doubt_samples(replayed, reading.copies, knowledge, seed)
    evidence = Evidence(
        MARGIN * answer.errors,
        explained=explained,
        confirmations=int(answer.roots.hits.min()) - 1,
        missing=answer.missing,
        doubts=doubts,
        assumed=[f"The claim stands on the declared loss: {reading.loss.name}."]
        if knowledge.loss
        else [],
        counted=count(answer.X, reading.labels, answer.errors, knowledge, copies=reading.copies),
    )
    return grant(evidence)


def doubt_reading(reading: LossReading, knowledge: Knowledge) -> list[str]:
    if not reading.misfit < _LOSS_LEAVES:
        return [
            f"No loss that is known here explains the gradients at the logits ({reading.loss.name} "
            f"leaves {min(reading.misfit, 1.0):.1%}); declare the loss if it was another one."
        ]
    if reading.copies is None:
        return [
            "Samples weigh differently, and not as copies would: class weights, or another loss."
        ]
    if knowledge.loss is None and reading.loss.name != "cross-entropy" and reading.Y.shape[1] > 1:
        return [f"The loss looks like {reading.loss.name}; declare it to have labels vouched for."]
    Y = reading.Y
    if knowledge.labels is None and float((Y - Y.round()).abs().max()) > 1e-6:
        return ["Labels came out soft; at another scale other ones would send the same."]
    if knowledge.labels is None and reading.smoothing_open:
        return ["Smoothed labels at another scale would send the same gradient, and nothing tells."]
    if knowledge.labels is None and not reading.off < FALSE_ERROR:
        return [
            (
                f"A label would have to be off by {min(reading.off, 1.0):.2g}: it is none that was "
                "assumed."
            )
        ]
    return []


def doubt_number(reading: LossReading, knowledge: Knowledge) -> list[str]:
    said, copies = knowledge.known_batch_size, reading.copies
    found = len(reading.Y) if copies is None else int(copies.sum())
    return (
        []
        if said in (None, found)
        else [f"The batch was said to hold {said} samples, but {found} were found."]
    )


def doubt_mirror(
    replayed: Replayed, errors: Tensor, limit: float, knowledge: Knowledge
) -> list[str]:
    """Two answers, yes and no: where no bias tells them apart and activations are odd, a sample's
    negative with the other label sends the same. Each is tried, and all at once."""
    batch = replayed.batch
    two = batch.loss.name == "cross-entropy" and batch.Y.shape[1] == 2
    if knowledge.labels is not None or not (two or batch.loss.many_labels):
        return []
    everybody = torch.ones(len(batch.X), dtype=torch.bool, device=batch.X.device)
    singles = torch.eye(len(batch.X), dtype=torch.bool, device=batch.X.device)[:_MIRRORED]
    for turned in (everybody, *singles):
        chosen = turned[:, None]
        mirrored = replace(
            batch,
            X=torch.where(chosen, -batch.X, batch.X),
            Y=torch.where(chosen, 1 - batch.Y, batch.Y),
        )
        if replay(mirrored, errors).replay.unexplained < limit:
            return [
                "Without biases, negatives of samples with the other label send the same gradient."
            ]
    return []


def _doubt_samples(
    replayed: Replayed,
    copies: Tensor | None,
    knowledge: Knowledge,
    seed: int,
    *,
    weighed: bool = False,
) -> list[str]:
    """Samples that are drowned by what is left, or may be several that look like one.

    `weighed`: the samples share a weight that is known, so all of them are several, equally often,
    or none is.
    """
    drowned = doubt_drowned(replayed.contributions())
    if drowned:
        return drowned
    hidden = ~(replayed.twins(seed) > FAR)
    if weighed and not bool(hidden.all()):  # a sample that counts twice may be two that are alike
        hidden &= torch.ones_like(hidden) if copies is None else copies > 1
    return doubt_several(hidden, knowledge, copies)


@dataclass(frozen=True)
class UnrolledAnswer:
    """Samples of unrolled local steps; `groups` (visits,) says which visits are of one sample,
    `missing` how many have none."""

    found: Unrolled
    training: LocalTraining
    groups: Tensor
    missing: int
    mean: bool
    inputs_stay: bool  # a sample that is met again reads the same

    @property
    def sizes_told(self) -> bool:
        """Whether weights tell how many samples a step has: they share what the rate and the
        momentum make of it."""
        return self.found.even and self.training.learning_rate is not None

    def counted(self, knowledge: Knowledge) -> Counted:
        """How many samples the visits are of."""
        seen = self.found.seen
        X, errors = (
            torch.cat([getattr(one.roots, name) for one in seen]) for name in ("points", "errors")
        )
        labels, copies = (
            torch.cat(parts)
            for parts in ([one.labels for one in seen], [self.copies(one) for one in seen])
        )
        if self.inputs_stay:
            first = self.firsts
            return count(X[first], labels[first], errors[first], knowledge, copies=copies[first])
        steps = torch.cat([torch.full_like(one.labels, step) for step, one in enumerate(seen)])
        return count(X, labels, errors, knowledge, copies=copies, steps=steps)

    @property
    def firsts(self) -> Tensor:
        """The first visit of each sample."""
        return torch.stack(
            [(self.groups == group).nonzero()[0, 0] for group in self.groups.unique()]
        )

    def copies(self, seen: Visited) -> Tensor:
        """(R,) how often each sample is in its step."""
        return (seen.weights / seen.weights.min()).round().long()


def judge_steps(answer: UnrolledAnswer, knowledge: Knowledge, seed: int) -> Claim:
    """The claim about the samples of all steps: played step by step, they leave no more than
    rounded weights do."""
    found = answer.found
    explained = answer.missing <= 0 and found.unexplained < _ROUNDED
    doubts = [] if answer.missing > 0 else _doubt_sizes(answer, knowledge)
    if (
        answer.missing <= 0
        and knowledge.loss is None
        and all(step.b is None for step in found.left)
    ):
        doubts.append(_LENGTHS)
    if answer.missing <= 0 and not explained:
        doubts.append(
            f"Trained again with these samples, the weights differ by {found.unexplained:.1g} "
            "times what rounding makes."
        )
    if explained and not doubts:
        doubts += _doubt_steps(answer, knowledge, seed)
    declared = replace(answer.training, steps=len(found.seen)).described()
    evidence = Evidence(
        MARGIN * torch.cat([seen.roots.errors for seen in found.seen]),
        explained=explained,
        confirmations=min(int(seen.roots.hits.min()) for seen in found.seen) - 1,
        missing=max(0, answer.missing),
        doubts=doubts,
        assumed=[f"The claim stands on what is declared. {declared}"],
        counted=answer.counted(knowledge),
    )
    return grant(evidence)


def _doubt_sizes(answer: UnrolledAnswer, knowledge: Knowledge) -> list[str]:
    number = (
        int(answer.groups.max())
        + 1
        + sum(int((answer.copies(seen) - 1).sum()) for seen in answer.found.seen)
    )
    said, known = knowledge.known_batch_size, answer.training.learning_rate is not None
    if said not in (None, number):
        return [f"The client was said to hold {said} samples, but {number} were found."]
    if known and answer.mean and not answer.found.even:
        return ["The samples of a step do not add up to the learning rate that was declared."]
    if knowledge.labels is None and not answer.sizes_told and len(answer.found.left[-1].W) == 2:
        return [
            "Two classes and an unknown rate: smoothed labels at another rate would send the same."
        ]
    return []


def _doubt_steps(answer: UnrolledAnswer, knowledge: Knowledge, seed: int) -> list[str]:
    """The doubts about single samples, asked of every step with all that is left of the change."""
    found = answer.found
    for number, (seen, met) in enumerate(zip(found.seen, found.met, strict=True), start=1):
        put = seen.contributions(met.steps)
        steps = [
            replace(
                step,
                grad_W=left.grad_W + by_W,
                grad_b=None if left.grad_b is None else left.grad_b + by_b,
            )
            for step, left, (by_W, by_b) in zip(met.steps, found.left, put, strict=True)
        ]
        Y = torch.nn.functional.one_hot(seen.labels, len(steps[-1].W)).to(seen.roots.points)
        shapes: list[Shape] = [(step.W.shape[1],) for step in steps]
        batch = PlayedBatch(steps, seen.roots.points, Y, seen.weights[:, None], shapes)
        told = replace(
            knowledge,
            labels=None,
            batch_size=None if knowledge.known_batch_size is None else len(seen),
        )
        replayed = replay(batch, seen.roots.errors)
        limit = _ROUNDED * max(replayed.replay.unexplained, tolerance())
        doubts = doubt_mirror(replayed, seen.roots.errors, limit, knowledge)
        doubts += _doubt_samples(
            replayed, answer.copies(seen), told, seed, weighed=answer.sizes_told
        )
        if doubts:
            return [f"Step {number}: {doubt}" for doubt in doubts]
    return []
