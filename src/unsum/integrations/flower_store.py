"""Flower: a strategy that stores what every client sends, for `unsum audit --flower-run`; training is the same with and without.

strategy = StoreUpdates(FedAvg(), "seen")
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from unsum.errors import UnsumError
from unsum.integrations.stored import store_back, store_sent

try:
    from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import Strategy
except ImportError as missing:
    raise UnsumError(
        "This needs Flower of 1.30 or later, which is not installed: pip install 'unsum[flower]'."
    ) from missing

__all__ = ["StoreUpdates"]

_LOG = logging.getLogger("flwr")


class StoreUpdates(Strategy):
    """`inner` as it is; what it sends out and what comes back is stored under `folder`, a folder a round.

    The files hold the clients' updates: keep them as private as these. One copy of the weights a round, and one a client.
    """

    def __init__(self, inner: Strategy, folder: str | Path) -> None:
        self.inner, self.folder = inner, Path(folder).absolute()  # servers may change where they stand

    def __getattr__(self, name: str) -> Any:
        """What others ask of `inner` is answered by it."""
        if name.startswith("__") or name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = list(self.inner.configure_train(server_round, arrays, config, grid))
        self._try(partial(self._store_sent, server_round, messages))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        received = list(replies)
        for reply in received:
            if not reply.has_error():
                self._try(partial(self._store_back, server_round, reply))
        return self.inner.aggregate_train(server_round, received)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self.inner.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return self.inner.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        self.inner.summary()
        _LOG.info("unsum: every update is stored under %s", self.folder)

    def _store_sent(self, number: int, messages: list[Message]) -> None:
        """Once for all clients that were sent the same record, which is the rule."""
        first: ArrayRecord | None = None
        for message in messages:
            (record,) = message.content.array_records.values()
            config = {key: value for one in message.content.config_records.values() for key, value in one.items()}
            if first is None:
                first = record
                store_sent(self.folder, number, record.to_torch_state_dict(), config)
            elif record is not first:
                client = str(message.metadata.dst_node_id)
                store_sent(self.folder, number, record.to_torch_state_dict(), config, client)

    def _store_back(self, number: int, reply: Message) -> None:
        (record,) = reply.content.array_records.values()
        counts = (metrics.get("num-examples") for metrics in reply.content.metric_records.values())
        examples = next((int(count) for count in counts if isinstance(count, int | float) and count >= 1), None)
        client = str(reply.metadata.src_node_id)
        store_back(self.folder, number, record.to_torch_state_dict(), client, examples)

    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # a full disk never breaks a round
            _LOG.warning("unsum: an update was not stored. %s: %s", type(error).__name__, error)
