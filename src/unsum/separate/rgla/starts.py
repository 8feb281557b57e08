"""Where RGLA may begin: the six starts that the paper compares.

randn, rand, zeros, ones      of those distributions and constants
photos                        the model's logits for natural photos of the attacker's own, passed as `start_logits`
fgla                          the logits of FGLA's features of the same update (the paper feeds FGLA's pictures to the model)
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from unsum.errors import UnsumError
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.separate.fgla import fgla
from unsum.separate.options import choice

STARTS = ("randn", "rand", "zeros", "ones", "photos", "fgla")
RANDOM = ("randn", "rand")
_ALIKE = ("zeros", "ones")  # the same for every sample


def check_start(start: str, start_logits: Tensor | None, classes: int) -> None:
    choice("start", start, STARTS)
    if start == "photos" and start_logits is None:
        raise UnsumError(
            "The start 'photos' needs start_logits=model(photos), what the model answers to your own photos."
        )
    if start != "photos" and start_logits is not None:
        raise UnsumError(f"start_logits belong to start='photos', not to start={start!r}; leave one of the two out.")
    if start_logits is not None and (
        start_logits.ndim != 2 or start_logits.shape[1] != classes or len(start_logits) == 0
    ):
        raise UnsumError(f"start_logits must be (n, {classes}), a row per photo, not {tuple(start_logits.shape)}.")


def starting_logits(
    start: str, start_logits: Tensor | None, head: Head, knowledge: Knowledge, like: Tensor, seed: int
) -> Tensor:
    """(B, C) of the type and device of `like`. Photos' rows are dealt out in turn when there are fewer than samples."""
    if start_logits is not None:
        turns = torch.arange(len(like)) % len(start_logits)
        return start_logits.detach()[turns.to(start_logits.device)].to(like)
    if start == "fgla":
        return fgla(head, knowledge, seed=seed).logits.to(like)
    generator = torch.Generator().manual_seed(seed)
    if start == "randn":
        return torch.randn(like.shape, generator=generator).to(like)
    if start == "rand":
        return torch.rand(like.shape, generator=generator).to(like)
    return torch.full_like(like, 0.0 if start == "zeros" else 1.0)


def declare_start(leak: Leak, knowledge: Knowledge, start: str, start_logits: Tensor | None) -> Leak:
    """The same leak, saying that photos were used, and what a start that treats all samples alike cannot tell apart."""
    notes = list(leak.notes)
    if start in _ALIKE and len(leak.labels.unique()) < leak.batch_size:
        notes.append(
            f"From start={start!r} samples of one label are alike and remain so: every step is the same for each of them; "
            "use start='randn' to tell them apart."
        )
    photos = knowledge.auxiliary_photos
    if start_logits is not None:
        photos = f"the model's logits for {len(start_logits)} of the attacker's own, as RGLA's start"
    return replace(leak, notes=notes, knowledge=replace(knowledge, auxiliary_photos=photos))
