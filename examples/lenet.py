"""The network of the federated tutorials: two convolutions with pooling, then 400-120-84 and the
classes, for photos of 32².

    unsum audit --model examples/lenet.py:build --data photos/ --batch 32

The tutorials of PyTorch and Flower train it on CIFAR-10 and scale photos to [−1, 1] first. Here the
network does that itself, because `unsum` gives it photos in [0, 1]. Layers start as PyTorch makes
them; `unsum` fixes the random numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Net(nn.Module):
    image_size = 32  # where unsum looks for it

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = (x - 0.5) / 0.5
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        logits: Tensor = self.fc3(x)
        return logits


def build(num_classes: int = 10) -> Net:
    return Net(num_classes)
