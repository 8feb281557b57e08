"""What may be claimed about samples that were read out of two spans: the evidence, laid before `certify.claim`.

The roots know nothing of labels, of the loss, or of the gradient's scale. So these are checks of their own: one loss must explain
the gradients at the logits, and the samples, sent through the layers again, must explain every tensor but for its rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.certify.claim import Claim, Evidence, grant
from unsum.certify.question import name_some
from unsum.knowledge import Knowledge
from unsum.peel.dense import rounding
from unsum.peel.method import MARGIN
from unsum.peel.replay import Replayed
from unsum.peel.walk import FAR
from unsum.spans.search import Roots
from unsum.spans.targets import LossReading

_LOSS_LEAVES = 1e-3  # of the gradients at the logits: what a loss that is the right one leaves at most


@dataclass(frozen=True)
class Answer:
    """Samples with what the head says about them, and what they leave of the gradients when they are played again."""

    roots: Roots
    X: Tensor  # (R, n), the roots' or better ones
    errors: Tensor
    reading: LossReading
    played: Replayed
    missing: int
    lengths_open: bool = False  # the spans alone do not tell how long samples are

    @property
    def left(self) -> float:
        """What all samples leave of a gradient; a part of them explains nothing as a whole."""
        return 1.0 if self.missing or self.played.unexplained != self.played.unexplained else self.played.unexplained


def judge(answer: Answer, knowledge: Knowledge, seed: int) -> Claim:
    """The claim about all samples."""
    replayed, reading = answer.played, answer.reading
    limit = max(rounding(torch.float32), *(rounding(step.grad_W.dtype) for step in replayed.batch.steps))
    explained = replayed.unexplained < limit  # NaN is not below
    doubts = [] if answer.missing else [*_doubt_reading(reading, knowledge), *_doubt_number(reading, knowledge)]
    if answer.lengths_open and knowledge.loss is None:
        doubts.append(
            "Without biases a temperature in the loss looks like longer samples; declare the loss to have lengths vouched for."
        )
    if not answer.missing and not explained:
        doubts.append(
            f"Sent through the layers again, the samples leave {replayed.unexplained:.0e} of a gradient unexplained."
        )
    if explained and not doubts:
        doubts += _doubt_samples(replayed, reading.copies, knowledge, seed)
    return grant(
        Evidence(
            MARGIN * answer.errors,
            explained=explained,
            confirmations=int(answer.roots.hits.min()) - 1,
            missing=answer.missing,
            doubts=doubts,
            assumed=[f"The claim stands on the declared loss: {reading.loss.name}."] if knowledge.loss else [],
        )
    )


def _doubt_reading(reading: LossReading, knowledge: Knowledge) -> list[str]:
    if not reading.misfit < _LOSS_LEAVES:
        return [
            f"No loss that is known here explains the gradients at the logits ({reading.loss.name} leaves "
            f"{min(reading.misfit, 1.0):.1%}); declare the loss if it was another one."
        ]
    if reading.copies is None:
        return ["Samples weigh differently, and not as copies would: class weights, or another loss."]
    if knowledge.loss is None and reading.loss.name != "cross-entropy" and reading.Y.shape[1] > 1:
        return [f"The loss looks like {reading.loss.name}; declare it to have labels vouched for."]
    Y = reading.Y
    if knowledge.labels is None and float((Y - Y.round()).abs().max()) > 1e-6:
        return ["Labels came out soft; at another scale other ones would send the same."]
    return []


def _doubt_number(reading: LossReading, knowledge: Knowledge) -> list[str]:
    said, copies = knowledge.known_batch_size, reading.copies
    found = len(reading.Y) if copies is None else int(copies.sum())
    return [] if said in (None, found) else [f"The batch was said to hold {said} samples, but {found} were found."]


def _doubt_samples(replayed: Replayed, copies: Tensor | None, knowledge: Knowledge, seed: int) -> list[str]:
    """Samples that are drowned by what is left, or may be several that look like one."""
    faint = (~(replayed.contributions() > FAR)).nonzero()[:, 0].tolist()
    if faint:
        return [f"Sample {name_some(faint)} sends little more to some layer than is left unexplained there."]
    hidden = ~(replayed.twins(seed) > FAR)
    if knowledge.known_batch_size is not None:  # who counts once is one; who counts twice may be two that are alike
        hidden &= torch.ones_like(hidden) if copies is None else copies > 1
    several = hidden.nonzero()[:, 0].tolist()
    if several:
        return [
            f"Sample {name_some(several)} may be several whose inputs differ by a few percent: these would look like one here"
            + ("." if knowledge.known_batch_size else "; say the batch size if it is known.")
        ]
    return []
