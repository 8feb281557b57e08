"""What may be claimed about pictures: the evidence, laid before `certify.claim`.

The solve used two or three tensors. So these are checks of their own: one loss must explain the
gradients at the logits, and the pictures, sent through the whole network again, must explain every
other tensor but for its rounding. A mixture of two pictures fails there: it is no picture whose
gradient was sent.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.certify.claim import FALSE_ERROR, Claim, Evidence, grant
from unsum.certify.counted import count
from unsum.certify.doubts.replay import doubt_invisible, doubt_missing, doubt_several
from unsum.engine.twins import FAR, Passed, SentLayers, amplification, largest
from unsum.knowledge import Knowledge
from unsum.peel.method import MARGIN
from unsum.spans.judge import doubt_number, doubt_reading
from unsum.spans.maps.twins import assumed
from unsum.spans.targets import LossReading
from unsum.spans.tokens.replay import PlayedPictures, Player

# [directions] in which errors and twins are sent. Chosen by: arbitrary budget; networks are large.
_DRAWS = 2


@dataclass(frozen=True)
class PictureAnswer:
    """Pictures (B, c, h, w) with predicted relative errors (B,), what the head says about them, and
    what they leave."""

    pictures: Tensor
    rows: Tensor  # (B, N, n) their patches
    errors: Tensor
    reading: LossReading
    played: PlayedPictures
    player: Player
    used: tuple[str, ...]  # tensors that the solve used
    # of the gradient, compared with the mean over the pictures; None where nothing tells
    scale: float | None


def judge(answer: PictureAnswer, knowledge: Knowledge, seed: int) -> Claim:
    """The claim about all pictures."""
    replay = answer.played.replay
    explained = replay.explains
    doubts = [*doubt_reading(answer.reading, knowledge), *doubt_number(answer.reading, knowledge)]
    if not explained:
        doubts.append(
            f"Sent through the network again, the pictures leave {replay.excess:.1g} times what "
            f"rounding explains of the gradient of {replay.worst!r}."
        )
    errors = MARGIN * answer.errors
    if explained and not doubts:
        doubts += doubt_invisible(replay.shows().any(1), "Picture")
        doubts += doubt_missing(
            replay, len(answer.pictures), knowledge.known_batch_size, answer.scale
        )
        doubts += _doubt_twins(answer, knowledge, seed)
        errors = _worst_errors(answer, seed) * errors
    return grant(
        Evidence(
            errors,
            explained=explained,
            confirmations=replay.confirmations(answer.used),
            doubts=doubts,
            assumed=assumed(answer.reading.loss.name, knowledge),
            counted=count(
                answer.pictures,
                answer.reading.labels,
                answer.errors,
                knowledge,
                copies=answer.reading.copies,
            ),
        )
    )


def _worst_errors(answer: PictureAnswer, seed: int) -> Tensor:
    """(B,) how much larger features' relative errors are than pictures', where they are: changes of
    pictures are played."""
    generator, player = torch.Generator().manual_seed(seed + 1), answer.player.coarse()
    return amplification(lambda x: player.forward(x)[0], answer.pictures.float(), _DRAWS, generator)


def _doubt_twins(answer: PictureAnswer, knowledge: Knowledge, seed: int) -> list[str]:
    """Pictures that may be several, a hundredth from their mean."""
    reading, player = answer.reading, answer.player.coarse()
    Y, weights = reading.Y.float(), reading.weights.float()

    def play(pictures: Tensor) -> dict[str, Passed]:
        return player.pass_through(pictures, Y, weights, reading.loss)

    pictures = answer.pictures.float()
    at = play(pictures)
    left = {name: largest(answer.played.left[f"{name}.weight"].flatten(1)) for name in at}
    hidden = ~(SentLayers(pictures, at, left, play).twins(FALSE_ERROR, _DRAWS, seed + 4) > FAR)
    differ = "that differ by a hundredth"
    several = doubt_several(hidden, knowledge, reading.copies, differ, "Picture")
    if not several and knowledge.known_batch_size is None:
        # A twin of 4e-5 of its weight was missing beside a picture: it sends less than rounding,
        # and only the number tells of it.
        return [
            (
                "A picture that weighs next to nothing may be missing beside these; say the batch "
                "size if it is known."
            )
        ]
    return several
