"""How much of a client's text came back: sequences paired with the truth, then compared token by token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from unsum.errors import UnsumError

Sequences = Tensor | Sequence[Sequence[int]]


def score_text(found: Sequence[Sequence[int]] | None, true: Sequences) -> dict[str, float]:
    """Shares of the true tokens found in their place, and of the true sequences found whole.

    `true` is a list of sequences, or (n, L) with −100 where they are padded.

    >>> score_text([[4, 5, 6], [1, 2, 9]], [[1, 2, 3], [4, 5, 6]])
    {'tokens_correct': 0.8333333333333334, 'sequences_correct': 0.5, 'sequences_error': 0.0}
    """
    if found is None:
        raise UnsumError("This leak holds no text; attack a language model with the attack 'text'.")
    rows = [[int(token) for token in row if int(token) >= 0] for row in true]
    hits = np.array([[sum(map(int.__eq__, row, other)) for other in found] for row in rows]).reshape(
        len(rows), len(found)
    )
    pairs = [(int(i), int(j)) for i, j in zip(*linear_sum_assignment(-hits), strict=True)]
    whole = sum(rows[i] == list(found[j]) for i, j in pairs)
    return {
        "tokens_correct": float(sum(hits[i, j] for i, j in pairs)) / sum(map(len, rows)),
        "sequences_correct": whole / len(rows),
        "sequences_error": float(len(found) - len(rows)),
    }
