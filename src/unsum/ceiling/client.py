"""The client, played once more in another world: the same training on other data, without noise.

Everything random that is not the noise (dropout, blends, random rounding) falls alike in both
worlds. That grants it to the attacker, so that the ceiling stays one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from unsum.batch_statistics import BatchStatistics
from unsum.ceiling.coin import Separation
from unsum.client.capture import capture_trained
from unsum.client.local import train_locally
from unsum.client.step import AnyDefense, ClientStep, Gradients, Stage, first_step, in_mode
from unsum.client.text import capture_text
from unsum.errors import UnsumError
from unsum.local_training import LocalTraining
from unsum.losses import Loss
from unsum.update import Update

OwnLoss = Callable[[object, Tensor], Tensor]  # (what the model returns, targets) → a number


class World(NamedTuple):
    """What the client has, one row a sample; beside padded texts lie a mask and segments."""

    inputs: Tensor
    targets: Tensor
    mask: Tensor | None = None
    segments: Tensor | None = None


class Played(NamedTuple):
    """What a client sends of one world: what noise is added to, and what goes beside it."""

    noisy: Mapping[str, Tensor]
    bare: Mapping[str, Tensor] = {}


class Client(Protocol):
    """Sends an update of any world; the same one for the same world."""

    def __call__(self, world: World) -> Played: ...


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random numbers from `seed`; afterwards they go on as if nothing had been drawn.

    `torch.manual_seed` formats three stack traces, which takes longer than a small client's
    gradient; it is left to processes that have devices to seed.
    """
    if torch.cuda.is_initialized() or torch.backends.mps.is_available():
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            yield
        return
    before = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before)


@dataclass(frozen=True, eq=False)
class SimulatedClient:
    """The client that an audit simulates, up to the noise of its defenses."""

    model: nn.Module
    train: bool = True
    training: LocalTraining | None = None
    loss: str | Loss | OwnLoss | None = None
    defenses: Sequence[AnyDefense] = ()
    buffers: bool = False
    seed: int = 0

    def __call__(self, world: World) -> Played:
        with seeded(self.seed):
            step = self._step(world)
            if self.training is not None:
                how: dict[str, Any] = {"training_known": False}
                sent = train_locally(step, self.training, self.defenses, **how).gradients
                return Played(sent, self._beside(step) if self.buffers else {})
            update = capture_trained(step, self.defenses, buffers=self.buffers)[0]
        return Played(update.gradients, _buffers(update.statistics))

    def _beside(self, step: ClientStep) -> Mapping[str, Tensor]:
        """What the buffers say of the batch, after one step however it is declared."""
        return _buffers(capture_trained(step, self.defenses, buffers=True)[0].statistics)

    def _step(self, world: World) -> ClientStep:
        if not callable(self.loss) or isinstance(self.loss, Loss):
            return first_step(self.model, world.inputs, world.targets, self.train, self.loss)
        for part in self.defenses:
            if getattr(part, "stage", Stage.UPDATE) != Stage.UPDATE:
                raise UnsumError(
                    f"{part!r} works on the losses that unsum knows; with a loss of your own, give "
                    "the client (client=)."
                )
        step = first_step(self.model, world.inputs, world.targets, self.train)
        return replace(step, gradient=_OwnGradient(self.loss))


def _buffers(sent: BatchStatistics) -> dict[str, Tensor]:
    kinds = {"mean": sent.means, "variance": sent.variances}
    return {f"{kind} of {n}": v for kind, layers in kinds.items() for n, v in layers.items()}


@dataclass(frozen=True)
class _OwnGradient:
    """∇ of a loss that the user wrote, of whatever the model returns."""

    loss: OwnLoss

    def __call__(self, step: ClientStep) -> Gradients:
        trainable = {name: p for name, p in step.model.named_parameters() if p.requires_grad}
        with in_mode(step.model, step.train), torch.enable_grad():
            value = self.loss(step.model(step.images), step.targets)
            gradients = torch.autograd.grad(value, list(trainable.values()), allow_unused=True)
        named = zip(trainable, gradients, strict=True)
        return {name: g.detach() for name, g in named if g is not None}


@dataclass(frozen=True, eq=False)
class TextClient:
    """One step of a language model on (n, L) tokens, as `capture_text` takes it."""

    model: nn.Module
    train: bool = True
    defenses: Sequence[AnyDefense] = ()
    seed: int = 0

    def __call__(self, world: World) -> Played:
        with seeded(self.seed):
            update = capture_text(
                self.model,
                world.inputs,
                world.targets,
                mask=world.mask,
                segments=world.segments,
                train=self.train,
                defenses=self.defenses,
            )
        return Played(update.gradients)


@dataclass(frozen=True, eq=False)
class OwnClient:
    """A client that the user wrote, with the defenses that change its update before the noise."""

    client: Client
    defenses: Sequence[AnyDefense] = ()
    seed: int = 0

    def __call__(self, world: World) -> Played:
        with seeded(self.seed):
            sent = self.client(world)
            if not isinstance(sent, Played) or not sent.noisy:
                raise UnsumError(
                    "A client of your own returns Played(noisy), with at least one tensor in it."
                )
            update = Update({name: tensor.detach() for name, tensor in sent.noisy.items()})
            for part in self.defenses:
                update = part(update)  # type: ignore[operator] # those inside the client refuse
        return Played(update.gradients, sent.bare)


def separated(one: Played, other: Played, *, by_size: bool = False) -> Separation:
    """How far apart two worlds' updates lie. Names that only one of them sends give it away."""
    noisy = _differences(one.noisy, other.noisy)
    bare = noisy is None or not _same_bits(one.bare, other.bare)
    found = Separation.of(noisy or [], by_size=by_size, bare=bare)
    if found.squared > 0 or _same_bits(one.noisy, other.noisy):
        return found
    return found.of_other_bits()


def _same_bits(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """A zero with a sign is not one without, and NaN is taken not to be NaN."""

    def same(a: Tensor, b: Tensor) -> bool:
        return torch.equal(a, b) and torch.equal(a.signbit(), b.signbit())

    return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)


def difference(one: Played, other: Played) -> dict[str, Tensor]:
    """Of what noise is added to, where both worlds send the same tensors."""
    return {name: _difference(one.noisy[name], other.noisy[name]) for name in one.noisy}


def _differences(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> list[Tensor] | None:
    """None where the names differ."""
    if one.keys() != other.keys():
        return None
    return [_difference(one[name], other[name]) for name in one]


def _difference(one: Tensor, other: Tensor) -> Tensor:
    """Rounded once, relative to itself: by 6e-8 where both are float32."""
    if one.shape != other.shape:  # as many names, other sizes: nothing hides that
        return torch.full((1,), torch.inf, dtype=torch.float64)
    if one.element_size() < 4 or not one.is_floating_point():
        one, other = one.double(), other.double()
    return one - other
