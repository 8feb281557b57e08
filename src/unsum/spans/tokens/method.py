"""The separator for vision transformers: pictures out of the patch layer's gradient, certified by
the whole network's."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from unsum.certify.claim import grant_each, nothing
from unsum.equation.observation import observe
from unsum.errors import UnsumError
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.losses import Loss
from unsum.peel.method import MARGIN
from unsum.running.deadline import out_of_time
from unsum.running.progress import SILENT, Progress
from unsum.separate.method import SEPARATORS
from unsum.spans.targets import read_loss
from unsum.spans.tokens.judge import PictureAnswer, judge
from unsum.spans.tokens.network import PatchNetwork, find_patches
from unsum.spans.tokens.polish import polished
from unsum.spans.tokens.replay import PictureBatch, Player
from unsum.spans.tokens.search import directions
from unsum.spans.tokens.solve import Solved, by_positions, by_spans, deviations
from unsum.spans.tokens.unwind import by_tokens
from unsum.update import Update

# times what rounding explains of a tensor, a tenth of it: steps from farther away lead nowhere
_NEAR = 1e4
# of a label or a weight: what is this near to the usual is tried as if it were the usual
_NEARLY = 0.05
_POLISHES = 6  # Gauss–Newton steps: crowded batches need them all


@SEPARATORS.register(
    "tokens",
    summary=(
        "a vision transformer's picture out of its patch layer's gradient, certified by the whole "
        "network's (unsum)"
    ),
    needs=(
        "a vision transformer's first layers; one picture of fewer patches than channels, or half "
        "as many tokens in all"
    ),
)
def read_tokens(
    head: Head,
    knowledge: Knowledge,
    *,
    seed: int,
    model: nn.Module | None = None,
    update: Update | None = None,
    progress: Progress = SILENT,
    loss: Loss | None = None,
) -> Leak:
    """The pictures by one linear solve; labels, loss and scale from the head, given what it reads
    of them."""
    assert model is not None
    assert update is not None
    if update.training is not None and update.training.several_steps:
        raise UnsumError("'tokens' reads the gradient of one step; 'local-steps' follows several.")
    network = find_patches(model)
    _check_heard(head, network, update)
    device = head.W.device
    B = _samples(head, network, knowledge, update)
    if B == 1:
        solved = by_positions(network, update, device) or by_spans(network, update, device)
    else:
        progress.say("Telling the tokens apart")
        solved = by_tokens(network, update, B, device, seed, progress)
    progress.say("Playing the network again")
    player = Player.of(model, head.name, network, update, device)
    answer = answered(head, knowledge, player, network, update, solved, loss, progress)
    return _leak(head, answer, solved, knowledge, seed)


def _check_heard(head: Head, network: PatchNetwork, update: Update) -> None:
    if not bool(head.W.any()):
        raise UnsumError(
            "The head's weights are all zero, as torchvision builds them, so nothing below it gets "
            "a gradient in this round; after one step it does."
        )
    first = [
        name for name in (f"{network.name}.weight", *_readers(network)) if name in update.gradients
    ]
    if not first:
        raise UnsumError(
            "The update lacks the gradients of the patches and of the first attention: frozen "
            "layers say nothing; 'exact' reads the head."
        )


def _readers(network: PatchNetwork) -> tuple[str, ...]:
    return () if network.first is None else network.first.readers


def _samples(head: Head, network: PatchNetwork, knowledge: Knowledge, update: Update) -> int:
    """How many pictures: as was said; else as many as the head's gradient has directions, or the
    first MLP's for its tokens."""
    rank, known, block = observe(head, None).rank, knowledge.known_batch_size, network.block
    if (
        known is not None
        or rank <= 1
        or block is None
        or block.second.weight not in update.gradients
    ):
        return known or max(rank, 1)
    return max(rank, round(directions(block, update, head.W.device) / network.tokens))


def answered(
    head: Head,
    knowledge: Knowledge,
    player: Player,
    network: PatchNetwork,
    update: Update,
    solved: Solved,
    loss: Loss | None,
    progress: Progress,
    *,
    polish: bool = True,
) -> PictureAnswer:
    """The pictures with what the head says about them, moved until the whole gradient fits where it
    does not."""
    answer = _played(head, knowledge, player, network, update, solved, loss)
    for _ in range(_POLISHES if polish else 0):
        far = (
            not answer.played.replay.excess < _NEAR or solved.way == "position embedding"
        )  # known as well as it can be
        if far or answer.played.replay.explains or out_of_time("the last digits of pictures"):
            break
        progress.say("Fitting the whole gradient")
        batch, spread = _usual(answer), _spread(answer, solved)
        delta, replay = answer.played.delta, answer.played.replay
        moved = polished(network, player, batch, answer.rows, spread, delta, replay)
        error = max(solved.error, float((moved - answer.rows).norm() / moved.norm()))
        again = _played(
            head, knowledge, player, network, update, replace(solved, X=moved, error=error), loss
        )
        if not again.played.replay.excess < answer.played.replay.excess:
            break
        answer = again
    return answer


