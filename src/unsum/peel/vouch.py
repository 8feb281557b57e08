"""Which peeled inputs may be called exact: their replay is laid before `certify.claim`, with every reason for doubt."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.certify.claim import grant_each
from unsum.certify.question import name_some
from unsum.leak import Leak
from unsum.peel.dense import rounding
from unsum.peel.method import MARGIN
from unsum.peel.replay import Replayed

FAR = 10.0  # times what is left unexplained, which a sample, or two that look like one, must stand above: eight share a direction
_TRACE = 1e-5  # share of a gradient below which a sample that is missing counts as having left no trace
_HARD = 1e-9  # distance from a hard label that rounding leaves


@dataclass(frozen=True)
class Vouched:
    """(B,) which inputs are exact, and a sentence for every reason why not more."""

    exact: Tensor
    notes: list[str]


def vouch(replayed: Replayed, errors: Tensor, leak: Leak, seed: int) -> Vouched:
    """The claim about inputs with predicted relative `errors` (B,) that continue `leak`."""
    doubts = [*_doubt_replay(replayed), *_doubt_number(leak), *([] if leak.exact else _doubt_unproven(replayed, leak))]
    sizes = MARGIN * errors
    if doubts or not bool(grant_each(sizes, above=True).any()):
        return Vouched(grant_each(sizes, above=False), doubts)
    doubted, notes = _doubt_samples(replayed, leak, seed)
    if not leak.exact:  # nobody has excluded another scale, smoothing or temperature yet
        sizes = torch.maximum(sizes, MARGIN * replayed.errors(temperature_open=leak.knowledge.loss is None).to(errors))
    exact = grant_each(sizes.masked_fill(doubted, torch.inf), above=True)
    if not leak.exact and not bool(exact.any()) and not notes:
        notes = ["The separation that this continues is not certified, and the layers below do not make up for it."]
    return Vouched(exact, notes)


def _doubt_replay(replayed: Replayed) -> list[str]:
    limit = max(rounding(torch.float32), *(rounding(step.grad_W.dtype) for step in replayed.batch.steps))
    if replayed.unexplained < limit:  # NaN is not below
        return []
    return [f"Sent through the layers again, the inputs leave {replayed.unexplained:.0e} of a gradient unexplained."]


def _doubt_number(leak: Leak) -> list[str]:
    said, B = leak.knowledge.known_batch_size, leak.batch_size
    return [] if said in (None, B) else [f"The batch was said to hold {said} samples, but {B} were found."]


def _doubt_unproven(replayed: Replayed, leak: Leak) -> list[str]:
    """Where the separation is not certified, all tensors together must leave no room for another batch."""
    Y = replayed.batch.Y
    why = "The separation that this continues is not certified, so neither are the inputs: "
    if leak.knowledge.labels is None and float((Y - (Y > 0.5).to(Y)).abs().max()) > _HARD:
        return [f"{why}soft labels leave room for other ones."]
    if leak.knowledge.known_batch_size is None and not replayed.unexplained < _TRACE:
        return [f"{why}a faint sample may be missing."]
    return []


def _doubt_samples(replayed: Replayed, leak: Leak, seed: int) -> tuple[Tensor, list[str]]:
    """(B,) samples that are drowned by what is left, or may be several."""
    notes = []
    faint = ~(replayed.contributions() > FAR)
    if bool(faint.any()):
        notes.append(f"Sample {_named(faint)} sends little more to some layer than is left unexplained there.")
    if leak.knowledge.known_batch_size is not None:
        return faint, notes
    several = ~(replayed.twins(seed) > FAR)
    if bool(several.any()):
        notes.append(
            f"Sample {_named(several)} may be several whose inputs differ by a few percent: these would look like one here. "
            "Say the batch size if it is known."
        )
    return faint | several.to(faint), notes


def _named(samples: Tensor) -> str:
    return name_some(samples.nonzero()[:, 0].tolist())
