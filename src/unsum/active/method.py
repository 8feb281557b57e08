"""What a malicious server is: a layer to put in front of the model, and a reader to read the update of that layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from unsum.errors import UnsumError
from unsum.knowledge import Knowledge
from unsum.registry import Registry
from unsum.update import Update


@dataclass(frozen=True)
class Recovered:
    """Inputs read out of one layer. `exact` says which of them stood there alone; the others are mixtures of several.

    `errors` are relative, as rounding alone makes them expected; `rows` is where in the layer each was found.
    """

    inputs: Tensor  # (N, …) float32
    exact: Tensor  # (N,) bool
    errors: Tensor  # (N,)
    rows: Tensor  # (N,)
    notes: list[str] = field(default_factory=list)


class Reader(ABC):
    """What the server remembers of its change."""

    name: str
    shape: tuple[int, ...]

    @abstractmethod
    def read(self, update: Update) -> Recovered:
        """The inputs that stand in the update of the changed model."""

    @property
    @abstractmethod
    def summary(self) -> str:
        """A few words for reports: how much of what."""

    @property
    def knowledge(self) -> Knowledge:
        """What an attacker needs who does this."""
        return Knowledge(may_change_model=True, auxiliary_photos=self.photos)

    photos: str = ""

    def __repr__(self) -> str:
        return f"Reader({self.name}: {self.summary}, inputs {self.shape})"


def gradients_of(update: Update, layer: str) -> tuple[Tensor, Tensor]:
    """The gradient of an inserted linear layer's weight and bias in float64, or a sentence that says what lacks."""
    names = [f"front.{layer}.{part}" for part in ("weight", "bias")]
    for name in names:
        if name not in update.gradients:
            raise UnsumError(
                f"The update lacks {name!r}, the layer that the server put in; read one of the changed model."
            )
    weight, bias = (update.gradients[name].detach() for name in names)
    return weight.double(), bias.double()


class Server(Protocol):
    """Makes the layer and its reader for inputs of `shape`; further keyword-only arguments are its options."""

    def __call__(
        self, shape: tuple[int, ...], generator: torch.Generator, auxiliary: Tensor | None
    ) -> tuple[nn.Module, Reader]: ...


SERVERS: Registry[Server] = Registry("server", "unsum.servers")
