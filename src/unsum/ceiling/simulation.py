"""The client whose samples are bounded, as an audit simulates it, and its secrets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from unsum.ceiling.alternatives import (
    changeable,
    every_label,
    likeliest_tokens,
    other_labels,
)
from unsum.ceiling.cells import Cells
from unsum.ceiling.client import Client, OwnLoss, SimulatedClient, TextClient, World
from unsum.ceiling.components import Components, Entries
from unsum.ceiling.result import Unit
from unsum.ceiling.secret import Label, Secret
from unsum.ceiling.tokens import Tokens
from unsum.client.step import AnyDefense
from unsum.data.table_schema import TableSchema
from unsum.errors import UnsumError
from unsum.local_training import LocalTraining
from unsum.losses import Loss
from unsum.photos import photo_spread
from unsum.score.reference import diverse_samples, guess, public_picture

_SMALLEST = 4  # pixels: smaller pictures have no spectrum to speak of


@dataclass(frozen=True, eq=False)
class Simulation:
    """A client whose samples are bounded; inputs and targets have one row a sample.

    `spread` is the deviation that an attacker gives an entry before it sees the update, a number or
    a tensor like one sample. By default it is each sample's own distance from what an attacker
    guesses without the update, so that limits are in the unit of the leakage.
    """

    model: nn.Module
    inputs: Tensor
    targets: Tensor
    train: bool = True
    training: LocalTraining | None = None
    loss: str | Loss | OwnLoss | None = None
    buffers: bool = False
    spread: float | Tensor | None = None
    schema: TableSchema | None = None
    text: bool = False
    mask: Tensor | None = None
    segments: Tensor | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.inputs) == 0 or len(self.inputs) != len(self.targets):
            raise UnsumError(
                f"A batch needs as many targets as inputs; found {len(self.inputs)} inputs and "
                f"{len(self.targets)} targets."
            )
        if self.inputs.is_floating_point() and not bool(self.inputs.isfinite().all()):
            raise UnsumError(
                "Inputs hold NaN or infinity; leave these samples out or fill them in."
            )
        if self.buffers and self.training is not None and self.training.several_steps:
            raise UnsumError(
                "A client of several local steps is played without its buffers; leave buffers out, "
                "or give the client (client=), which returns them as Played(noisy, bare)."
            )

    @cached_property
    def world(self) -> World:
        return World(self.inputs, self.targets, self.mask, self.segments)

    @property
    def unit(self) -> Unit:
        if self.text:
            return "text"
        if self.schema is not None:
            return "row"
        return "picture" if self._photos else "sample"

    @property
    def discrete(self) -> bool:
        """Whether a part of a sample is right or wrong: a token, a category."""
        if self.schema is None:
            return self.text
        return any(column.kind != "number" for column in self.schema.columns)

    def client(self, played: Sequence[AnyDefense]) -> Client:
        """With the defenses up to the noise."""
        if self.text:
            return TextClient(self.model, self.train, tuple(played), self.seed)
        return SimulatedClient(
            self.model, self.train, self.training, self.loss, tuple(played), self.buffers, self.seed
        )

    def secrets(self) -> list[Secret]:
        """One for every sample: a component, a cell, a token or an entry of it."""
        samples, world = range(len(self.inputs)), self.world
        if self.text:
            likeliest = likeliest_tokens(
                self.model, self.inputs, self.mask, self.targets, seed=self.seed
            )
            places = [
                changeable(self.model, self.inputs, self.mask, self.targets, i) for i in samples
            ]
            return [Tokens(world, i, likeliest, places[i]) for i in samples]
        if self.spread is not None:
            return [Entries(world, i, self._declared_spread) for i in samples]
        if not self.inputs.is_floating_point():
            raise UnsumError(
                "Inputs that are whole numbers cannot move up or down; give floats, or a language "
                "model that reads them."
            )
        if self.schema is not None:
            return [Cells(world, i, self.schema, self._guess[i]) for i in samples]
        return [Components(world, i, self._guess[i], self._photos) for i in samples]

    def labels(self) -> list[Secret] | None:
        """One for every sample, or None where targets are no classes."""
        if self.text and self.targets.ndim != 1:
            return None
        others = other_labels(self.model, self.inputs, self.targets)
        return (
            None
            if others is None
            else [Label(self.world, i, [other]) for i, other in enumerate(others)]
        )

    def labels_of_any_kind(self) -> list[Secret] | None:
        """One for every sample, against all other labels, or many of them."""
        every = (
            None
            if self.text and self.targets.ndim != 1
            else every_label(self.model, self.inputs, self.targets)
        )
        if every is None:
            return None
        return [Label(self.world, i, others) for i, others in enumerate(every)]

    @property
    def deviations(self) -> Tensor:
        """(…) like one sample's components, in any unit: what bits are spent on."""
        if self.spread is not None:
            return self._declared_spread
        return photo_spread(self.inputs.shape[1:]) if self._photos else self._own_spread

    @property
    def _declared_spread(self) -> Tensor:
        shape = self.inputs.shape[1:]
        spread = torch.as_tensor(self.spread, dtype=torch.float64)
        if not self.inputs.is_floating_point():
            raise UnsumError("A spread is for inputs that are floats; whole numbers have none.")
        if spread.ndim and spread.shape != shape:
            raise UnsumError(
                f"The spread is one number or like one sample, {tuple(shape)}, not "
                f"{tuple(spread.shape)}."
            )
        if not bool((spread >= 0).all() & spread.isfinite().all() & (spread > 0).any()):
            raise UnsumError(
                "The spread is an entry's standard deviation: at least 0, and not 0 everywhere."
            )
        return spread.expand(shape)

    @property
    def _photos(self) -> bool:
        shape = self.inputs.shape
        pictures = self.inputs.ndim == 4 and shape[1] in (1, 3) and min(shape[2:]) >= _SMALLEST
        return pictures and self.inputs.is_floating_point() and self.spread is None

    @cached_property
    def _guess(self) -> Tensor:
        """(B, n) the zero of the scale of leakage: what an attacker answers without the update."""
        public = public_picture(self.inputs)
        return guess(self.inputs, public, diverse_samples(self.inputs, public))

    @property
    def _own_spread(self) -> Tensor:
        """Over the batch, entry by entry; that of all entries where one is the same everywhere."""
        rows = self.inputs.double()
        whole = rows.std(unbiased=False).clamp_min(1e-12)
        own = rows.std(0, unbiased=False) if len(rows) > 1 else torch.zeros_like(rows[0])
        return torch.where(own > 0, own, whole)
