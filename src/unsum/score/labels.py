"""How many of a batch's labels are right, whichever feature or picture each was found with.

Labels are a multiset: of n_c samples of class c, min(n_c, m_c) are right where c was found m_c
times. What they give away is what is right beyond a guess. Without the update, whoever knows how
many samples and classes there are names every class about equally often, and is right for E Σ_c
min(n_c, m_c) of them, where n_c is binomial. Names beyond the batch raise that guess, so that
whoever names every class has found nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

_ONE = 1e-3  # how far from 1 probabilities may sum
READ = 0.5  # share of what a guess leaves open, from which labels count as read


@dataclass(frozen=True, eq=False)
class LabelsRead:
    """`right` of the `total` labels, out of as many as have `rows`; a guess is right for
    `by_chance` of them on average.

    >>> eye = torch.eye(100)
    >>> read = LabelsRead.of(eye[[3, 3, 7]], eye[[3, 7, 9]], "exact")
    >>> read.right, read.total, read.named, round(read.by_chance, 2), read.given_away
    (2, 3, 3, 0.09, True)
    """

    right: int
    total: int
    by_chance: float
    by: str = ""  # the attack that found them
    rows: Tensor = field(default_factory=lambda: torch.zeros(0, 1), repr=False)  # (n, C) as found

    @classmethod
    def of(cls, found: Tensor, true: Tensor, by: str = "") -> LabelsRead:
        """Of target rows (n, C) and (B, C)."""
        same = same_labels(found, true)
        right = sum(
            j is not None and bool(same[i, j]) for i, j in enumerate(pair_labels(found, true))
        )
        classes = max(true.shape[1], 2)  # a single output tells two of them apart
        return cls(right, len(true), guessed_right(len(true), classes, len(found)), by, found)

    @property
    def named(self) -> int:
        return len(self.rows)

    @property
    def share(self) -> float:
        """Beyond a guess of as many names, of what a guess leaves open; from 0 to 1. Who names more
        than there are must be right about those as well: half of all classes hold four labels by
        luck once in sixteen times."""
        left = max(self.total, self.named) - guessed_right(
            self.total, max(self.rows.shape[1], 2), self.total
        )
        return max(self.right - self.by_chance, 0.0) / left if left > 1e-9 else 0.0

    @property
    def given_away(self) -> bool:
        return self.share > READ

    @property
    def sentence(self) -> str:
        """With the guess, where more than nothing was named: of few classes any answer has some
        right."""
        said = f"{self.right} of {self.total} labels were recovered"
        if self.named == 0:
            return f"{said}."
        surplus = f" by naming {self.named}" if self.named > self.total else ""
        return (
            f"{said}{surplus} ({self.by}); without the update a guess has {self.by_chance:.1f} "
            "right on average."
        )

    def to_dict(self) -> dict[str, Any]:
        figures = {
            name: getattr(self, name) for name in ("right", "total", "named", "by_chance", "by")
        }
        return figures | {"given_away": self.given_away}


def pair_labels(
    found: Tensor, true: Tensor, partner: Sequence[int | None] = ()
) -> list[int | None]:
    """For every true row (B, C), a found row (n, C) of the same label, each used once; else one
    that is left, or None.

    A sample's own `partner` comes first, where that has the right label or is left.

    >>> pair_labels(torch.eye(4)[[2, 1, 0]], torch.eye(4)[[1, 2, 3, 3]])
    [1, 0, 2, None]
    """
    own = list(partner) or [None] * len(true)
    same = same_labels(found, true)
    answer: list[int | None] = [
        None if j is None or not bool(same[i, j]) else j for i, j in enumerate(own)
    ]
    left = [j for j in range(len(found)) if j not in set(answer)]
    for i, alike in enumerate(same.tolist()):
        j = next((j for j in left if alike[j]), None) if answer[i] is None else None
        if j is not None:
            answer[i] = j
            left.remove(j)
    for i, preferred in enumerate(own):
        if answer[i] is None and left:
            answer[i] = left.pop(left.index(preferred) if preferred in left else 0)
    return answer


def is_distribution(row: Tensor) -> bool:
    """Whether a target row holds the probabilities of two classes or more."""
    return len(row) > 1 and float(row.min()) > -_ONE and abs(float(row.sum()) - 1) < _ONE


def same_labels(found: Tensor, true: Tensor) -> Tensor:
    """(B, n) which of the found rows (n, C) say the same as which true rows (B, C): the largest of
    probabilities; else every label that is more likely than not.

    >>> same_labels(  # one class
    ...     torch.tensor([[0.4, 0.6], [0.6, 0.4]]), torch.tensor([[0.0, 1.0]])
    ... ).tolist()
    [[True, False]]
    >>> same_labels(  # two labels, one of them found
    ...     torch.tensor([[0.9, 0.2, 0.1]]), torch.tensor([[1.0, 1.0, 0.0]])
    ... ).tolist()
    [[False]]
    """
    likely, wanted = found > 0.5, true > 0.5
    alike = torch.cdist(wanted.float(), likely.float(), p=1.0) == 0
    classes = torch.tensor([is_distribution(row) for row in true], dtype=torch.bool)
    single = likely.sum(1) <= 1
    largest = true.argmax(1)[:, None] == found.argmax(1)[None]
    return torch.where(classes[:, None] & single[None], largest, alike)


def guessed_right(samples: int, classes: int, named: int) -> float:
    """How many of the labels of so many samples a guess of `named` labels gets right on average.

    It names every class ⌊named / classes⌋ times, and some of them once more, which is the best
    where nothing is known of any.

    >>> [round(guessed_right(*sizes), 6) for sizes in ((2, 2, 2), (1, 10, 1), (3, 5, 15))]
    [1.5, 0.1, 3.0]
    """
    often, more = divmod(named, classes)
    highest = min(often + 1, samples)
    k = np.arange(highest)  # as logarithms: the ways to choose overflow
    ways = math.lgamma(samples + 1) - _log_factorial(k) - _log_factorial(samples - k)
    exactly = np.exp(ways + k * math.log(1 / classes) + (samples - k) * math.log1p(-1 / classes))
    # the chance that a class has 1, 2, … samples or more
    reached = np.clip(1 - exactly.cumsum(), 0, 1)
    once_more = reached[often] if often < len(reached) else 0.0
    return float(classes * reached[:often].sum() + more * once_more)


def _log_factorial(numbers: np.ndarray) -> np.ndarray:
    found: np.ndarray = torch.lgamma(torch.from_numpy(numbers).double() + 1).numpy()
    return found
