"""Synthetic clients of one small model, and one that its worker dies of; importable by workers in
other processes."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

import unsum
from unsum.attack.options import AttackOptions
from unsum.audit.finding import ClientFinding


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 20))


def update(number: int, model: nn.Module) -> unsum.Update:
    """Of three samples, one of which says who it is."""
    torch.manual_seed(100 + number)
    return unsum.capture(model, torch.randn(3, 64), torch.tensor([4, 4, number % 20]))


def clients(count: int) -> Iterator[unsum.Arrived]:
    model = network()
    for number in range(count):
        yield unsum.Arrived(f"client-{number:04}", update(number, model), number % 3)


@dataclass(frozen=True)
class Deadly(unsum.Arrived):
    """Kills its worker as often as `lives` says; a file for every life that it took."""

    folder: Path = Path()
    lives: int = 1

    def look(self, model: nn.Module, options: AttackOptions, train: bool) -> ClientFinding:
        for life in range(self.lives):
            file = self.folder / f"{self.client}-{life}"
            if not file.exists():
                file.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return super().look(model, options, train)


def figures(findings: unsum.Findings) -> list[tuple[object, ...]]:
    """What must not depend on who computed it, or when."""
    return [
        (
            f.round,
            f.client,
            f.outcome,
            f.exact,
            f.batch_size,
            f.label_counts,
            round(f.predicted_error, 9),
            f.notes,
        )
        for f in findings
    ]


if __name__ == "__main__":  # FILE COUNT: a run that may be killed, slow enough for that

    def slowly(count: int) -> Iterator[unsum.Arrived]:
        for one in clients(count):
            time.sleep(0.05)
            yield one

    unsum.attack_many(network(), slowly(int(sys.argv[2])), results=sys.argv[1], processes=2)
