"""Updates in chunks: threads read them ahead, one batched computation answers most, and the rest is
attacked one by one.

Of two chunks at most the updates are in memory, whatever the number of updates: the one that is
computed, and the next.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

import torch
from torch import Tensor

from unsum.attack.at_once import LastLayer, attack_at_once, can_be_at_once
from unsum.audit.finding import finding_of
from unsum.audit.many.arrived import Arrived
from unsum.audit.many.workers import Answers, Campaign, one_by_one
from unsum.client.step import in_mode
from unsum.errors import UnsumError
from unsum.head import find_head
from unsum.running.sharing import sharing_models
from unsum.update import Update

# Of a GPU's memory, and of the machine's own, that last layers' gradients of a chunk may take: with
# all that is computed of them it is seven times as much on the GPU, and six times where two chunks
# of whole updates wait.
_PART = 32
# updates of a chunk: on an H200 80 at once make 294 a second, 160 make 331 and 256 make 393
_MOST = 256
_READERS = 8  # threads at most: reading one takes a few times as long as solving it

_Read = tuple[Arrived, "Future[Update | None]"]


def chunk_for(task: Campaign) -> int:
    """How many updates are solved at once: 1 where that does not pay, or the attack begins in
    another way."""
    device = torch.device(task.options.device or "cpu")
    if device.type != "cuda" or not can_be_at_once(task.model, task.options):
        return 1
    weight = find_head(task.model)[1].weight
    own = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    room = min(torch.cuda.get_device_properties(device).total_memory, own) // _PART
    return max(1, min(_MOST, room // (weight.numel() * weight.element_size())))


def in_chunks(task: Campaign, arrived: Iterable[Arrived], chunk: int) -> Answers:
    """In this process, so many at once."""
    if not can_be_at_once(task.model, task.options):
        yield from one_by_one(task, arrived)
        return
    waiting, ready = iter(arrived), deque[_Read]()
    with sharing_models(), ThreadPoolExecutor(min(_READERS, os.cpu_count() or 1)) as readers:
        # traces the model, which changes it for all threads: before they begin
        layer = LastLayer.of(task.model)

        def read_ahead(count: int) -> None:
            ready.extend(
                (one, readers.submit(_read, one, task, layer)) for one in islice(waiting, count)
            )

        read_ahead(chunk)
        while ready:
            now = [ready.popleft() for _ in range(min(chunk, len(ready)))]
            read_ahead(chunk)
            usual = [(one, update) for one, read in now if (update := read.result()) is not None]
            with in_mode(task.model, task.train):
                leaks = attack_at_once(task.model, [update for _, update in usual], task.options)
            found = {
                id(one): finding_of(one.round, one.client, update, leak)
                for (one, update), leak in zip(usual, leaks, strict=True)
                if leak is not None
            }
            for one, _ in now:
                yield one, found[id(one)] if id(one) in found else task.look(one)


def _read(one: Arrived, task: Campaign, layer: LastLayer) -> Update | None:
    """An update that can be solved with others; None for any other, and for those with something
    wrong: `look` says what."""
    try:
        update = one.update if isinstance(one.update, Update) else one.update.read(task.model)
        update.validate(task.model)
        return _pinned(update, task, layer) if layer.is_usual(update) else None
    except (UnsumError, OSError, ValueError, RuntimeError):
        return None


def _pinned(update: Update, task: Campaign, layer: LastLayer) -> Update:
    """The last layer's gradients where a GPU can fetch them by itself."""
    if torch.device(task.options.device or "cpu").type != "cuda":
        return update

    def pinned(gradient: Tensor) -> Tensor:
        return gradient if gradient.is_cuda else gradient.contiguous().pin_memory()

    return layer.changed(update, pinned)
