"""Many small kernels as one CUDA graph: launching them one by one takes longer than running
them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch


def recorded(
    work: Callable[[], None], device: torch.device, *, often: bool = False
) -> tuple[Callable[[], None], int]:
    """`work` in its fastest form for `device`, and how often it has been carried out on the way to
    it.

    On CUDA it runs once, so that libraries set themselves up outside of the recording, and is then
    recorded. Where it cannot be recorded (an old driver, another recording under way) and on any
    other device it is returned as it is. What is recorded `often` is small: the cache is not
    emptied for it, and nothing is waited for.
    """
    if device.type != "cuda":
        return work, 0
    if not often:
        _give_back()
    graph, stream = torch.cuda.CUDAGraph(), _stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.device(device), torch.cuda.stream(stream):
        work()
        if not often:
            _give_back()
        try:
            graph.capture_begin()
            try:
                work()
            finally:
                graph.capture_end()
        except RuntimeError:
            return work, 1
    torch.cuda.current_stream(device).wait_stream(stream)
    return graph.replay, 1


def _give_back() -> None:
    """What is cached can be used neither on another stream nor in a recording, and would be held
    besides what these take."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


@lru_cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """One for all recordings: each has a workspace of cuBLAS for itself, 32 MiB that are never
    given back."""
    return torch.cuda.Stream(device)
