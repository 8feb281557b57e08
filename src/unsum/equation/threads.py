"""Small matrix products run on one thread: on a busy machine, waiting for a second one costs a
hundred times more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_WORTHWHILE = 1 << 16  # entries of a B×C matrix from which threads pay


@contextmanager
def few_threads(entries: int) -> Iterator[None]:
    """One CPU thread inside the block if matrices of `entries` entries are all it handles."""
    before = torch.get_num_threads()
    if entries < _WORTHWHILE:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
