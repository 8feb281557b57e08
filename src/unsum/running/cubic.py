"""How long matrix work takes that nothing can end once it has begun: searches under a time limit
ask before they begin it."""

from __future__ import annotations

import torch

# Cubes of the side in a second of one core, in float64, measured with a side of 3,000 and halved,
# for a machine that does other work besides. A GPU is many times faster, and what it takes was not
# measured: there it is begun at any time.
_EIGENVECTORS, _CHOLESKY = 3.5e9, 5e10


def eigenvector_seconds(side: int, device: torch.device) -> float:
    """Of all eigenvectors of a symmetric matrix."""
    return side**3 / _EIGENVECTORS if device.type == "cpu" else 0.0


def cholesky_seconds(side: int, device: torch.device) -> float:
    """Of Cholesky's factor."""
    return side**3 / _CHOLESKY if device.type == "cpu" else 0.0
