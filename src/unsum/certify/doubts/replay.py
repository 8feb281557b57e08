"""What the gradient of a recovered batch, computed anew, leaves of the one that was sent.

A sample that the model has memorized sends next to nothing. It may be missing, or made up, and the
whole gradient hardly changes: a small relative difference confirms nothing. So the rest is weighed
against what every single sample sends, tensor by tensor, and it may be no larger than rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsum.certify.counted import each_is_one
from unsum.certify.question import name_some
from unsum.engine.replay import Replay
from unsum.engine.twins import FAR
from unsum.knowledge import Knowledge

TRACE = 1e-5  # of the gradient: who sends less than this and is missing makes no claim false
# times a sample's own weight, at most, that a hidden one has. Chosen by: class weights
_WEIGHED = 3.0
_WHOLE = 1e-6  # of a whole number, at the least: a divisor that is as near to it counts samples


def doubt_rest(replay: Replay) -> list[str]:
    """The doubt that the answer is not what was sent: more is left than rounding explains."""
    if replay.explains:
        return []
    return [
        f"The answer's own gradient misses what was sent by {replay.excess:.1g} times what "
        "rounding explains: there is noise in it (rounded weights leave some in their difference), "
        "or a sample is wrong or missing."
    ]


def doubt_unexplained(replay: Replay, what: str) -> list[str]:
    """The same doubt, for an answer of which a share of the worst tensor is given."""
    if replay.explains:
        return []
    left = f"{replay.unexplained:.0e} of the gradient of {replay.worst!r}"
    return [f"Sent through the layers again, the {what} leave {left} unexplained."]


def doubt_invisible(seen: Tensor, what: str) -> list[str]:
    """The doubt about samples (n,) whose own gradient drowns in what is left: they may be made
    up."""
    hidden = (~seen).nonzero()[:, 0].tolist()
    if not hidden:
        return []
    return [
        (
            f"{what} {name_some(hidden)} would send hardly more than rounding: nothing tells that "
            "it was there."
        )
    ]


def doubt_drowned(shown: Tensor) -> list[str]:
    """The doubt about samples that send, to the layer that shows them least, `shown` residuals."""
    faint = (~(shown > FAR)).nonzero()[:, 0].tolist()
    if not faint:
        return []
    what = f"Sample {name_some(faint)} sends little more to some layer"
    return [f"{what} than is left unexplained there."]


def doubt_several(
    hidden: Tensor,
    knowledge: Knowledge,
    copies: Tensor | None,
    differ: str = "whose inputs differ by a few percent",
    what: str = "Sample",
) -> list[str]:
    """The doubt about samples (n,) that two which `differ` cannot be told from."""
    several = [] if each_is_one(knowledge, copies) else hidden.nonzero()[:, 0].tolist()
    if not several:
        return []
    end = "." if knowledge.known_batch_size else "; say the batch size if it is known."
    who = f"{what} {name_some(several)}"
    return [f"{who} may be several {differ}: these would look like one here{end}"]


def doubt_exchanged(
    features: Tensor, labels: Tensor, inputs: Tensor, weight: float, level: float
) -> list[str]:
    """The doubt that two samples' labels were exchanged: α (e_y − e_y') (f − f')ᵀ is all that would
    show in the head.

    `features` (n, H) with `labels` (n,), each of `weight` α, in a head where `level` is seen.
    Samples of equal `inputs` (n,), which are numbered, have nothing to exchange.
    """
    apart = (
        2**0.5
        * weight
        * torch.cdist(features, features, compute_mode="donot_use_mm_for_euclid_dist")
    )
    close = (apart <= level) & (labels[:, None] != labels) & (inputs[:, None] != inputs)
    alike = close.any(1).nonzero()[:, 0].tolist()
    return (
        [f"Samples {name_some(alike)} are so alike that their labels may be exchanged."]
        if alike
        else []
    )


def doubt_relabeled(
    logits: Tensor,
    labels: Tensor,
    features: Tensor,
    weight: float,
    level: float,
    granted: int | None,
) -> list[str]:
    """The doubt that an input occurs once more, with another label, and only the scale shows it.

    A model that is all but sure of class c predicts p with p_c + p_a ≈ 1 for a sample of label a,
    and so do models of two classes. The errors p − e_c and t⁻¹ (p − e_a) then differ by less than
    the head shows, where `level` is seen: the same input with label c rescales what label a sends,
    and where that rescales the whole gradient, nothing shows at all. (n, C) `logits` of n samples,
    each of `weight`. A batch size that was `granted` counts them.
    """
    if granted is not None:
        return []
    p = logits.double().softmax(1)
    own = p.scatter_add(1, labels[:, None], -torch.ones_like(p[:, :1]))
    size, square = own.norm(dim=1, keepdim=True).clamp_min(1e-300), p.square().sum(1, keepdim=True)
    length = weight * features.double().norm(dim=1, keepdim=True)
    p_a = p.gather(1, labels[:, None])
    aside = length * (1 - p_a - p).clamp_min(0) / size  # at least; it is at most √3 times that
    sends = length * (square - 2 * p + 1).clamp_min(0).sqrt()
    open_ = (aside <= _WEIGHED * level) & (_WEIGHED * sends > TRACE * (length * size).amax())
    open_ = open_.scatter(1, labels[:, None], False)
    rows = open_.any(1).nonzero()[:, 0]
    if len(rows) == 0:
        return []
    along = ((square - p_a - p) / size**2)[rows]  # t, of the label that would send most
    t = along.gather(1, (sends[rows] * open_[rows]).argmax(1, keepdim=True))[:, 0]
    gram = weight**2 * (own @ own.T) * (features.double() @ features.double().T)
    whole = gram.sum().clamp_min(1e-300)
    changes = torch.zeros(len(rows), len(p), dtype=p.dtype, device=p.device)
    changes[torch.arange(len(rows)), rows] = t
    if len(rows) == len(p):  # each of them once more
        changes = torch.cat([changes, changes.sum(0, keepdim=True)])
    squares = ((changes @ gram) * changes).sum(1) - (changes @ gram).sum(1).square() / whole
    unseen = squares.clamp_min(0).sqrt() <= _WEIGHED * level
    if len(rows) == len(p) and bool(unseen[-1]):
        unseen[:] = True
    hidden = rows[unseen[: len(rows)]].tolist()
    if not hidden:
        return []
    return [
        f"The input of sample {name_some(hidden)} may occur once more with another label: only the "
        "scale of the gradient would show it; say the batch size if it is known."
    ]


def doubt_missing(
    replay: Replay, number: int, granted: int | None, scale: float | None
) -> list[str]:
    """The doubt that a sample without a trace is missing.

    `number` samples were found. `granted` is how many there were, where somebody said so. `scale`
    is the gradient's, compared with the mean over those that were found; None where a mean does not
    count them. A plain mean over more has a larger divisor. That the divisor fits proves nothing:
    the gradient may have been multiplied.
    """
    if granted is not None:
        return [f"{number} samples were found, {granted} granted."] if granted != number else []
    total = number / max(scale or 1.0, number * 1e-9)
    if number < round(total) <= 2 * number + 8 and abs(total / round(total) - 1) < max(
        _WHOLE, replay.unseen
    ):
        return [
            (
                f"The mean is one over {round(total)} samples, {number} were found: the others "
                "left no trace."
            )
        ]
    if replay.unseen < TRACE:
        return []
    return [
        f"A sample that sends {100 * replay.unseen:.1g} % of the gradient, as memorized ones do, "
        "may be missing without a trace; the batch size would tell."
    ]