def _usual(answer: PictureAnswer) -> PictureBatch:
    """The pictures with whole labels of equal weight, where cross-entropy is all but that: pictures
    that are not yet known well make labels soft, and soft labels make up for what they are off.
    What comes of it is read anew."""
    reading = answer.reading
    Y, weights = reading.Y, reading.weights
    whole = torch.zeros_like(Y).scatter_(1, Y.argmax(1, keepdim=True), 1.0)
    if reading.loss.name == "cross-entropy" and float((Y - whole).abs().max()) < _NEARLY:
        Y, weights = (
            whole,
            weights.mean().expand(len(Y))
            if float(weights.std(correction=0)) < _NEARLY * float(weights.mean())
            else weights,
        )
    return PictureBatch(answer.pictures, Y, weights, reading.loss)


def _spread(answer: PictureAnswer, solved: Solved) -> Tensor:
    """(B, N) the deviation of each patch's numbers, as its place showed it, or the same for all."""
    if solved.spread is not None:
        return solved.spread
    rows = answer.rows
    return solved.error * rows.square().mean().sqrt() * torch.ones_like(rows[..., 0])


def _played(
    head: Head,
    knowledge: Knowledge,
    player: Player,
    network: PatchNetwork,
    update: Update,
    solved: Solved,
    loss: Loss | None,
) -> PictureAnswer:
    pictures = network.layout.pictures(solved.X)
    features, logits = player.forward(pictures)
    reading = read_loss(head, features, logits, loss, knowledge)
    played = player.play(pictures, reading.Y, reading.weights, reading.loss)
    errors = torch.full((len(pictures),), solved.error, dtype=torch.float64, device=pictures.device)
    if solved.way != "position embedding":  # which tells D itself, and how well X is known with it
        errors = torch.maximum(errors, deviations(network, update, played.delta, solved.X))
    told = update.reduction == "mean" and update.scale_known
    scale = float(reading.weights.sum()) * reading.loss.divisor(reading.Y[:1]) if told else None
    return PictureAnswer(pictures, solved.X, errors, reading, played, player, solved.used, scale)


def _leak(
    head: Head, answer: PictureAnswer, solved: Solved, knowledge: Knowledge, seed: int
) -> Leak:
    if not bool(answer.played.logits.isfinite().all()):
        return _none(
            head,
            (
                "The patches that were read are no numbers the network can take; this is no sign "
                "of safety."
            ),
        )
    claim = judge(answer, knowledge, seed)
    reading = answer.reading
    alpha = float(reading.weights.mean())
    plain = 1 / reading.loss.divisor(reading.Y) if head.reduction == "mean" else 1.0
    dtype = head.W.dtype if head.W.dtype in (torch.float32, torch.float64) else torch.float32
    return Leak(
        method="tokens",
        targets=reading.Y,
        logits=answer.played.logits,
        features=answer.played.features.to(dtype),
        residual=min(answer.played.replay.residual, 1.0),
        predicted_error=claim.predicted_error,
        exact=claim.exact,
        predicts=claim.predicts,
        counted=claim.counted,
        scale=alpha / plain,
        inputs=answer.pictures.to(dtype),
        inputs_exact=grant_each(MARGIN * answer.errors, above=claim.exact),
        loss=reading.loss.name,
        notes=[*claim.notes, _remark(solved)],
    )


def _remark(solved: Solved) -> str:
    patches = solved.X.shape[0] * solved.X.shape[1]
    ways = {
        "position embedding": (
            "the position embedding's gradient is what every patch sent, so one linear solve gives "
            "them"
        ),
        "spans": (
            "the rows that the first attention's gradients span hold every token, so one linear "
            "solve gives them"
        ),
        "tokens": (
            "the first MLP tells the batch's tokens apart, attention whose they are, and linear "
            "solves lead down to them"
        ),
    }
    gaps = (
        f" {solved.missing} more were not told apart, and are the mean of their picture's others."
        if solved.missing
        else ""
    )
    read = (
        f"{patches - solved.missing} patches were read out of the patch layer's gradient: "
        f"{ways[solved.way]}."
    )
    return read + gaps


def _none(head: Head, why: str) -> Leak:
    claim = nothing(why)
    C, H = head.W.shape
    empty = head.W.new_zeros(0, C, dtype=torch.float64)
    return Leak(
        "tokens",
        empty,
        empty,
        head.W.new_zeros(0, H),
        1.0,
        claim.predicted_error,
        claim.exact,
        notes=claim.notes,
    )
