"""Down through the residual blocks of a network: from exact maps to what every convolution below
read.

It starts at the output of a block that is known for every sample: features of a head that reads
maps as they are, or the input of a block that a separation gave (`Leak.inner`), whatever pooling
stands above. In every block, from its end:

1. d, the gradient behind the last BatchNorm, is the output's, where the output is positive (ReLU).
2. Each unit's input follows from its weight gradient and d (`solve`); where it is positive, it
    passes the gradient on (`masks`).
3. The block's own input follows from the gradients of its first convolution and of the one on the
   shortcut together. With a plain shortcut it is known where the output is positive, x = out − y,
   and lies between 0 and −y elsewhere.

It ends where a convolution's gradient has fewer equations than unknowns.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, replace
from functools import partial
from typing import NoReturn

import torch
from torch import Tensor, nn

from unsum.certify.claim import grant_each
from unsum.errors import UnsumError
from unsum.leak import Leak
from unsum.network.chain import Shape
from unsum.network.residual_blocks import Block, Blocks, find_blocks
from unsum.peel.method import (
    MARGIN,
    PEELERS,
    PRECISE,
    Peeled,
    PeeledLayer,
    check_leak,
)
from unsum.peel.residual.joint import Joint, Output
from unsum.peel.residual.left_over import LeftOver
from unsum.peel.residual.masks import Mask, confirmed, scale_by
from unsum.peel.residual.shared import Shared, Taker, common_step
from unsum.peel.residual.solve import WALK, Pin, Reading, undo
from unsum.peel.residual.start import Origin, at_features, at_maps, known_block
from unsum.running.cubic import cholesky_seconds, eigenvector_seconds
from unsum.running.deadline import out_of_time
from unsum.update import Update

_LOST = 1e-2  # relative residual above which the walk has lost its way
_WELL = 300.0  # condition up to which gradients alone tell enough
_HOPELESS = 0.3  # predicted error of the median sample from which maps are worth little


@PEELERS.register(
    "residual",
    summary="residual blocks under the head, down to what an inner convolution read",
    needs=(
        "exact features of a head that reads maps, or exact maps; BatchNorm; gradients in full "
        "float32"
    ),
)
def residual(
    model: nn.Module,
    update: Update,
    leak: Leak | None,
    *,
    shape: Shape | None,
    seed: int,
    layer: str | None = None,
) -> Peeled:
    """What the convolution `layer` read, for every sample: (B, C, h, w); by default of the deepest
    one that can be reached."""
    if leak is None:
        raise UnsumError("'residual' continues a separation; give the leak of unsum.separate.")
    check_leak(model, leak)
    size = shape[-1] if shape is not None else getattr(model, "image_size", None)
    if not isinstance(size, int) or size < 1 or (shape is not None and len(shape) != 3):
        wanted = "give shape=(3, height, width)"
        raise UnsumError(f"'residual' must know the size of the pictures; {wanted}.")
    known = known_block(model, leak)
    blocks = find_blocks(model, update, leak.scale, size, known)
    names = [
        unit.name
        for block in blocks.below
        for unit in (*block.units, block.shortcut)
        if unit is not None
    ]
    if layer is not None and layer not in names:
        raise UnsumError(
            f"{layer!r} is not a convolution of the blocks under the head; choose one of "
            f"{', '.join(names)}."
        )
    if known is None:
        start = at_features(model, update, leak, blocks.below[-1])
    else:
        start = at_maps(model, update, leak, blocks, size)
    return _Walk(leak, blocks, start, layer).run()


class _Reached(Exception):  # noqa: N818 (not an error: the walk is over)
    """The layer that was asked for, or the last one that can be undone."""


@dataclass
class _Walk:
    leak: Leak
    blocks: Blocks
    start: Origin
    layer: str | None
    entered: tuple[int, Shared] | None = None  # steps before the block's input, and its equations

    def run(self) -> Peeled:
        self.steps: list[_Walked] = []
        self.notes: list[str] = []
        self.errors = self.start.errors  # (B,) of the layer before
        # entries of a block's output of which the mean is known, too
        self.told = torch.ones((), dtype=torch.bool)
        # (B,) share of the gradient behind signs that nothing tells
        self.open = torch.zeros_like(self.errors)
        with contextlib.suppress(_Reached):
            self._down()
        return self._answer()

    def _down(self) -> None:
        start, below = self.start, self.blocks.below
        if start.misfit > _LOST:
            self._end(
                "at its start: the known maps explain the gradients above only to "
                f"{start.misfit:.1g}"
            )
        if below:
            mask = confirmed(start.out, start.gradient, below[-1].units[-1].grad_beta, start.level)
            self.open = self.open + mask.open_share
            out, d = start.out * mask.positive, start.gradient * mask.positive
            for block, feeding in zip(reversed(below), [*reversed(below[:-1]), None], strict=True):
                out, d = self._block(block, feeding, out, d)
        self._end(f"here: {self.blocks.stop}")

    def _block(
        self, block: Block, feeding: Block | None, out: Tensor, d: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The block's input and its gradient where it is positive, from its output and the gradient
        before the last ReLU."""
        sizes = block.sizes(len(out))
        known = _Known(out, d, out, out, d, self.told, len(self.steps) - 1)
        for number in range(len(block.units) - 1, 0, -1):
            unit, before = block.units[number], block.units[number - 1]
            through = partial(unit.back, known.inner)
            readers = [Taker(unit, known.inner)]
            reading = self._undo(
                self._shared(readers, sizes[number]), scale_by(before.grad_beta, through)
            )
            gradient = through(reading.maps)
            mask = confirmed(reading.maps, gradient, before.grad_beta, reading.level)
            maps = self._record(readers, reading, mask)
            y = unit.output(maps) if number == len(block.units) - 1 else known.y
            known = replace(known, y=y, after=maps, inner=gradient * mask.positive)
        beta = feeding.units[-1].grad_beta if feeding is not None else None
        return self._entering(block, sizes[0], beta, known)

    def _entering(
        self, block: Block, size: torch.Size, beta: Tensor | None, known: _Known
    ) -> tuple[Tensor, Tensor]:
        first, shortcut, bounds = block.units[0], block.shortcut, None
        out, y, d = known.out, known.y, known.d
        shown = (out > 0) & known.told
        readers = [Taker(first, known.inner)]
        outputs = [Output(first, known.after, (known.after > 0) & self.told)]
        if shortcut is None:
            low = torch.where(shown, (out - y).clamp_min(0), 0.0)
            high = torch.where(out > 0, math.inf, (-y).clamp_min(0))
            bounds = low, torch.where(shown, low, high)
        else:
            readers.append(Taker(shortcut, d))
            outputs.append(Output(shortcut, out - y, shown))
        seen = _places_read(readers)

        def through(x: Tensor) -> Tensor:
            gradient = sum((r.unit.back(r.d, x) for r in seen.readers), torch.zeros_like(x))
            return gradient + d if shortcut is None else gradient

        shared = self._shared(seen.readers, seen.size(size))
        self.entered = (len(self.steps), shared) if seen.step == 1 else None
        pin = scale_by(beta, through) if shortcut is not None else None
        joint = None
        if not shared.condition < _WELL and seen.step == 1:
            self._look_at_the_clock(
                sum(eigenvector_seconds(part.unknowns, out.device) for part in shared.parts)
            )
            everywhere = torch.ones(shared.size, dtype=torch.bool, device=out.device)
            joint = Joint(shared, outputs, everywhere if bounds is None else bounds[0] != bounds[1])
            if not joint.determined and shortcut is not None:
                self._aside(Taker(shortcut, d), shared, size)
        reading = self._undo(shared, pin, bounds, joint)
        mask = None
        if beta is not None:
            gradient = through(reading.maps)
            mask = confirmed(reading.maps, gradient, beta, reading.level)
        guessed = shortcut is not None and beta is None and first.batch_statistics
        maps = self._record(seen.readers, reading, mask, guessed=guessed)
        self._correct(
            known,
            y + (maps if shortcut is None else shortcut.output(maps)) if seen.step == 1 else out,
        )
        if mask is None:
            self._end(f"here: {self.blocks.stop}")
        if seen.step > 1:
            self._end(f"at {first.name!r}: the block passes over places, which carry no gradient")
        return maps, gradient * mask.positive

    def _correct(self, known: _Known, out: Tensor) -> None:
        """Where BatchNorm hid means of the block's output, the block itself tells them once its
        input is read."""
        if known.step >= 0 and not bool(known.told.all()) and bool(self.told.all()):
            maps = torch.where(known.told, known.out, out.relu())
            self.steps[known.step] = replace(
                self.steps[known.step], maps=maps, doubts=[], partly=None
            )

    def _aside(self, reader: Taker, shared: Shared, size: torch.Size) -> None:
        """What the shortcut's convolution alone tells, where that of both does not do; then the
        walk is over."""
        seen = _places_read([reader])
        alone = self._shared(seen.readers, seen.size(size))
        if seen.step == 1 or math.isinf(alone.condition):
            return
        self._record(
            seen.readers, self._undo(alone, None), None, guessed=reader.unit.batch_statistics
        )
        self._end(_too_many(shared))

    def _end(self, why: str) -> NoReturn:
        self.notes.append(f"The walk ends {why}.")
        raise _Reached

    def _undo(
        self,
        shared: Shared,
        pin: Pin | None,
        bounds: tuple[Tensor, Tensor] | None = None,
        joint: Joint | None = None,
    ) -> Reading:
        if math.isinf(shared.condition) if joint is None else not joint.determined:
            self._end(_too_many(shared))
        reading = undo(shared, pin, bounds, joint)
        self._look_at_the_clock()  # a fixed point that was cut short is none
        return reading

    def _look_at_the_clock(self, needed: float = 0.0) -> None:
        if out_of_time(WALK, needed):
            self._end("here: time was over")

    def _shared(self, readers: list[Taker], size: torch.Size) -> Shared:
        """The equations of all readers, where there is time to factor them."""
        step = common_step(readers)
        unknowns = size.numel() // size[1] // step**2  # of each of step² classes of places
        self._look_at_the_clock(step**2 * cholesky_seconds(unknowns, readers[0].d.device))
        return Shared(readers, size)

    def _record(
        self, readers: list[Taker], reading: Reading, mask: Mask | None, *, guessed: bool = False
    ) -> Tensor:
        """The maps with their zeros; `mask` is None where nothing confirms them, `guessed` their
        scale."""
        unit, equations = readers[0].unit, sum(reader.unit.W.numel() for reader in readers)
        errors = reading.errors + reading.condition * self.open
        if reading.residual > _LOST or not float(errors.median()) < _HOPELESS:
            self._end(
                f"at {unit.name!r}, whose gradient is explained to {reading.residual:.1g} only "
                f"(condition {reading.condition:.1g})"
            )
        self.errors = torch.maximum(self.errors, errors)
        maps, doubts, partly = reading.maps, [], None
        if guessed:
            doubts.append(
                f"The scale of what {unit.name!r} read is that of the running statistics: a guess."
            )
        if mask is not None:
            maps = maps * mask.positive
            self.open = self.open + mask.open_share
            hidden = mask.without_zero(reading.hidden)
            self.told = ~hidden
            count = int(hidden.flatten(2).any(2).sum())
            if count:
                partly = None if guessed else maps.where(self.told, torch.nan)
                doubts.append(
                    f"{count} of {maps.shape[1]} channels that {unit.name!r} read are positive "
                    "throughout the batch, so that BatchNorm hides their mean; their smallest "
                    "entry was taken for zero."
                )
        layer = PeeledLayer(
            unit.name, float(self.errors.max()), reading.residual, maps.numel(), equations
        )
        self.steps.append(
            _Walked(
                layer, [reader.unit.name for reader in readers], maps, self.errors, doubts, partly
            )
        )
        if self.layer in self.steps[-1].names:
            raise _Reached
        return maps

    def _answer(self) -> Peeled:
        steps, notes = self.steps, self.notes
        if not steps or (self.layer is not None and self.layer not in steps[-1].names):
            where = f"{self.layer!r}" if self.layer is not None else "any inner layer"
            raise UnsumError(" ".join([f"What {where} read cannot be peeled.", *notes]))
        last = len(steps) - 1
        if self.layer is None:
            last = max((number for number, step in enumerate(steps) if step.sure), default=last)
        for step in steps[last + 1 :]:
            notes.append(
                f"What {step.layer.name!r} read is too uncertain (predicted error "
                f"{step.layer.predicted_error:.1g})."
            )
        found = steps[last]
        errors = torch.full_like(found.errors, math.inf) if found.doubts else found.errors
        if not self.leak.exact:
            notes.append(
                "The separation that this continues is not certified, so neither is what was read."
            )
        exact = grant_each(MARGIN * errors, above=self.leak.exact, doubts=found.doubts)
        layers = [step.layer for step in steps[: last + 1]]
        # Others read these maps for exact ones: what is in doubt stays out, unless it is the
        # answer.
        kept = [step for step in steps[:last] if not step.doubts] + [found]
        inner = self.start.inner | {name: step.maps for step in kept for name in step.names}
        notes = [*found.doubts, *notes]
        partly = _next_in_part(steps[last:])
        # Where the block's input was not read, or badly, its equations hold all the same.
        hint = (
            LeftOver(self.entered[1])
            if self.entered is not None and self.entered[0] == last + 1
            else None
        )
        maps = found.maps
        return Peeled(
            "residual",
            maps,
            errors,
            exact,
            False,
            layers,
            notes,
            inner=inner,
            partly=partly,
            hint=hint,
        )


