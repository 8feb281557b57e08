"""Flower's quickstart for PyTorch, played: its network, its clients' epoch of 32s by SGD with
momentum, its server's strategy; on crops of the embedded photos in the place of CIFAR-10."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import FedAvg, Strategy
from messages import Grid, reply
from torch import Tensor, nn

from unsum.data import embedded_batch

CLASSES, SIZE, MOMENTUM, RATE = 10, 32, 0.9, 0.01
CLIENTS, ROUNDS, SAMPLES = 3, 2, 320


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.pool = (
            nn.Conv2d(3, 6, 5),
            nn.Conv2d(6, 16, 5),
            nn.MaxPool2d(2, 2),
        )
        self.fc1, self.fc2, self.fc3 = (
            nn.Linear(16 * 5 * 5, 120),
            nn.Linear(120, 84),
            nn.Linear(84, CLASSES),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(torch.relu(self.conv1(x)))
        x = self.pool(torch.relu(self.conv2(x)))
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x.view(-1, 16 * 5 * 5))))))


def private(client: int) -> tuple[Tensor, Tensor]:
    """Crops of photos; every client has a class of its own that it has most of."""
    photos = embedded_batch(CLASSES, image_size=48).images
    generator = torch.Generator().manual_seed(client)
    weights = torch.ones(CLASSES)
    weights[client] = 8
    labels = torch.multinomial(weights, SAMPLES, replacement=True, generator=generator)
    places = torch.randint(16, (SAMPLES, 2), generator=generator).tolist()
    return torch.stack(
        [photos[c, :, t : t + 32, s : s + 32] for c, (t, s) in zip(labels, places, strict=True)]
    ), labels


def local_epoch(weights: dict[str, Tensor], client: int) -> dict[str, Tensor]:
    model, (x, y) = Net(), private(client)
    model.load_state_dict(weights)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    for some in torch.randperm(len(x)).split(SIZE):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[some]), y[some]).backward()
        optimizer.step()
    return model.state_dict()


def play(wrap) -> None:
    """The server's part, with the one strategy wrapped."""
    torch.manual_seed(0)
    strategy: Strategy = wrap(FedAvg())
    arrays = ArrayRecord(Net().state_dict())
    for number in range(1, ROUNDS + 1):
        messages = strategy.configure_train(
            number, arrays, ConfigRecord({"lr": RATE}), Grid(CLIENTS)
        )
        replies = []
        for message in messages:
            (sent,) = message.content.array_records.values()
            client = message.metadata.dst_node_id - 1000
            replies.append(
                reply(message, local_epoch(dict(sent.to_torch_state_dict()), client), SAMPLES)
            )
        arrays, _ = strategy.aggregate_train(number, replies)
