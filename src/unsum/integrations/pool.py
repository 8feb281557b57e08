"""Audits behind the training: updates are handed to processes of their own, and a round waits for
none of them."""

from __future__ import annotations

import copy
import queue
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from unsum.attack.options import AttackOptions
from unsum.audit.finding import ClientFinding, finding_of, reason_of
from unsum.audit.many.arrived import Arrived
from unsum.audit.many.workers import Campaign, on_processes
from unsum.integrations.finding import attack_seen
from unsum.integrations.rounds import fill, seen
from unsum.local_training import LocalTraining

_WAITING = 4  # updates a process that may wait; more would take memory for audits that come late


@dataclass(frozen=True)
class ArrivedWeights(Arrived):
    """A client's weights before and after a round; the worker makes its update of them."""

    update: Any = None
    before: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    after: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    training: LocalTraining | None = None
    num_examples: int | None = None
    attack: str | None = None

    def look(self, model: nn.Module, options: AttackOptions, train: bool) -> ClientFinding:
        try:
            own = copy.deepcopy(model)
            fill(own, self.before)
            found = seen(
                own, self.before, self.after, self.training, num_examples=self.num_examples
            )
            how: dict[str, Any] = {
                "train": train,
                "seed": options.seed,
                "time_limit": options.time_limit,
            }
            leak = attack_seen(own, found, self.attack, **how)
        except Exception as error:
            return ClientFinding(self.round, self.client, "failed", notes=(reason_of(error),))
        return finding_of(self.round, self.client, found.update, leak)


class AuditPool:
    """`offer` hands an update over and never waits; `ready` gives the findings that have come
    since; `finish` waits for all."""

    def __init__(
        self,
        model: nn.Module,
        processes: int,
        *,
        train: bool,
        seed: int,
        time_limit: float | None = None,
    ) -> None:
        self._campaign = Campaign(model, AttackOptions(seed=seed, time_limit=time_limit), train)
        self._processes = processes
        self._waiting: queue.Queue[Arrived | None] = queue.Queue(_WAITING * processes)
        self._found: queue.SimpleQueue[ClientFinding] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def offer(self, arrived: Arrived) -> bool:
        """Whether there was room for it."""
        try:
            self._waiting.put_nowait(arrived)
        except queue.Full:
            return False
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="unsum-pool", daemon=True)
            self._thread.start()
        return True

    def ready(self) -> list[ClientFinding]:
        found = []
        while not self._found.empty():
            found.append(self._found.get())
        return found

    def finish(self) -> list[ClientFinding]:
        """The findings that were still to come; updates may be offered again afterwards."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()
            self._thread = None
        return self.ready()

    def _run(self) -> None:
        for _, finding in on_processes(
            self._campaign, iter(self._waiting.get, None), self._processes
        ):
            self._found.put(finding)
