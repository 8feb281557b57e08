"""The client's text as it was found: sequences with the labels that counted, and what the head
reads of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unsum.head import find_head
from unsum.models.language import TextTask, targets, task_of
from unsum.separate.text.network import by_length, device_of, read_by


@dataclass(frozen=True)
class Text:
    """Sequences in the attacker's order, with their labels as a client has them: for each token, or
    one class for each sequence.

    The last token of a sequence of next tokens is known as a label only. `open` labels were not
    found.
    """

    tokens: list[list[int]]
    labels: list[list[int]]
    open: int = 0

    def shown(self, task: TextTask) -> list[list[int]]:
        """The text that a client would recognize: masked tokens are in their place again."""
        if task is not TextTask.MASKED:
            return self.tokens
        return [
            [label if label >= 0 else token for token, label in zip(tokens, labels, strict=True)]
            for tokens, labels in zip(self.tokens, self.labels, strict=True)
        ]

    def groups(self, device: torch.device) -> list[tuple[list[int], Tensor, Tensor]]:
        """Sequences of one length together: (rows, tokens, labels)."""
        return [
            (rows, tokens, torch.tensor([self.labels[row] for row in rows], device=device))
            for rows, tokens in by_length(self.tokens, device)
        ]


def head_reads(model: nn.Module, tokens: Tensor) -> Tensor:
    """(n, P, H) what the head reads at the P positions that may have a label."""
    read = read_by(model, find_head(model)[1], tokens, slice(None))
    return at_label_places(task_of(model), read)


def at_label_places(task: TextTask, read: Tensor) -> Tensor:
    """Of (n, L, …): a class is read at the last position, and after the last one no token
    follows."""
    if task is TextTask.CLASS:
        return read[:, -1:]
    return read[:, :-1] if task is TextTask.NEXT else read


def labeled(model: nn.Module, text: Text) -> tuple[Tensor, Tensor]:
    """(M, H) what the head reads at the positions that have a label, sequence by sequence, and (M,)
    those labels."""
    task = task_of(model)
    features: list[Tensor] = [torch.empty(0)] * len(text.tokens)
    labels = list(features)
    for rows, tokens, given in text.groups(device_of(model)):
        for row, read, wanted in zip(
            rows, head_reads(model, tokens), targets(task, given), strict=True
        ):
            features[row], labels[row] = read[wanted >= 0], wanted[wanted >= 0]
    return torch.cat(features), torch.cat(labels)
