"""Processes of this machine that attack updates, each with the model in its memory. One that dies
is replaced.

`concurrent.futures` gives up all that wait when one process is killed; here a killed one costs the
update it was at another try. At most one update a process is in memory besides the one that waits
for it. Updates may also be tasks of a Ray cluster: this machine's cores, or many machines'. There,
too, a worker that is lost costs another try.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from torch import Tensor, nn

from unsum.attack.options import AttackOptions
from unsum.audit.finding import ClientFinding
from unsum.audit.many.arrived import Arrived
from unsum.errors import UnsumError, needed
from unsum.running.cluster import connected
from unsum.running.sharing import sharing_models

_LEAVING = 5.0  # [s] for a worker to leave once nothing more comes. Chosen by: arbitrary budget
TRIES = 3  # of an update whose worker was lost
Answers = Iterator[tuple[Arrived, ClientFinding]]


@dataclass(frozen=True, eq=False)
class Campaign:
    """What is the same for every update."""

    model: nn.Module
    options: AttackOptions
    train: bool

    def look(self, arrived: Arrived) -> ClientFinding:
        return arrived.look(self.model, self.options, self.train)


def one_by_one(task: Campaign, arrived: Iterable[Arrived]) -> Answers:
    """In this process."""
    with sharing_models():
        for one in arrived:
            yield one, task.look(one)


def lost(one: Arrived, reason: str) -> ClientFinding:
    told = (
        f"Its worker was lost {TRIES} times ({reason}); the update may need more memory than there "
        "is."
    )
    return ClientFinding(one.round, one.client, "failed", notes=(told,), reason=told)


class _ArrayPickler(pickle.Pickler):
    """Tensors as the arrays of their numbers: PyTorch's own way zips them, which takes as long as a
    third of an attack."""

    def reducer_override(self, found: Any) -> Any:
        if (
            type(found) is Tensor
            and found.device.type == "cpu"
            and found.dtype in (torch.float32, torch.float64)
        ):
            return torch.from_numpy, (found.detach().contiguous().numpy(),)
        return NotImplemented


@dataclass(eq=False)
class _Worker:
    """One process and the update that it is at."""

    task: bytes
    threads: int
    at: Arrived | None = None
    process: Any = field(init=False)
    line: Connection = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        processes = process_context()
        self.line, theirs = processes.Pipe()
        self.process = processes.Process(target=_serve, args=(theirs, self.threads), daemon=True)
        self.process.start()
        theirs.close()
        self.line.send_bytes(self.task)

    def give(self, one: Arrived) -> None:
        self.at = one
        content = io.BytesIO()  # PyTorch's own way would take shared memory, which may be scarce
        _ArrayPickler(content, protocol=pickle.HIGHEST_PROTOCOL).dump(one)
        self.line.send_bytes(content.getbuffer())

    def end(self) -> None:
        self.line.close()
        if self.at is None:  # it waits, and leaves by itself: so it gives back what it holds
            self.process.join(_LEAVING)
        self.process.terminate()
        self.process.join()


def process_context() -> Any:
    """Forked from a server that has imported PyTorch and nothing else happened in: that takes
    seconds, and so it is done once. A child forked from here would inherit PyTorch's threads in
    whatever state they are."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def on_processes(task: Campaign, arrived: Iterable[Arrived], processes: int) -> Answers:
    """On so many processes; answers come as they are ready."""
    try:
        packed = pickle.dumps(task)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UnsumError(
            f"The model cannot be sent to other processes ({error}); define it in a file that can "
            "be imported, or give processes=1."
        ) from error
    waiting = iter(arrived)
    threads = max(1, (os.cpu_count() or 1) // processes)
    workers: list[_Worker] = []
    tries: dict[int, int] = {}
    try:
        for one in waiting:
            if len(workers) < processes:
                workers.append(_Worker(packed, threads))
                _given(workers[-1], one)
                continue
            worker, answer = _next(workers, tries)
            yield answer
            _given(worker, one)
        while any(worker.at is not None for worker in workers):
            yield _next(workers, tries)[1]
    finally:
        for worker in workers:
            worker.end()


def _next(
    workers: list[_Worker], tries: dict[int, int]
) -> tuple[_Worker, tuple[Arrived, ClientFinding]]:
    """The first answer of those at work; what a lost worker was at is given to a new one."""
    while True:
        busy = {worker.line: worker for worker in workers if worker.at is not None}
        for line in wait(list(busy)):
            worker = busy[line]  # type: ignore[index] # only connections were waited for
            one = needed(worker.at, "What the worker was at")
            try:
                finding = pickle.loads(worker.line.recv_bytes())
            except (EOFError, OSError) as error:
                worker.end()
                worker.start()
                tries[id(one)] = tries.get(id(one), 1) + 1
                if tries[id(one)] <= TRIES:
                    _given(worker, one)
                    continue
                finding = lost(one, str(error) or "it ended without an answer")
            tries.pop(id(one), None)
            worker.at = None
            return worker, (one, finding)


def _given(worker: _Worker, one: Arrived) -> None:
    """A worker that died while it was idle is replaced before anything is sent to it."""
    try:
        worker.give(one)
    except OSError:
        worker.end()
        worker.start()
        worker.give(one)


def _serve(line: Connection, threads: int) -> None:
    """In a worker: answers until its parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to deal with
    torch.set_num_threads(threads)
    try:
        task: Campaign = pickle.loads(line.recv_bytes())
        with sharing_models():
            while True:
                line.send_bytes(pickle.dumps(task.look(pickle.loads(line.recv_bytes()))))
    except (EOFError, OSError):
        return


_AHEAD = 2  # tasks in flight for every one that can run


def on_ray(task: Campaign, arrived: Iterable[Arrived], address: str) -> Answers:
    """On the cluster at `address`: `auto`, `local` or HOST:PORT. Files must be where every node can
    read them."""
    with connected(address) as ray:
        gpus = 1.0 if str(task.options.device).startswith("cuda") else 0.0
        model = ray.put(task)  # once for the cluster, not once an update
        remote = ray.remote(_looked).options(
            num_cpus=1, num_gpus=gpus, max_retries=TRIES - 1, retry_exceptions=False
        )
        waiting, flying = iter(arrived), dict[Any, Arrived]()
        while True:
            found = ray.cluster_resources()
            places = max(1, int(found.get("GPU", 0) if gpus else found.get("CPU", 1)))
            for one in islice(waiting, max(0, _AHEAD * places - len(flying))):
                flying[remote.remote(model, one)] = one
            if not flying:
                return
            done, _ = ray.wait(list(flying), num_returns=1)
            for reference in done:
                one = flying.pop(reference)
                try:
                    yield one, ray.get(reference)
                except ray.exceptions.RayError as error:
                    yield one, lost(one, str(error).splitlines()[0])


def _looked(task: Campaign, one: Arrived) -> ClientFinding:
    """On a worker."""
    return task.look(one)
