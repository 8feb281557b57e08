"""Samples through the dense layers."""

from __future__ import annotations

from torch import Tensor

from unsum.peel.chain import Step


def forward(steps: list[Step], X: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """(what every step reads, what it writes before its activation) for inputs X of the first one; the last are the logits."""
    read, written = [X], []
    for step in steps:
        written.append(step.linear(read[-1]))
        read.append(step.activation.function(written[-1]))
    return read[:-1], written


def backward(steps: list[Step], written: list[Tensor], delta: Tensor) -> list[Tensor]:
    """δ at what every step writes, for δ at the logits."""
    passed = [delta]
    for i in range(len(steps) - 2, -1, -1):
        passed.append(steps[i + 1].passed_down(passed[-1], ()) * steps[i].activation.slope(written[i]))
    return passed[::-1]
