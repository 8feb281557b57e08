"""What a peeler is, and what it answers: the inputs of a batch, layer by layer, with a certificate
for each layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor, nn

from unsum.certify.claim import TRUSTED_ERROR
from unsum.errors import UnsumError
from unsum.head import find_head
from unsum.leak import Leak, MapHint
from unsum.network.chain import Shape
from unsum.registry import Registry
from unsum.update import Update

MARGIN = 5.0  # by which predicted errors of inputs may be off
PRECISE = TRUSTED_ERROR / MARGIN  # predicted relative error below which nothing is to be gained


@dataclass(frozen=True)
class PeeledLayer:
    """One layer whose input was read back: its figures, deepest layer last in `Peeled.layers`."""

    name: str
    predicted_error: float  # of the worst sample's input, relative
    residual: float  # share of the layer's equations that the answer leaves unexplained
    unknowns: int = 0  # per batch
    equations: int = 0
    # unknowns that nothing determines; the answer has the smallest norm among those that fit
    deficiency: int = 0

    @property
    def determined(self) -> bool:
        return self.deficiency == 0


@dataclass(frozen=True)
class Peeled:
    """Every sample's input, in the order of the leak that it continues.

    `inputs` are raw inputs of the model (whatever normalization the client applied is still in
    them), or, where `complete` is false, of the layer that peeling stopped at (`layers[-1]`).
    `errors` predicts each input's relative error, infinite where nothing determines it; `exact` is
    the certificate, sample by sample, granted by `certify.claim` alone.

    Examples:
        >>> import torch, unsum
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(12, 64), torch.nn.Tanh(), torch.nn.Linear(64, 20)
        ... )
        >>> inputs, labels = torch.randn(3, 12), torch.tensor([4, 4, 1])
        >>> peeled = unsum.peel(model, unsum.capture(model, inputs, labels))
        >>> peeled.inputs.shape, peeled.complete, [layer.name for layer in peeled.layers]
        (torch.Size([3, 12]), True, ['0'])
    """

    method: str
    inputs: Tensor  # (B, …)
    errors: Tensor  # (B,)
    exact: Tensor  # (B,) bool
    complete: bool
    layers: list[PeeledLayer] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    # convolution → (B, C, h, w) what it read, on the way down
    inner: dict[str, Tensor] = field(default_factory=dict)
    # the same, NaN where nothing tells an entry
    partly: dict[str, Tensor] = field(default_factory=dict)
    hint: MapHint | None = None  # of the maps at which it ended for want of equations

    def __repr__(self) -> str:
        where = (
            "inputs"
            if self.complete
            else f"inputs of {self.layers[-1].name!r}"
            if self.layers
            else "features"
        )
        shape = "×".join(map(str, self.inputs.shape[1:]))
        return (
            f"Peeled({self.method}: {where} {shape}, {int(self.exact.sum())} of {len(self.exact)} "
            "exact)"
        )


def check_leak(model: nn.Module, leak: Leak) -> None:
    """Refuse a leak that holds no sample, or whose rows do not fit the model's head."""
    classes, width = find_head(model)[1].weight.shape
    B = leak.batch_size
    found = tuple(map(tuple, (leak.targets.shape, leak.logits.shape, leak.features.shape)))
    if B and found == ((B, classes), (B, classes), (B, width)):
        return
    raise UnsumError(
        f"The leak does not fit the model, whose head reads {width} features and gives {classes} "
        f"logits: its targets, logits and features have the shapes {', '.join(map(str, found))}. "
        "Give the leak of unsum.separate for this model and this update."
    )


def checked_shape(shape: object) -> Shape | None:
    """The shape of one input as a tuple of positive integers; None stays None."""
    if shape is None:
        return None
    sizes = tuple(shape) if isinstance(shape, Sequence) else ()
    if sizes and all(isinstance(size, int) and size > 0 for size in sizes):
        return sizes
    raise UnsumError(
        f"shape= is that of one input, (channels, height, width) for a picture, but {shape!r} was "
        "given."
    )


class Peeler(Protocol):
    """Takes the model, the update and, where it continues a separation, its leak; `shape` is one
    input's shape if known.

    Further keyword-only arguments with defaults are the method's options.
    """

    def __call__(
        self, model: nn.Module, update: Update, leak: Leak | None, *, shape: Shape | None, seed: int
    ) -> Peeled: ...


PEELERS: Registry[Peeler] = Registry("peeler", "unsum.peelers")
