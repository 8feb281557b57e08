"""What may be claimed about maps: the evidence, laid before `certify.claim`.

The search used two convolutions' row spaces alone. So these are checks of their own: one loss must explain the gradients at the
logits, and the maps, sent through everything above them again, must explain every tensor but for its rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unsum.certify.claim import FALSE_ERROR, Claim, Evidence, grant
from unsum.certify.question import name_some
from unsum.head import orthonormal_rows
from unsum.knowledge import Knowledge
from unsum.peel.dense import rounding
from unsum.peel.method import MARGIN
from unsum.peel.walk import FAR
from unsum.spans.judge import doubt_number, doubt_reading
from unsum.spans.maps.tail import PlayedTail, Tail
from unsum.spans.targets import LossReading

_DRAWS = 4  # directions in which two samples are set apart, and in which errors are played
_MOVED = 1e-3  # of a map: what is played, for errors in proportion
_POWERS = 8  # steps to the largest singular value


@dataclass(frozen=True)
class MapAnswer:
    """Maps (B, C, h, w) with predicted relative errors (B,), what the head says about them, and what they leave."""

    maps: Tensor
    errors: Tensor
    hits: Tensor
    reading: LossReading
    played: PlayedTail
    tail: Tail
    missing: int
    homogeneous: bool  # no bias and no norm tells a sample's length or sign


def judge(answer: MapAnswer, knowledge: Knowledge, seed: int) -> Claim:
    """The claim about all samples."""
    played = answer.played
    limit = max(rounding(torch.float32), *(rounding(g.dtype) for g in answer.tail.gradients.values()))
    explained = played.unexplained < limit  # NaN is not below
    doubts = [*doubt_reading(answer.reading, knowledge), *doubt_number(answer.reading, knowledge)]
    if answer.homogeneous:
        doubts.append("Without biases and norms the lengths of samples, or their signs, are open.")
    if not explained:
        doubts.append(
            f"Sent through the layers again, the maps leave {played.unexplained:.0e} of the gradient of {played.worst!r}."
        )
    if explained and not doubts and not answer.missing:
        doubts += _doubt_samples(answer, knowledge, seed)
    return grant(
        Evidence(
            MARGIN * feature_errors(answer, seed),
            explained=explained,
            confirmations=int(answer.hits.min()) - 1,
            missing=answer.missing,
            doubts=doubts,
            assumed=[f"The claim stands on the declared loss: {answer.reading.loss.name}."] if knowledge.loss else [],
        )
    )


def feature_errors(answer: MapAnswer, seed: int) -> Tensor:
    """(B,) relative errors of the features, or of the maps where these are larger: changes of the maps are played."""
    generator = torch.Generator().manual_seed(seed + 1)
    maps, errors = answer.maps, answer.errors
    if not bool(errors.isfinite().all()):
        return errors
    maps, tail, worst = maps.float(), answer.tail.coarse(), torch.ones_like(errors)
    features = tail.forward(maps)[0]
    share = torch.full_like(errors, _MOVED)
    for _ in range(_DRAWS):
        moved = tail.forward(maps + _drawn(maps, share, generator))[0]
        change = (moved - features).norm(dim=1) / features.norm(dim=1).clamp_min(1e-30)
        worst = torch.maximum(worst, change.double() / _MOVED)
    return worst * errors


def _drawn(maps: Tensor, share: Tensor, generator: torch.Generator) -> Tensor:
    u = torch.randn(maps.shape, generator=generator).to(maps).flatten(1)
    sized = u / u.norm(dim=1, keepdim=True) * (share.to(maps) * maps.flatten(1).norm(dim=1))[:, None]
    return sized.view_as(maps)


def _doubt_samples(answer: MapAnswer, knowledge: Knowledge, seed: int) -> list[str]:
    """Samples that are drowned by what is left, or may be several that look like one."""
    left = {name: _largest(answer.played.left[f"{name}.weight"].flatten(1)) for name in answer.tail.convs}
    sent = torch.stack(
        [_size(answer.played.sent[name], _patches(answer, name, answer.played)) / left[name] for name in left]
    )
    faint = (~(sent.amin(0) > FAR)).nonzero()[:, 0].tolist()
    if faint:
        return [f"Sample {name_some(faint)} sends little more to some layer than is left unexplained there."]
    copies = answer.reading.copies
    hidden = ~(_twins(answer, left, seed) > FAR)
    if knowledge.known_batch_size is not None:  # who counts once is one; who counts twice may be two that are alike
        hidden &= torch.ones_like(hidden) if copies is None else copies > 1
    several = hidden.nonzero()[:, 0].tolist()
    if several:
        return [
            f"Sample {name_some(several)} may be several whose maps differ by a few percent: these would look like one here"
            + ("." if knowledge.known_batch_size else "; say the batch size if it is known.")
        ]
    return []


def _twins(answer: MapAnswer, left: dict[str, float], seed: int) -> Tensor:
    """(B,) how far two samples, a hundredth from their mean, would stand above what is left, in the layer that shows them best.

    They send, besides what their mean sends, ½ (δ₊ − δ₋) ⊗ ½ (patch₊ − patch₋). What of it lies outside all known patches and
    all known δ, no other answer of as many samples can take up.
    """
    generator = torch.Generator().manual_seed(seed + 4)
    reading, shown, tail, maps = answer.reading, [], answer.tail.coarse(), answer.maps.float()
    share = maps.new_full((len(maps),), FALSE_ERROR)
    known = {
        name: (
            orthonormal_rows(_patches(answer, name, answer.played).flatten(0, 1)).float(),
            orthonormal_rows(answer.played.sent[name].flatten(2).mT.flatten(0, 1)).float(),
        )
        for name in left
    }
    for _ in range(_DRAWS):
        d = _drawn(maps, share, generator)
        plus, minus = (
            tail.play(maps + sign * d, reading.Y.float(), reading.weights.float(), reading.loss) for sign in (1, -1)
        )
        each = []
        for name in left:
            read = (_patches(answer, name, plus) - _patches(answer, name, minus)) / 2
            sent = (plus.sent[name] - minus.sent[name]).flatten(2).mT / 2
            rows, columns = known[name]
            read, sent = (part - (part @ basis.T) @ basis for part, basis in ((read, rows), (sent, columns)))
            each.append(_size(sent.mT.unflatten(2, (1, -1)), read) / left[name])
        shown.append(torch.stack(each).amax(0))
    return torch.stack(shown).amin(0)


def _patches(answer: MapAnswer, name: str, played: PlayedTail) -> Tensor:
    """(B, P, C k k) what a convolution read, place by place."""
    conv = answer.tail.module.get_submodule(name)
    assert isinstance(conv, nn.Conv2d)
    assert isinstance(conv.padding, tuple)
    return F.unfold(played.read[name], conv.kernel_size, padding=conv.padding).mT


def _size(sent: Tensor, patches: Tensor) -> Tensor:
    """(B,) ‖Σ over places of δ ⊗ patch‖ for δ (B, O, h, w), through small Gram matrices."""
    delta = sent.flatten(2).mT  # (B, P, O)
    squares = ((delta @ delta.mT) * (patches @ patches.mT)).sum((1, 2))
    return squares.clamp_min(0).sqrt()


def _largest(matrix: Tensor) -> float:
    """The largest singular value, by a few powers: a lower bound that is close for noise, whose values are alike."""
    v = torch.ones_like(matrix[0]) / matrix.shape[1] ** 0.5 + matrix[0] / matrix[0].norm().clamp_min(1e-300)
    size = matrix.new_zeros(())
    for _ in range(_POWERS):
        u = matrix @ (v / v.norm().clamp_min(1e-300))
        size = u.norm()
        v = matrix.T @ u
    return max(float(size), 1e-300)