@dataclass(frozen=True)
class _Known:
    """What is known inside a block on the way down, with gradients where the ReLU lets them
    through."""

    out: Tensor  # the block's output
    d: Tensor  # the gradient before its last ReLU
    y: Tensor  # what the last unit wrote
    after: Tensor  # what the unit below reads into: the input of the last unit that was undone
    inner: Tensor  # its gradient, before the ReLU
    told: Tensor  # (1, C, h, w) entries of `out` of which the mean is known, too
    step: int  # of the walk that read `out`


@dataclass(frozen=True)
class _Walked:
    """A layer that was walked through: what all convolutions `names` read, with (B,) errors, and
    what speaks against it."""

    layer: PeeledLayer
    names: list[str]
    maps: Tensor
    errors: Tensor
    doubts: list[str]
    partly: Tensor | None = None  # the maps where only some channels are in doubt: NaN there

    @property
    def sure(self) -> bool:
        """Whether at least half of the samples could be certified."""
        return not self.doubts and bool(self.errors.median() < PRECISE)


def _next_in_part(steps: list[_Walked]) -> dict[str, Tensor]:
    """What was read below the last sure maps, where all that speaks against it are means that
    BatchNorm hides."""
    for step in steps:
        if step.partly is not None and bool(step.errors.median() < PRECISE):
            return dict.fromkeys(step.names, step.partly)
    return {}


