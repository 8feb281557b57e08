"""Doubts about single samples: who is drowned by what is left of a gradient, and who may be several
that look like one."""

from __future__ import annotations

from torch import Tensor

from unsum.certify.claim import FALSE_ERROR
from unsum.certify.doubts.replay import doubt_drowned, doubt_several
from unsum.engine.twins import FAR, SentLayers
from unsum.knowledge import Knowledge
from unsum.running.deadline import out_of_time

UNJUDGED = "a closer look at what may be claimed"
_DRAWS = 4  # [directions] in which two samples are set apart. Chosen by: arbitrary budget.


def doubt_samples(
    sent: SentLayers,
    copies: Tensor | None,
    knowledge: Knowledge,
    seed: int,
) -> list[str]:
    """Samples that are drowned by what is left, or may be several that look like one."""
    if out_of_time(UNJUDGED):
        return [
            "Time was over before it was known whether a sample may be several that look like one."
        ]
    drowned = doubt_drowned(sent.contributions())
    if drowned:
        return drowned
    hidden = ~(sent.twins(FALSE_ERROR, _DRAWS, seed + 4) > FAR)
    several = doubt_several(hidden, knowledge, copies, "whose maps differ by a few percent")
    if several:
        return several
    if knowledge.known_batch_size is None:
        # Beside a sample, a twin of 1e-4 of its weight sends less than rounding: only the number of
        # samples tells of it.
        return [
            (
                "A sample that weighs next to nothing may be missing beside these; say the batch "
                "size if it is known."
            )
        ]
    return []


def assumed(loss: str, knowledge: Knowledge) -> list[str]:
    """What a claim stands on."""
    return [f"The claim stands on the declared loss: {loss}."] if knowledge.loss else []
