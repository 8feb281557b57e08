"""What a search has found: points, each of them once, and how many starts ended in each."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor

from unsum.engine.budget import Budget

SAME, BLUR = Budget.same, Budget.blur  # the defaults
# [relative distance] from which two points confirm nothing. Chosen by: arbitrary margin.
_FAR = 1e-2


@dataclass(frozen=True)
class Rows:
    """Tensors, or other `Rows`, with a row for each sample; `those[kept]` are some of them.

    Fields of other types belong to all rows.
    """

    @property
    def _of_rows(self) -> dict[str, Any]:
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: value for name, value in values if isinstance(value, Tensor | Rows)}

    def __len__(self) -> int:
        return len(next(iter(self._of_rows.values())))

    def __getitem__(self, kept: Any) -> Self:
        return replace(self, **{name: value[kept] for name, value in self._of_rows.items()})


@dataclass(frozen=True)
class FoundPoints(Rows):
    """Points (R, n), predicted relative errors, misfits, and how many starts ended there (R,)."""

    points: Tensor
    errors: Tensor
    misfits: Tensor
    hits: Tensor

    @classmethod
    def of(cls, points: Tensor, errors: Tensor, misfits: Tensor, **columns: Tensor) -> Self:
        """Ends of starts, each of which found its own."""
        return cls(points, errors, misfits, torch.ones_like(misfits), **columns)

    @classmethod
    def unranked(cls, points: Tensor, **columns: Tensor) -> Self:
        """Points of which none is better than another: of those that are one, the first stays."""
        none = points.new_zeros(len(points))
        return cls.of(points, none, none, **columns)

    @classmethod
    def none(cls, like: Tensor) -> Self:
        """No points; they would be as long as the rows of a tensor."""
        empty = like.new_zeros(0, like.shape[1], dtype=torch.float64)
        return cls.of(empty, empty[:, :1].flatten(), empty[:, :1].flatten())

    @property
    def twice(self) -> int:
        """How many points several starts ended in."""
        return int((self.hits > 1).sum())

    def joined(self, other: Self, same: float = SAME, blur: float = BLUR) -> Self:
        """Both, each point once: the one that fits better stays, and hits add up.

        Two are one within a relative distance of `same` and `blur` times their predicted errors.
        """
        return self.stacked(other).distinct(same, blur)

    def stacked(self, other: Self) -> Self:
        """The points of both, as they are."""
        pairs = ((name, value, getattr(other, name)) for name, value in self._of_rows.items())
        both = {name: torch.cat([mine, theirs]) for name, mine, theirs in pairs}
        return replace(self, **both)

    def distinct(self, same: float = SAME, blur: float = BLUR) -> Self:
        """Each point once, the best one first; of equally good ones the first."""
        firsts, groups = self.grouped(same, blur)
        hits = self.hits.new_zeros(len(firsts)).index_add_(0, groups, self.hits)
        return replace(self[firsts], hits=hits)

    def grouped(self, same: float = SAME, blur: float = BLUR) -> tuple[Tensor, Tensor]:
        """(indices of the points that differ, the best one first; which of these each point is).

        A point belongs to the best of those that are near and belong to no other.
        """
        order = self.misfits.argsort(stable=True)
        ordered = self[order]
        near = ordered._near(ordered, same, blur).cpu().numpy()
        kept: list[int] = []
        groups: list[int] = []
        for i in range(len(order)):
            first = near[i, kept].nonzero()[0]
            groups.append(int(first[0]) if len(first) else len(kept))
            if not len(first):
                kept.append(i)
        of_each = torch.empty_like(order)
        of_each[order] = order.new_tensor(groups)
        return order[kept], of_each

    def confirmed_by(
        self, other: FoundPoints, same: float = SAME, blur: float = BLUR, most: float = _FAR
    ) -> Self:
        """These points, with the starts of others that ended in the same ones."""
        if len(self) == 0 or len(other) == 0:
            return self
        near = self._near(other, same, blur, most)
        return replace(self, hits=self.hits + near.to(self.hits) @ other.hits.to(self.hits))

    def apart_from(self, other: FoundPoints, same: float = SAME, blur: float = BLUR) -> Tensor:
        """(R,) which points are none of the others."""
        return ~self._near(other, same, blur).any(1)

    def nearest(self, other: FoundPoints) -> Tensor:
        """(R,) the nearest of the others to each point."""
        return torch.cdist(self.points, other.points).argmin(1)

    def _near(
        self,
        other: FoundPoints,
        same: float,
        blur: float,
        most: float = torch.inf,
    ) -> Tensor:
        """(R, R′) which points are the same."""
        within = (same + blur * (self.errors[:, None] + other.errors)).clamp_max(most)
        sizes = self.points.norm(dim=1, keepdim=True).clamp_min(1e-300)
        return torch.cdist(self.points, other.points) < within * sizes


@dataclass(frozen=True)
class LabeledPoints(FoundPoints):
    """Points (R, n) with labels (R,): two of different labels are never one."""

    labels: Tensor

    def _near(
        self,
        other: FoundPoints,
        same: float,
        blur: float,
        most: float = torch.inf,
    ) -> Tensor:
        assert isinstance(other, LabeledPoints)
        return super()._near(other, same, blur, most) & (self.labels[:, None] == other.labels)
