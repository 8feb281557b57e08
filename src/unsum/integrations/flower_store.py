"""Flower: a strategy that stores what every client sends, for `unsum audit --flower-run`; training
is the same with and without.

strategy = StoreUpdates(FedAvg(), "seen")
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from unsum.integrations.flower_messages import WrappedStrategy, num_examples
from unsum.integrations.stored import store_back, store_sent

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import Strategy

__all__ = ["StoreUpdates"]

_LOG = logging.getLogger("flwr")


class StoreUpdates(WrappedStrategy):
    """`inner` as it is; what it sends out and what comes back is stored under `folder`, a folder a
    round.

    The files hold the clients' updates: keep them as private as these. One copy of the weights a
    round, and one a client.
    """

    def __init__(self, inner: Strategy, folder: str | Path) -> None:
        # servers may change where they stand
        self.inner, self.folder = inner, Path(folder).absolute()

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

    def summary(self) -> None:
        self.inner.summary()
        _LOG.info("unsum: every update is stored under %s", self.folder)

    def _store_sent(self, number: int, messages: list[Message]) -> None:
        """Once for all clients that were sent the same record, which is the rule."""
        first: ArrayRecord | None = None
        for message in messages:
            (record,) = message.content.array_records.values()
            config = {
                key: value
                for one in message.content.config_records.values()
                for key, value in one.items()
            }
            if first is None:
                first = record
                store_sent(self.folder, number, record.to_torch_state_dict(), config)
            elif record is not first:
                client = str(message.metadata.dst_node_id)
                store_sent(self.folder, number, record.to_torch_state_dict(), config, client)

    def _store_back(self, number: int, reply: Message) -> None:
        (record,) = reply.content.array_records.values()
        client = str(reply.metadata.src_node_id)
        store_back(self.folder, number, record.to_torch_state_dict(), client, num_examples(reply))

    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # a full disk never breaks a round
            _LOG.warning("unsum: an update was not stored. %s: %s", type(error).__name__, error)
