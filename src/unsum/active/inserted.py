"""Any model behind a layer of the server's. The layer hands on its input with a little added, so the model works as before."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Inserted(nn.Module):
    """model(front(x)). The model's parameters keep their names behind `model.`, the layer's stand behind `front.`."""

    def __init__(self, front: nn.Module, model: nn.Module) -> None:
        super().__init__()
        self.front, self.model = front, model
        if hasattr(model, "image_size"):
            self.image_size = model.image_size
        self.training = model.training

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.model(self.front(x))
        return output


def random_patterns(count: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """(count, D) of unit size per entry: what the layer adds to its input, so that the loss feels its activations."""
    size = int(torch.Size(shape).numel())
    return torch.randn(count, size, generator=generator)
