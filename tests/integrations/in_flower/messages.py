"""A round without a network between: the messages a strategy makes, answered in place by a function
of the test's own."""

from __future__ import annotations

from collections.abc import Callable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from torch import Tensor, nn

# Flower's runtime says who makes a message; here, without one, the test does.
TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1

Answer = Callable[[int, dict[str, Tensor]], dict[str, Tensor]]


class Grid:
    """As much of Flower's grid as a strategy asks for."""

    def __init__(self, nodes: int) -> None:
        self.nodes = [1000 + i for i in range(nodes)]

    def get_node_ids(self) -> list[int]:
        return self.nodes


def ask(strategy: object, model: nn.Module, nodes: int, number: int = 1) -> list[Message]:
    messages = strategy.configure_train(
        number, ArrayRecord(model.state_dict()), ConfigRecord(), Grid(nodes)
    )
    # strategies draw them at random
    return sorted(messages, key=lambda message: message.metadata.dst_node_id)


def reply(message: Message, weights: dict[str, Tensor], examples: int = 4) -> Message:
    content = RecordDict(
        {
            "arrays": ArrayRecord(weights),
            "metrics": MetricRecord({"num-examples": examples, "loss": 1.5}),
        }
    )
    return Message(content, reply_to=message)


def answers(messages: list[Message], answer: Answer) -> list[Message]:
    replies = []
    for place, message in enumerate(messages):
        sent = next(iter(message.content.array_records.values())).to_torch_state_dict()
        replies.append(reply(message, answer(place, dict(sent))))
    return replies
