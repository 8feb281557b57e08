"""What a search has found: points, each of them once, and how many starts ended in each."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor

# [relative distance] within which two points are one. Chosen by: arbitrary margin, far above the
# rounding of float32 gradients and far below the distance of two samples.
SAME = 1e-4
# [predicted errors] by which two readings of one point may differ besides. Chosen by: arbitrary
# margin.
BLUR = 10.0
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
    def of(cls, points: Tensor, errors: Tensor, misfits: Tensor) -> Self:
        """Ends of starts, each of which found its own."""
        return cls(points, errors, misfits, torch.ones_like(misfits))

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
        pairs = ((name, value, getattr(other, name)) for name, value in self._of_rows.items())
        both = {name: torch.cat([mine, theirs]) for name, mine, theirs in pairs}
        return replace(self, **both).distinct(same, blur)

    def distinct(self, same: float = SAME, blur: float = BLUR) -> Self:
        """Each point once, the best one first."""
        ordered = self[self.misfits.argsort()]
        near = ordered._near(ordered, same, blur).cpu().numpy()
        kept: list[int] = []
        counts: list[float] = []
        for i, hits in enumerate(ordered.hits.tolist()):
            first = near[i, kept].nonzero()[0]
            if len(first):
                counts[first[0]] += hits
            else:
                kept.append(i)
                counts.append(hits)
        return replace(ordered[kept], hits=self.hits.new_tensor(counts))

    def confirmed_by(self, other: FoundPoints) -> Self:
        """These points, with the starts of others that ended in the same ones."""
        if len(self) == 0 or len(other) == 0:
            return self
        near = self._near(other, SAME, BLUR, _FAR)
        return replace(self, hits=self.hits + near.to(self.hits) @ other.hits)

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
