"""What a defense left to be seen in an update, and how an attacker does the same to gradients of
its own (GGL's adaptation).

clipping   g · min(1, ‖ĝ‖ / ‖g‖): whatever the bound was, the update that came is no longer than it
pruning    g ∘ (ĝ ≠ 0) for a candidate; the largest entries of each tensor, as many as came, for
           gradients to learn from
Soteria    the head's columns that came empty, emptied
signs      sign(g), for gradients to learn from
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.gradients import TINY, norm
from unsum.head import Head
from unsum.match.problem import Problem
from unsum.separate.adaptive import recognize
from unsum.update import Update


@dataclass(frozen=True)
class Traces:
    """`kind` as in `recognize`; gradients are lists in the order of `problem.sent`, with candidates
    in front: (N, …) each."""

    kind: str
    notes: list[str]  # what was recognized, for a person to read
    length: Tensor  # ‖ĝ‖
    # 1 where an entry may have come, 0 where none can; None: nothing was held back
    masks: list[Tensor | None]
    kept: list[int]  # how many entries of each tensor came

    @classmethod
    def of(cls, problem: Problem) -> Traces:
        sent = list(problem.sent.values())
        weight, empty = problem.head_names[0], None
        kind, notes = "none", []
        if weight in problem.sent:
            update = Update(problem.sent, reduction=problem.reduction)
            found = recognize(Head.of(problem.model, update))
            kind, notes = found.kind, [found.sentence] if found.sentence else []
            sizes = [tensor[tensor != 0].abs() for tensor in sent]
            one_size = all(len(size) == 0 or bool(size.max() == size.min()) for size in sizes)
            if kind == "grid" and one_size:  # of features that are never zero
                kind, notes = (
                    "sign",
                    ["All entries have one magnitude: only their signs were sent."],
                )
            empty = ~problem.sent[weight].any(0)
        masks: list[Tensor | None] = [None] * len(sent)
        if kind == "pruned":
            masks = [(tensor != 0).to(tensor) for tensor in sent]
        elif empty is not None and bool(empty.any()):
            # Features that ReLU switched off leave empty columns, too; leaving those out costs no
            # more than a hint.
            masks = [
                (~empty).to(g).expand_as(g) if name == weight else None
                for name, g in problem.sent.items()
            ]
        kept = [int(tensor.count_nonzero()) for tensor in sent]
        return cls(kind, notes, norm(sent).clamp_min(TINY), masks, kept)

    def masked(self, found: Sequence[Tensor]) -> list[Tensor]:
        """Candidates' gradients, without what the defense would have held back of the true one."""
        return [g if mask is None else g * mask for g, mask in zip(found, self.masks, strict=True)]

    def clipped(self, found: Sequence[Tensor]) -> list[Tensor]:
        """No candidate's gradient longer than the one received."""
        squares = torch.stack([g.flatten(1).square().sum(1) for g in found]).sum(0)
        factors = (self.length / squares.sqrt().clamp_min(TINY)).clamp(max=1)
        return [g * factors.view(-1, *[1] * (g.ndim - 1)) for g in found]

    def imitated(self, found: Sequence[Tensor]) -> list[Tensor]:
        """Gradients as they would look had they come from the same client: each keeps entries of
        its own."""
        if self.kind == "sign":
            return [g.sign() for g in found]
        if self.kind == "pruned":
            return self.clipped(
                [_largest(g, count) for g, count in zip(found, self.kept, strict=True)]
            )
        return self.clipped(self.masked(found))


def _largest(gradients: Tensor, count: int) -> Tensor:
    """(N, …) with all but the `count` largest entries of each set to zero."""
    flat = gradients.flatten(1)
    kept = flat.abs().topk(count, dim=1).indices
    return torch.zeros_like(flat).scatter(1, kept, flat.gather(1, kept)).view_as(gradients)
