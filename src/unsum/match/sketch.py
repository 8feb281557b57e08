"""Long vectors hashed to short ones: a sparse random projection that keeps inner products on average (count sketch).

S (d × n) has one ±1 in every column, at a random place: (S g)_k = Σ over i with place i = k of sign_i g_i, E⟨S g, S h⟩ = ⟨g, h⟩.
It costs one pass over g and two short integers an entry, where a dense projection would need d · n numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Sketch:
    """From `length` entries to `dimension`; where there are no more than that, nothing is done.

    >>> Sketch(1000, 64, seed=0)(torch.ones(2, 1000)).shape
    torch.Size([2, 64])
    """

    def __init__(self, length: int, dimension: int, seed: int) -> None:
        self.hashes = length > dimension
        self.dimension = dimension if self.hashes else length
        generator = torch.Generator().manual_seed(seed)
        count = length if self.hashes else 0
        self.places = torch.randint(dimension, (count,), generator=generator)
        self.signs = 2.0 * torch.randint(2, (count,), generator=generator) - 1

    def __call__(self, vectors: Tensor) -> Tensor:
        """(N, length) → (N, dimension)."""
        if not self.hashes:
            return vectors
        signs, places = self.signs.to(vectors), self.places.to(vectors.device)
        return vectors.new_zeros(len(vectors), self.dimension).index_add_(1, places, vectors * signs)
