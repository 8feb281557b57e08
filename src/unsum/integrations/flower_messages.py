"""What every strategy of ours asks of Flower's messages; the one place that says how to get
Flower."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from unsum.errors import UnsumError

try:
    from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import Strategy
except ImportError as missing:
    raise UnsumError(
        "This needs Flower of 1.30 or later, which is not installed: pip install 'unsum[flower]'."
    ) from missing


class WrappedStrategy(Strategy):
    """`inner` as it is; evaluation, and what others ask of it (its fractions, its privacy
    accountant), is its own matter."""

    inner: Strategy

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self.inner.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        return self.inner.aggregate_evaluate(server_round, replies)


def only_arrays(message: Message) -> ArrayRecord | None:
    records = list(message.content.array_records.values())
    return records[0] if len(records) == 1 else None


def tensors_of(record: ArrayRecord) -> Mapping[str, Tensor]:
    return dict(record.to_torch_state_dict())


def num_examples(reply: Message) -> int | None:
    """As Flower's own strategies weigh clients by it."""
    for metrics in reply.content.metric_records.values():
        count = metrics.get("num-examples")
        if isinstance(count, (int, float)) and 1 <= count < 2**63:  # others say nothing
            return int(count)
    return None