@dataclass(frozen=True)
class _Seen:
    """Readers of the places that any of them looks at: every `step`-th, where all are 1×1
    convolutions with a stride."""

    readers: list[Taker]
    step: int

    def size(self, size: torch.Size) -> torch.Size:
        return torch.Size((*size[:2], *(-(-side // self.step) for side in size[2:])))


def _places_read(readers: list[Taker]) -> _Seen:
    steps = {reader.unit.stride if reader.unit.kernel == 1 else 1 for reader in readers}
    step = steps.pop() if len(steps) == 1 else 1
    if step == 1:
        return _Seen(readers, 1)
    return _Seen([Taker(replace(reader.unit, stride=1), reader.d) for reader in readers], step)


def _too_many(shared: Shared) -> str:
    part = max(shared.parts, key=lambda part: part.unknowns / max(part.equations, 1))
    name, B = shared.readers[0].unit.name, shared.size[0]
    if part.equations + part.hides_mean >= part.unknowns:
        return f"at {name!r}, whose gradient does not determine what it read"
    most = (part.equations + part.hides_mean) * B // part.unknowns
    return (
        f"at {name!r}, whose gradient has {part.equations} equations for {part.unknowns} places; "
        f"{f'a batch of at most {most} would go on' if most else 'no batch is small enough'}"
    )
