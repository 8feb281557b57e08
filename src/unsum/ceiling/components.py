"""Components of pictures and entries of other arrays: secrets that are steps up or down."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from unsum.ceiling.client import World
from unsum.ceiling.secret import STRATA, TwoWorlds, View, drawn, with_row
from unsum.photos import coefficients, component, frequencies, pictures_of


@dataclass(frozen=True, eq=False)
class Components:
    """One component of sample `i`, as it is or mirrored: c and −c, where x = guess + Σ_k c_k e_k.

    `guess` is what an attacker answers without the update (`unsum.score.reference`). Whoever knows
    every |c_k| and all signs but one has a squared error of c_k² mmse there, so that

        1 − ‖x̂ − x‖² / ‖guess − x‖²  ≤  Σ c_k² known_k / Σ c_k²

    in the mean over both worlds: the unit is that of the leakage, sample by sample. Components are
    drawn in proportion to c_k². Of pictures they are waves times colors, low frequencies in the
    first stratum, because signs of waves are what photos leave open; of anything else entries.
    With an `amplitude` a of less than 1 the step is 2 a c_k.

    Of a picture the means of the colors, its tone, are a view of their own: `whole` draws one of
    them as often as their share of Σ c_k² says, and another component else; `toneless` draws that
    other component always. Both views of one generator agree where no tone is drawn.
    """

    world: World
    i: int
    guess: Tensor
    pictures: bool = False
    amplitude: float = 1.0
    exhaustive: bool = False
    weights: None = None
    many: bool = True

    @property
    def strata(self) -> int:
        return STRATA if self.pictures else 1

    @property
    def views(self) -> tuple[View, ...]:
        two = self.pictures and float(self._table[1][-1]) > 0
        return ("whole", "toneless") if two else ("whole",)

    def draw(
        self,
        stratum: int,
        generator: torch.Generator,
        world: World | None = None,
        view: View = "whole",
    ) -> TwoWorlds:
        world = world or self.world
        order, mass, size, tone = self._table
        still, rest = float(size[tone].square().sum()), float(mass[-1])
        if not still + rest > 0:  # the sample is what anybody guesses
            return TwoWorlds(world, world, (self.i, -1))
        first, within = torch.rand(2, generator=generator).tolist()
        if (view == "whole" and first * (still + rest) < still) or not rest > 0:
            place = int(tone[drawn(size[tone].square().cumsum(0), first * (still + rest) / still)])
        else:
            place = int(order[drawn(mass, (stratum + within) / self.strata)])
        shape = self.world.inputs.shape[1:]
        unit = component(shape, place) if self.pictures else one_entry(shape, place)
        now = size[place]
        if world is not self.world:
            off = world.inputs[self.i].detach().cpu().double() - self.guess.view(shape).cpu()
            now = (unit * off).sum()
        step = float(2 * (1 - self.amplitude) * size[place] - 2 * now) * unit
        return moved(world, self.i, step, place)

    def shuffled(self, world: World, generator: torch.Generator) -> World:
        size = self._table[2]
        flips = torch.randint(2, size.shape, generator=generator)
        mirrored = size * (1 - 2 * self.amplitude * flips)
        shape = world.inputs.shape[1:]
        off = pictures_of(mirrored.view(1, *shape))[0] if self.pictures else mirrored.view(shape)
        row = (self.guess.cpu().double().view(shape) + off).to(world.inputs)
        return world._replace(inputs=with_row(world.inputs, self.i, row))

    @cached_property
    def _table(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Places in the order of frequency, their summed squares, all components, and the places of
        the tone, which are not among the first."""
        sample = self.world.inputs[self.i].detach().cpu().double()
        off = sample - self.guess.to(sample).view_as(sample)
        if not self.pictures:
            off = off.flatten()
            nowhere = torch.zeros(0, dtype=torch.long)
            return torch.arange(len(off)), off.square().cumsum(0), off, nowhere
        size = coefficients(off[None])[0].flatten()
        order = frequencies(*off.shape[1:]).expand(off.shape).flatten().argsort(stable=True)
        tone, order = order[: len(off)], order[len(off) :]  # frequency 0, of every color
        return order, size[order].square().cumsum(0), size, tone


@dataclass(frozen=True, eq=False)
class Entries:
    """One entry of sample `i`, as it is or two deviations further, up or down, drawn by variance.

    Of two values 2 a h apart, both as likely, the deviation is a h: h is the entry's `spread`,
    which the user declares, and a the `amplitude`. Which way is drawn once for each entry, so that
    one that is drawn twice is played once.
    """

    world: World
    i: int
    spread: Tensor
    amplitude: float = 1.0
    strata: int = 1
    exhaustive: bool = False
    weights: None = None
    many: bool = True
    views: tuple[View, ...] = ("whole",)

    def draw(
        self,
        stratum: int,  # noqa: ARG002 (all are one stratum)
        generator: torch.Generator,
        world: World | None = None,
        view: View = "whole",  # noqa: ARG002 (there is one)
    ) -> TwoWorlds:
        world = world or self.world
        mass = self.spread.double().flatten().cpu().square().cumsum(0)
        place = drawn(mass, float(torch.rand((), generator=generator)))
        step = float(self._steps[place])
        own, now = (float(w.inputs[self.i].flatten()[place]) for w in (self.world, world))
        back = abs(now - own) > abs(step) / 2
        return moved(
            world, self.i, (-step if back else step) * one_entry(self.spread.shape, place), place
        )

    def shuffled(self, world: World, generator: torch.Generator) -> World:
        steps = self._steps * torch.randint(2, self._steps.shape, generator=generator)
        row = self.world.inputs[self.i]
        row = (row.double() + steps.view(row.shape).to(row.device)).to(row.dtype)
        return world._replace(inputs=with_row(world.inputs, self.i, row))

    @cached_property
    def _steps(self) -> Tensor:
        """Of every entry, as it is drawn by a generator that is the same for all samples."""
        flat = self.spread.double().flatten().cpu()
        up = torch.randint(2, flat.shape, generator=torch.Generator().manual_seed(0))
        return (2 - 4 * up) * flat * self.amplitude


def moved(world: World, i: int, step: Tensor, place: int) -> TwoWorlds:
    """Sample `i` as it is in this world, and this step further.

    Nothing is cut off where an entry leaves its range: worlds are granted, and granting one that
    cannot be keeps the ceiling one.
    """
    sample = world.inputs[i]
    further = (sample.double() + step.to(sample.device)).to(sample.dtype)
    return TwoWorlds(world, world._replace(inputs=with_row(world.inputs, i, further)), (i, place))


def one_entry(shape: torch.Size | tuple[int, ...], place: int) -> Tensor:
    """1 at the flat index `place`, else 0."""
    unit = torch.zeros(math.prod(shape), dtype=torch.float64)
    unit[place] = 1.0
    return unit.view(shape)
