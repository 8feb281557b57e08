"""The truth of the example's rounds: which labels a client's batch had."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[3] / "examples" / "flower-audit"))
from flower_audit.task import private_pictures


def labels_of(client: int, number: int) -> dict[str, int]:
    labels = private_pictures(client)[1]
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(number))
    return {
        str(label): count for label, count in sorted(Counter(labels[order[:8]].tolist()).items())
    }
