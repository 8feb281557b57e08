"""What may be claimed about pictures: the evidence, laid before `certify.claim`.

The solve used two or three tensors. So these are checks of their own: one loss must explain the gradients at the logits, and the
pictures, sent through the whole network again, must explain every other tensor but for its rounding. A mixture of two pictures
fails there: it is no picture whose gradient was sent.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.certify.claim import FALSE_ERROR, Claim, Evidence, grant
from unsum.certify.counted import count
from unsum.certify.doubts.replay import doubt_invisible, doubt_missing
from unsum.certify.question import name_some
from unsum.head import orthonormal_rows
from unsum.knowledge import Knowledge
from unsum.peel.method import MARGIN
from unsum.peel.walk import FAR
from unsum.spans.judge import doubt_number, doubt_reading
from unsum.spans.maps.twins import Passed, assumed, drawn, largest
from unsum.spans.targets import LossReading
from unsum.spans.tokens.replay import PlayedPictures, Player

_DRAWS = 2  # directions in which errors and twins are played: the network is large
_MOVED = 1e-3  # of a picture: what is played, for errors in proportion


@dataclass(frozen=True)
class PictureAnswer:
    """Pictures (B, c, h, w) with predicted relative errors (B,), what the head says about them, and what they leave."""

    pictures: Tensor
    rows: Tensor  # (B, N, n) their patches
    errors: Tensor
    reading: LossReading
    played: PlayedPictures
    player: Player
    used: tuple[str, ...]  # tensors that the solve used
    scale: float | None  # of the gradient, compared with the mean over the pictures; None where nothing tells


def judge(answer: PictureAnswer, knowledge: Knowledge, seed: int) -> Claim:
    """The claim about all pictures."""
    played, replay = answer.played, answer.played.replay
    explained = replay.explains
    doubts = [*doubt_reading(answer.reading, knowledge), *doubt_number(answer.reading, knowledge)]
    if not explained:
        doubts.append(
            f"Sent through the network again, the pictures leave {played.unexplained:.1g} times what rounding explains of the "
            f"gradient of {played.worst!r}."
        )
    errors = MARGIN * answer.errors
    if explained and not doubts:
        doubts += doubt_invisible(replay.shows().any(1), "Picture")
        doubts += doubt_missing(replay, len(answer.pictures), knowledge.known_batch_size, answer.scale)
        doubts += _doubt_twins(answer, knowledge, seed)
        errors = _worst_errors(answer, seed) * errors
    return grant(
        Evidence(
            errors,
            explained=explained,
            confirmations=_confirmations(answer),
            doubts=doubts,
            assumed=assumed(answer.reading.loss.name, knowledge),
            counted=count(
                answer.pictures, answer.reading.labels, answer.errors, knowledge, copies=answer.reading.copies
            ),
        )
    )


def _confirmations(answer: PictureAnswer) -> int:
    """Tensors that the solve did not use and that show every picture."""
    unused = torch.tensor([name not in answer.used for name in answer.played.left])
    everyone = answer.played.replay.shows().all(0).cpu()
    return int((everyone & unused).sum())


def _worst_errors(answer: PictureAnswer, seed: int) -> Tensor:
    """(B,) how much larger features' relative errors are than pictures', where they are: changes of pictures are played."""
    generator = torch.Generator().manual_seed(seed + 1)
    pictures, player = answer.pictures.float(), answer.player.coarse()
    features, worst = player.forward(pictures)[0], torch.ones_like(answer.errors)
    for _ in range(_DRAWS):
        moved = player.forward(pictures + drawn(pictures, _MOVED, generator))[0]
        change = (moved - features).norm(dim=1) / features.norm(dim=1).clamp_min(1e-30)
        worst = torch.maximum(worst, change.double() / _MOVED)
    return worst


def _doubt_twins(answer: PictureAnswer, knowledge: Knowledge, seed: int) -> list[str]:
    """Pictures that may be several, a hundredth from their mean: ½ (δ₊ − δ₋) ⊗ ½ (read₊ − read₋) is what they send besides.
    What of it lies outside all that is read and all δ, no other answer of as many pictures can take up. The layer that shows
    them best counts."""
    generator, reading = torch.Generator().manual_seed(seed + 4), answer.reading
    pictures, player = answer.pictures.float(), answer.player.coarse()
    Y, weights = reading.Y.float(), reading.weights.float()
    left = answer.played.left
    known = {
        name: [orthonormal_rows(part.flatten(0, 1).double()).float() for part in (one.patches, one.delta)]
        for name, one in player.pass_through(pictures, Y, weights, reading.loss).items()
    }
    rests = {name: largest(left[f"{name}.weight"].flatten(1)) for name in known}
    shown = []
    for _ in range(_DRAWS):
        d = drawn(pictures, FALSE_ERROR, generator)
        plus, minus = (player.pass_through(pictures + sign * d, Y, weights, reading.loss) for sign in (1, -1))
        each = []
        for name, bases in known.items():
            halves = (
                (plus[name].patches - minus[name].patches) / 2,
                (plus[name].delta - minus[name].delta) / 2,
            )
            beyond = (part - (part @ basis.T) @ basis for part, basis in zip(halves, bases, strict=True))
            each.append(Passed(*beyond).size / rests[name])
        shown.append(torch.stack(each).amax(0))
    hidden = ~(torch.stack(shown).amin(0) > FAR)
    if knowledge.known_batch_size is not None and reading.copies is not None:  # who counts once is one
        hidden &= reading.copies > 1
    several = hidden.nonzero()[:, 0].tolist()
    if not several and knowledge.known_batch_size is None:
        # A twin of 4e-5 of its weight was missing beside a picture: it sends less than rounding, and only the number tells of it.
        return ["A picture that weighs next to nothing may be missing beside these; say the batch size if it is known."]
    if not several:
        return []
    return [
        f"Picture {name_some(several)} may be several that differ by a hundredth: these would look like one here"
        + ("." if knowledge.known_batch_size else "; say the batch size if it is known.")
    ]
