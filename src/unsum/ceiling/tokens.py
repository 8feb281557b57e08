"""Tokens of a text, each against the one that the model expects most in its place."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.ceiling.client import World
from unsum.ceiling.secret import STRATA, TwoWorlds, View
from unsum.models.language import IGNORED

WHOLE_TEXT = 32  # [tokens] a text of no more is gone through token by token


@dataclass(frozen=True, eq=False)
class Tokens:
    """One token of text `i` against the one that the model expects most there, `likeliest` (n, L).

    `places` of the text can be changed: padding cannot. The label of a place changes with its
    token, and alone where the token itself is masked.
    """

    world: World
    i: int
    likeliest: Tensor
    places: Tensor
    amplitude: float = 1.0
    weights: None = None
    many: bool = True
    views: tuple[View, ...] = ("whole",)

    @property
    def exhaustive(self) -> bool:
        return len(self.places) <= WHOLE_TEXT

    @property
    def strata(self) -> int:
        return max(len(self.places), 1) if self.exhaustive else STRATA

    def draw(
        self,
        stratum: int,
        generator: torch.Generator,
        world: World | None = None,
        view: View = "whole",  # noqa: ARG002 (there is one)
    ) -> TwoWorlds:
        world = world or self.world
        if not len(self.places):
            return TwoWorlds(world, world, discrete=True)
        share = (stratum + float(torch.rand((), generator=generator))) / self.strata
        chosen = stratum if self.exhaustive else int(share * len(self.places))
        place = int(self.places[min(chosen, len(self.places) - 1)])
        turned = torch.zeros(self.world.inputs.shape[1], dtype=torch.bool)
        turned[place] = True
        return TwoWorlds(world, self._turned(world, turned), discrete=True)

    def shuffled(self, world: World, generator: torch.Generator) -> World:
        turned = torch.zeros(self.world.inputs.shape[1], dtype=torch.bool)
        places = self.places.cpu()
        turned[places] = torch.randint(2, places.shape, generator=generator).bool()
        return self._turned(world, turned)

    def _turned(self, world: World, places: Tensor) -> World:
        """The other of both tokens in each of these `places` (L,)."""
        own, label = self.world.inputs[self.i], None
        turned, other = places.to(own.device), self.likeliest[self.i].to(own)
        if self.world.targets.shape == self.world.inputs.shape:
            label = self.world.targets[self.i]
        predicted = torch.zeros_like(turned) if label is None else label != IGNORED
        masked = torch.zeros_like(turned) if label is None else predicted & (label != own)
        inputs, targets = world.inputs.clone(), world.targets.clone()
        row = inputs[self.i]
        inputs[self.i] = torch.where(turned & ~masked, torch.where(row == own, other, own), row)
        if label is not None:
            said = targets[self.i]
            changed = torch.where(said == label, other.to(label), label)
            targets[self.i] = torch.where(turned & predicted, changed, said)
        return world._replace(inputs=inputs, targets=targets)
