"""What other clients' updates hide in a sum, estimated from public data.

Behind secure aggregation the observer sees the sum of K updates. Whoever knows the others' data
takes their updates off: so they are granted, and the ceiling holds whatever they are. Taken for
unknown instead, their sum is a cloud around what the attacker expects. It is estimated here, from n
clients whose samples are drawn from a public pool: with the covariance C of their updates, two
worlds that differ by δ lie

    d² = δᵀ (σ² I + (K − 1) C)⁻¹ δ

deviations apart. Of a Gaussian sum, d from a covariance of n draws is too large rather than too
small on average (the inverse is convex), and what δ has outside of the n draws is hidden by the
noise σ alone. But a sum of few updates is not Gaussian, and a pool is not the other clients: this
is an estimate, and proves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unsum.ceiling.client import Client, World
from unsum.errors import UnsumError

UPDATES = 24  # [updates] of public clients that the covariance is taken from; they are kept
_FLAT = 1e-5  # [1] of the largest variance: a direction with less is rounding


@dataclass(frozen=True)
class Cloud:
    """Updates of public clients less their mean, (n, P), and the directions in which they vary.

    `basis` (n, r) makes unit vectors out of them, `variances` (r,) are of one client's update.
    """

    sizes: Mapping[str, int]
    updates: Tensor
    basis: NDArray[np.float64]
    variances: NDArray[np.float64]

    def along(self, difference: Mapping[str, Tensor]) -> NDArray[np.float64]:
        """(r,) squared lengths of a difference of two updates along these directions."""
        if {name: part.numel() for name, part in difference.items()} != self.sizes:
            raise UnsumError(
                "The other clients send other tensors than this one; leave others= (--others) out."
            )
        inner = self.updates @ _flat(difference).to(self.updates)
        return np.asarray((inner.double().cpu().numpy() @ self.basis) ** 2)


def cloud_of(client: Client, pool: World, size: int, *, seed: int) -> Cloud:
    """Of clients that hold `size` samples of the pool each, drawn with replacement."""
    draw = torch.Generator().manual_seed(seed)
    rows = [torch.randint(len(pool.inputs), (size,), generator=draw) for _ in range(UPDATES)]
    sent = [client(World(pool.inputs[row], pool.targets[row])).noisy for row in rows]
    sizes = {name: part.numel() for name, part in sent[0].items()}
    updates = torch.stack([_flat(one) for one in sent])
    updates -= updates.mean(0)
    values, vectors = np.linalg.eigh((updates @ updates.T).double().cpu().numpy())
    if not np.isfinite(values).all() or values[-1] <= 0:
        raise UnsumError("The other clients' updates do not differ; give more public samples.")
    kept = values > _FLAT * values[-1]
    basis = vectors[:, kept] / np.sqrt(values[kept])
    return Cloud(sizes, updates, basis, values[kept] / (UPDATES - 1))


def _flat(sent: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([part.detach().flatten() for part in sent.values()])
