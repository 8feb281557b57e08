"""What a malicious server is: a layer to put in front of the model, and a reader to read the update
of that layer.

The layer hands on its input with a little added, so that the model behind it works as before.

Was it one sample? Two that resemble each other act alike on every layer, so that each layer reads
the same mean of them: that several readings agree excludes different samples, but no siblings. What
excludes these is the grid of 8-bit pictures, or the number.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from unsum.errors import UnsumError, check_name
from unsum.knowledge import Knowledge
from unsum.registry import Registry
from unsum.separate.options import read_value
from unsum.update import Update

_LEVELS = 255  # of an 8-bit picture
_OFF_GRID = 0.1  # in levels; pixels of a mixture of several pictures are spread evenly over ±0.5
_FEWEST = 64  # pixels, below which a mixture may lie on the grid by accident


@dataclass(frozen=True)
class Recovered:
    """Inputs read out of one layer. `exact` says which of them stood there alone; the others are
    mixtures of several.

    `errors` are relative, as rounding alone makes them expected; `rows` is where in the layer each
    was found.
    """

    inputs: Tensor  # (N, …) float32
    exact: Tensor  # (N,) bool
    errors: Tensor  # (N,)
    rows: Tensor  # (N,)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, repr=False)
class Reader(ABC):
    """What the server remembers of its change."""

    name: str
    shape: tuple[int, ...]
    pixel_range: tuple[float, float] | None = field(default=(0.0, 1.0), kw_only=True)
    photos: str = field(default="", kw_only=True)  # what it knew of inputs

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

    def __repr__(self) -> str:
        return f"Reader({self.name}: {self.summary}, inputs {self.shape})"


def gradients_of(update: Update, layer: str) -> tuple[Tensor, Tensor]:
    """The gradient of an inserted linear layer's weight and bias in float64, or a sentence that
    says what lacks."""
    names = [f"front.{layer}.{part}" for part in ("weight", "bias")]
    for name in names:
        if name not in update.gradients:
            raise UnsumError(
                f"The update lacks {name!r}, the layer that the server put in; read one of the "
                "changed model."
            )
    weight, bias = (update.gradients[name].detach() for name in names)
    return weight.double(), bias.double()


class Server(Protocol):
    """Makes the layer and its reader for inputs of `shape`; further keyword-only arguments are its
    options."""

    def __call__(
        self, shape: tuple[int, ...], generator: torch.Generator, auxiliary: Tensor | None
    ) -> tuple[nn.Module, Reader]: ...


SERVERS: Registry[Server] = Registry("server", "unsum.servers")


class Inserted(nn.Module):
    """model(front(x)). The model's parameters keep their names behind `model.`, the layer's stand
    behind `front.`."""

    def __init__(self, front: nn.Module, model: nn.Module) -> None:
        super().__init__()
        self.front, self.model = front, model
        if hasattr(model, "image_size"):
            self.image_size = model.image_size
        self.training = model.training

    def forward(self, x: Tensor) -> Tensor:
        return self.model(self.front(x))


def random_patterns(count: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """(count, D) of unit size per entry: what the layer adds to its input, so that the loss feels
    its activations."""
    size = int(torch.Size(shape).numel())
    return torch.randn(count, size, generator=generator)


def parse_server(text: str) -> tuple[str, dict[str, Any]]:
    """The name and the options.

    >>> parse_server("imprint:bins=128,strength=0.01")
    ('imprint', {'bins': 128, 'strength': 0.01})
    """
    name, _, written = text.partition(":")
    options: dict[str, Any] = {}
    for part in filter(None, written.split(",")):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value:
            raise UnsumError(
                "Options of a server are written NAME:OPTION=VALUE, as in imprint:bins=128, not "
                f"{text!r}."
            )
        options[key] = read_value(value)
    return name.strip(), options


def check_server(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options, checked against those the server takes by name and kind."""
    parameters = inspect.signature(SERVERS[name]).parameters
    own = {
        key: p.default for key, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY
    }
    for key, value in options.items():
        check_name(f"option of the server {name!r}", key, own)
        if isinstance(own[key], int) and not isinstance(value, int):
            raise UnsumError(
                f"The option {key!r} of the server {name!r} is a whole number, not {value!r}."
            )
        if isinstance(own[key], float) and not isinstance(value, int | float):
            raise UnsumError(
                f"The option {key!r} of the server {name!r} is a number, not {value!r}."
            )
    return options


def in_range(inputs: Tensor, limits: tuple[float, float] | None, slack: float = 1e-3) -> Tensor:
    """(N,) whether every entry is a possible pixel; True throughout where the range of inputs is
    not known."""
    if limits is None:
        return torch.ones(len(inputs), dtype=torch.bool, device=inputs.device)
    flat = inputs.flatten(1)
    return (flat.amin(1) >= limits[0] - slack) & (flat.amax(1) <= limits[1] + slack)


def on_grid(inputs: Tensor) -> Tensor:
    """(N,) whether all pixels are multiples of 1/255, as those of an 8-bit picture are and those of
    a mixture are not.

    Proof where it holds. Where it does not, the client may have resized or augmented its pictures.
    """
    flat = _LEVELS * inputs.flatten(1)
    if flat.shape[1] < _FEWEST:
        return torch.zeros(len(flat), dtype=torch.bool, device=inputs.device)
    several = (flat.amax(1) - flat.amin(1)) > 8  # a picture of one tone tells nothing
    return ((flat - flat.round()).abs().amax(1) < _OFF_GRID) & several


def counted(update: Update, found: int) -> bool:
    """Whether the protocol discloses that the batch holds as many samples as stand apart in the
    layer: one each."""
    return update.batch_size == found
