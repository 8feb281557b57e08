"""What may be claimed about recovered text: the replay is weighed by what every sequence, position and token sends.

The search used a few tensors of the gradient. The others confirm the text, those of them that show every sequence.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsum.certify.claim import Claim, Evidence, grant
from unsum.certify.doubts.replay import doubt_exchanged, doubt_invisible, doubt_missing, doubt_rest
from unsum.knowledge import Knowledge
from unsum.separate.text.replay import Played
from unsum.update import Update


def judge(
    played: Played, told: Tensor, open_ends: int, knowledge: Knowledge, update: Update, searched: set[str]
) -> Claim:
    """The claim about a replayed batch of n sequences.

    `told` (n,) says whose tokens the gradient tells. `open_ends` labels were not found. `searched` names the tensors that the
    search used.
    """
    M = len(played.labels)
    scale = played.scale if update.reduction == "mean" and update.scale_known else None
    seen = played.positions > played.head_level
    doubts = [
        *doubt_rest(played.replay),
        *doubt_invisible(played.replay.shows().any(1), "Sequence"),
        *doubt_invisible(seen, "Position"),
        *doubt_invisible(told, "Some token of sequence"),
        *doubt_exchanged(played.features, played.labels, played.prefixes, abs(played.scale) / M, played.head_level),
        *doubt_missing(played.replay, M, knowledge.known_batch_size, scale),
    ]
    if open_ends:
        doubts.append(f"{open_ends} positions have a label that was not found.")
    if update.reduction == "sum":
        doubts += _doubt_copies(played.scale / M)
    return grant(
        Evidence(
            torch.where(seen, played.errors, torch.inf),
            explained=played.replay.explains,
            confirmations=_confirmations(played, searched),
            doubts=doubts,
        )
    )


def _confirmations(played: Played, searched: set[str]) -> int:
    """Tensors that the search did not use and that show every sequence."""
    unused = torch.tensor([name not in searched for name in played.names], device=played.replay.parts.device)
    everyone: Tensor = played.replay.shows().all(0)
    return int((everyone & unused).sum())


def _doubt_copies(factor: float) -> list[str]:
    """A sum, unlike a mean, grows with copies of the whole batch; so does a sum that was multiplied."""
    times = round(min(factor, 1e9))
    if times < 2 or abs(factor / times - 1) > 1e-4:
        return []
    return [f"A sum {times} times too large: each sequence may stand for that many of its like."]
