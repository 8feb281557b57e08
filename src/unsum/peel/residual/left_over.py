"""What gradients say of maps that they do not determine.

Where a walk ends for want of equations, those that there are still hold. `LeftOver` turns them into
the smallest correction that they ask of a guess at the maps: zero for the true ones, and the
guess's own error as far as the gradients see it.
"""

from __future__ import annotations

import copy
from dataclasses import fields
from functools import cached_property

import torch
from torch import Tensor

from unsum.network.unit import Unit
from unsum.peel.residual.shared import PlaceClass, Shared, Taker

# of the largest eigenvalue: directions below amplify the rounding of float32 gradients three
# hundred times and more
_SEEN = 1e-5


class LeftOver:
    """The equations of `shared` that are left, for maps that its readers read."""

    def __init__(self, shared: Shared) -> None:
        self.layer = shared.readers[0].unit.name
        self.readers, self.parts = shared.readers, shared.parts
        self.size = shared.size
        self._cast: dict[torch.dtype, tuple[list[Taker], list[PlaceClass]]] = {
            torch.float64: (self.readers, self.parts)
        }

    @cached_property
    def inverses(self) -> list[tuple[Tensor, Tensor]]:
        """Of every class of places: only who asks for a correction has to wait for them."""
        return [_inverse(part) for part in self.parts]

    @property
    def numbers(self) -> int:
        return sum(len(values) for values, _ in self.inverses) * self.size[1] // self.size[0]

    def correction(self, maps: Tensor) -> Tensor:
        """(B, I, h, w), differentiable; of two maps with one correction, the gradients cannot say
        which was read."""
        readers, parts = self._in(maps.dtype)
        misfit = [r.unit.told(maps)[0] - r.unit.times(r.unit.centered(r.d), maps) for r in readers]
        found = torch.zeros_like(maps)
        for part, (values, basis) in zip(parts, self.inverses, strict=True):
            along = basis.to(maps)
            part.put(
                found, along @ ((along.T @ part.transposed(misfit)) / values.to(maps)[:, None])
            )
        return found

    def _in(self, dtype: torch.dtype) -> tuple[list[Taker], list[PlaceClass]]:
        if dtype not in self._cast:
            readers = [
                Taker(_narrow(reader.unit, dtype), reader.d.to(dtype)) for reader in self.readers
            ]
            self._cast[dtype] = readers, [part.cast(readers, dtype) for part in self.parts]
        return self._cast[dtype]


def _inverse(part: PlaceClass) -> tuple[Tensor, Tensor]:
    """The eigenvalues (r,) of RᵀR that count, and their eigenvectors (n, r): they make its
    pseudoinverse.

    The smaller one of RᵀR and RRᵀ tells them, which is RRᵀ where equations are fewer than unknowns.
    """
    wide = part.equations < part.unknowns
    R = part.R if wide else part.R.T
    values, basis = torch.linalg.eigh(R @ R.T)
    seen = values > _SEEN * values[-1]
    values, basis = values[seen], basis[:, seen]
    return values, R.T @ basis / values.sqrt() if wide else basis


def _narrow(unit: Unit, dtype: torch.dtype) -> Unit:
    narrow = copy.copy(unit)
    for one in fields(unit):
        value = getattr(unit, one.name)
        if isinstance(value, Tensor):
            # frozen, and this copy is nobody else's yet
            object.__setattr__(narrow, one.name, value.to(dtype))
    return narrow
