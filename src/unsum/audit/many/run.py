"""`attack_many`: updates of one model in, a row each out; on this process, on several, or on a Ray
cluster."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from unsum.attack.options import AUTO, AttackOptions
from unsum.audit.many.arrived import Arrived, arrivals
from unsum.audit.many.at_once import chunk_for, in_chunks
from unsum.audit.many.store import Findings
from unsum.audit.many.workers import Answers, Campaign, on_processes, on_ray, one_by_one
from unsum.errors import UnsumError
from unsum.head import find_head
from unsum.losses import Loss
from unsum.models.built import backbone_fingerprint
from unsum.models.received import Received
from unsum.running.declared import check_whole
from unsum.running.progress import SILENT, Progress
from unsum.running.watching import shown_in_notebooks
from unsum.update import Update


@shown_in_notebooks
def attack_many(
    model: nn.Module,
    updates: Iterable[Arrived | Update | Received | str | Path],
    method: str = AUTO,
    *,
    results: str | Path | None = None,
    processes: int | None = None,
    ray: str | None = None,
    at_once: int | None = None,
    batch_size: int | None = None,
    loss: str | Loss | None = None,
    time_limit: float | None = None,
    train: bool = True,
    device: torch.device | str | None = None,
    seed: int = 0,
    progress: Progress = SILENT,
) -> Findings:
    """What many updates of one model give away: a row for every client and round, on disk as they
    come.

    Each update is attacked as `attack` does it, without pictures. What depends on the model alone
    is computed once a process. An update that cannot be read or attacked is a row that says why.
    Updates are taken from the iterable as they are needed, so that memory does not grow with their
    number.

    Args:
        model: the model the clients trained, with the weights they started from.
        updates: `Update`s, their files, `Received`, or `Arrived(client, update, round)`, which
            names them; without a name they go by their file's, or by their place.
        method: `auto`, or a separator from `unsum list`.
        results: a file for the findings (SQLite). The same call with the same file goes on where an
            earlier one was stopped or killed; without a file they are kept in memory.
        processes: how many of this machine; as many as it has cores by default, 1 for this process
            alone. In scripts, several need the usual `if __name__ == "__main__":`.
        at_once: how many updates one computation solves together, in this process; on a GPU by
            default up to 256, as many as a thirty-second of its memory holds last layers of. Those
            that leave the usual way are attacked one by one, as all are elsewhere.
        ray: the address of a Ray cluster, `auto` or `local`, instead of processes.
        batch_size, loss: what the attacker knows of all updates, as in `attack`.
        time_limit: seconds for each update, as in `attack`.
        train: BatchNorm's mode in the clients' training.
        progress: told how many updates are done.

    Examples:
        >>> import torch, unsum
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Linear(64, 20)
        >>> updates = [
        ...     unsum.capture(model, torch.randn(3, 64), torch.tensor([4, 4, n])) for n in range(3)
        ... ]
        >>> found = unsum.attack_many(model, updates, processes=1)
        >>> [(finding.client, finding.exact, finding.label_counts) for finding in found]
        [('0', True, {0: 1, 4: 2}), ('1', True, {1: 1, 4: 2}), ('2', True, {2: 1, 4: 2})]
    """
    where = torch.device(device or next(model.parameters()).device)
    options = AttackOptions(
        method,
        batch_size=batch_size,
        loss=loss,
        time_limit=time_limit,
        pictures=False,
        device=where,
        seed=seed,
    )
    options.check()
    if options.is_matcher:
        raise UnsumError(
            f"The attack {method!r} makes pictures of one update; use 'auto' or a separator for "
            "many."
        )
    if ray is not None and processes is not None:
        raise UnsumError("A Ray cluster has its own processes; leave processes= out, or ray=.")
    if at_once is not None:
        check_whole("The number of updates at once", at_once)
        if ray is not None or (processes or 1) > 1:
            raise UnsumError(
                "Updates are solved together in one process; leave at_once= out, or processes= and "
                "ray=."
            )
    if processes is not None:
        check_whole("The number of processes", processes)
    find_head(model)  # refused here, in one sentence, rather than in every row
    task = Campaign(model, options, train)
    findings = Findings(results, _setting(task))
    left = _Left(arrivals(updates), findings)
    for one, finding in _answers(task, left, processes, ray, at_once):
        finding = replace(finding, sha256=one.sha256)
        findings.put(finding, left.under_way.pop(id(one)))
        progress.part(left.seen - len(left.under_way), left.seen)
    return findings


class _Left:
    """The updates that the findings lack, with the fingerprints they go by."""

    def __init__(self, arrived: Iterator[Arrived], findings: Findings) -> None:
        self._arrived, self._findings = arrived, findings
        self.under_way: dict[int, str] = {}
        self.seen = 0

    def __iter__(self) -> Iterator[Arrived]:
        for one in self._arrived:
            self.seen += 1
            # A pass over the update, for runs that go on later.
            made = one.fingerprint if self._findings.path is not None else ""
            if not self._findings.has(one.round, one.client, made):
                self.under_way[id(one)] = made
                yield one


def _answers(
    task: Campaign,
    arrived: Iterable[Arrived],
    processes: int | None,
    ray: str | None,
    at_once: int | None,
) -> Answers:
    if ray is not None:
        return on_ray(task, arrived, ray)
    chunk = at_once or (chunk_for(task) if processes in (None, 1) else 1)
    if chunk > 1:
        return in_chunks(task, arrived, chunk)
    count = processes or os.cpu_count() or 1
    return one_by_one(task, arrived) if count == 1 else on_processes(task, arrived, count)


def _setting(task: Campaign) -> str:
    """What findings in one file have in common, in words and a fingerprint of the weights."""
    _, head = find_head(task.model)
    content = head.weight.detach().to("cpu", torch.float32).contiguous().numpy().tobytes()
    weights = hashlib.sha256(content).hexdigest()[:8]
    options = task.options
    limit = options.time_limit or options.default_limit
    known = (
        f"batch size {options.batch_size}, loss {options.loss}, limit {limit}, seed {options.seed}"
    )
    return (
        f"model {backbone_fingerprint(task.model)}-{weights}, attack {options.method}, {known}, "
        f"train {task.train}"
    )
