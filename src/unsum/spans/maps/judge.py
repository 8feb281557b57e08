"""What may be claimed about maps: the evidence, laid before `certify.claim`.

The search used two convolutions' row spaces alone. So these are checks of their own: one loss must
explain the gradients at the logits, and the maps, sent through everything above them again, must
explain every tensor but for its rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.certify.claim import Claim, Evidence, grant
from unsum.certify.counted import count
from unsum.certify.doubts.replay import doubt_unexplained
from unsum.engine.twins import Passed, SentLayers, amplification, largest
from unsum.knowledge import Knowledge
from unsum.peel.method import MARGIN
from unsum.running.deadline import out_of_time
from unsum.spans.judge import doubt_number, doubt_reading
from unsum.spans.maps.tail import PlayedTail, Tail
from unsum.spans.maps.twins import UNJUDGED, assumed, doubt_samples
from unsum.spans.targets import LossReading

_DRAWS = 4  # [directions] in which errors are sent. Chosen by: arbitrary budget.
# times the share of a tensor that noise leaves: maps erred by up to 1.3 times that share
_NOISY = 3.0


@dataclass(frozen=True)
class MapAnswer:
    """Maps (B, C, h, w) with predicted relative errors (B,), what the head says about them, and
    what they leave."""

    maps: Tensor
    errors: Tensor
    hits: Tensor
    reading: LossReading
    played: PlayedTail
    tail: Tail
    missing: int
    lengths_open: bool  # nothing tells how long maps are


def judge(answer: MapAnswer, knowledge: Knowledge, seed: int) -> Claim:
    """The claim about all samples."""
    played = answer.played
    replay, explained = played.replay, played.replay.explains
    doubts = [*doubt_reading(answer.reading, knowledge), *doubt_number(answer.reading, knowledge)]
    if answer.lengths_open:
        doubts.append("Without biases and norms the lengths of samples are open.")
    doubts += doubt_unexplained(replay, "maps")
    if explained and not doubts and not answer.missing:
        doubts += doubt_samples(_sent(answer), answer.reading.copies, knowledge, seed)
    errors = MARGIN * feature_errors(answer, seed)
    return grant(
        Evidence(
            errors if explained else at_least(errors, replay.unexplained),
            explained=explained,
            confirmations=int(answer.hits.min()) - 1,
            missing=answer.missing,
            doubts=doubts,
            assumed=assumed(answer.reading.loss.name, knowledge),
            counted=count(
                answer.maps,
                answer.reading.labels,
                answer.errors,
                knowledge,
                copies=answer.reading.copies,
            ),
        )
    )


def at_least(errors: Tensor, unexplained: float) -> Tensor:
    """Predicted errors where the client's noise, or its own rounding, is in the gradient: samples
    that leave so much of it unexplained may err by a few times as much, whatever their equations
    say."""
    return errors.clamp_min(_NOISY * unexplained if unexplained == unexplained else torch.inf)


def feature_errors(answer: MapAnswer, seed: int) -> Tensor:
    """(B,) relative errors of the features, or of the maps where these are larger: changes of the
    maps are played."""
    generator = torch.Generator().manual_seed(seed + 1)
    maps, errors = answer.maps, answer.errors
    if not bool(errors.isfinite().all()):
        return errors
    if out_of_time(UNJUDGED):
        return torch.full_like(errors, torch.inf)
    tail = answer.tail.coarse()
    return errors * amplification(lambda x: tail.forward(x)[0], maps.float(), _DRAWS, generator)


def _sent(answer: MapAnswer) -> SentLayers:
    reading, coarse = answer.reading, answer.tail.coarse()

    def passed(played: PlayedTail) -> dict[str, Passed]:
        module = answer.tail.module
        return {
            name: Passed.of(module.get_submodule(name), played.read[name], played.sent[name])
            for name in answer.tail.convs
        }

    def play(maps: Tensor) -> dict[str, Passed]:
        return passed(coarse.play(maps, reading.Y.float(), reading.weights.float(), reading.loss))

    rests = ((name, answer.played.left[f"{name}.weight"]) for name in answer.tail.convs)
    left = {name: largest(rest.flatten(1)) for name, rest in rests}
    return SentLayers(answer.maps.float(), passed(answer.played), left, play)
