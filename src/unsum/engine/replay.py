"""The gradient that an answer sends, compared tensor by tensor with the one received.

Every method builds a `Replay` from its own pass through the model. `certify.doubts.replay` judges
it. A tensor is explained where its residual is no larger than rounding: either a share of the
tensor's size (`Replay.within`), or what a second computation in the client's precision differs by.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

# [residuals that rounding explains] what a sample must send to be seen above them.
# Chosen by: arbitrary margin.
VISIBLE = 3.0
# [unit roundoffs] relative residual that a client's arithmetic explains.
# Chosen by: arbitrary margin.
_ROUNDOFFS = 100
# [relative] the same at most, for half precision, which would allow 0.1.
# Chosen by: arbitrary margin.
_COARSEST = 1e-3
_PART = 2.0  # [residuals] what a missing sample may send at most. Chosen by: arbitrary margin.
_TINY = 1e-300  # [norm] keeps a division by zero from being one. Chosen by: float64's range.
# [entries] converted to float64 at a time. Chosen by: 8 MB stay in a processor's cache.
CHUNK = 1 << 20


def rounding(dtype: torch.dtype) -> float:
    """The largest relative residual that a client's arithmetic in this precision explains."""
    return min(_ROUNDOFFS * torch.finfo(dtype).eps, _COARSEST)


def tolerance(*dtypes: torch.dtype) -> float:
    """The same for a client that computes in float32, and sent tensors of `dtypes`."""
    return max(map(rounding, (torch.float32, *dtypes)))


@dataclass(frozen=True)
class Replay:
    """Norms of t tensors: what was `sent`, the residual that is `left`, and its `rounding`.

    `rounding` is the largest residual that rounding explains. `parts` (n, t) is what each of n
    samples sends. `sizes` (t,) are what residuals are relative to, by default what was sent. All
    are in units of the gradient that was received.
    """

    names: tuple[str, ...]
    sent: Tensor
    left: Tensor
    rounding: Tensor
    parts: Tensor | None = None
    sizes: Tensor | None = None

    @classmethod
    def within(
        cls,
        sent: Mapping[str, Tensor],
        left: Mapping[str, Tensor],
        sizes: Mapping[str, float] | None = None,
        limit: float | Tensor | None = None,
        parts: Tensor | None = None,
    ) -> Replay:
        """The replay of tensors `left`, of which a share of `limit` is rounding.

        By default the limit is that of a client that computes in float32.
        """
        names = tuple(left)
        received = norms(sent[name] for name in names)
        size = received if sizes is None else received.new_tensor([sizes[name] for name in names])
        explained = (tolerance() if limit is None else limit) * size
        residuals = norms(left.values()).to(received)
        return cls(names, received, residuals, explained, parts, size)

    @property
    def explains(self) -> bool:
        """Whether rounding explains all that is left, in every tensor; NaN explains nothing."""
        return bool((self.left <= self.rounding).all())

    @property
    def residual(self) -> float:
        """The share of the whole gradient that is left."""
        return float(self.left.norm() / self.sent.norm().clamp_min(_TINY))

    @property
    def unexplained(self) -> float:
        """The largest share of any tensor that is left."""
        sizes = self.sent if self.sizes is None else self.sizes
        return float((self.left / sizes.clamp_min(_TINY)).max())

    @property
    def excess(self) -> float:
        """The largest residual in units of what rounding explains of it."""
        return float(self._excesses.max())

    @property
    def worst(self) -> str:
        """The tensor with the largest residual in these units."""
        return self.names[int(self._excesses.nan_to_num(nan=torch.inf).argmax())]

    @property
    def _excesses(self) -> Tensor:
        return self.left / self.rounding.clamp_min(_TINY)

    @property
    def unseen(self) -> float:
        """The largest share of the gradient that a sample may send and still be missing."""
        return _PART * self.residual

    @property
    def level(self) -> Tensor:
        """(t,) what a sample must send to be seen."""
        return VISIBLE * torch.maximum(self.left, self.rounding)

    def shows(self) -> Tensor:
        """(n, t) in which tensors each sample is seen."""
        assert self.parts is not None
        return self.parts > self.level

    def confirmations(self, used: Iterable[str]) -> int:
        """The number of tensors that show every sample, other than those `used` to find them."""
        unused = torch.tensor([name not in set(used) for name in self.names])
        return int((self.shows().all(0).cpu() & unused).sum())


def norms(tensors: Iterable[Tensor]) -> Tensor:
    """(t,) the norm of each tensor in float64."""
    return torch.stack([_norm(tensor) for tensor in tensors])


def fitted_scale(sent: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> float:
    """The factor of the gradient `own` that leaves least of what was sent."""
    both = whole = 0.0
    for name, g in own.items():
        pairs = zip(g.reshape(-1).split(CHUNK), sent[name].reshape(-1).split(CHUNK), strict=True)
        for ours, received in pairs:
            both += float(torch.dot(received.to(ours), ours))
            whole += float(torch.dot(ours, ours))
    return both / max(whole, _TINY)


def _norm(tensor: Tensor) -> Tensor:
    return torch.stack([part.double().norm() for part in tensor.reshape(-1).split(CHUNK)]).norm()
