"""Through residual blocks with BatchNorm: `walk` is the method; `reach` says beforehand how far it
goes.

Its parts, as it calls them:

- `start`: where it starts, among the blocks that `network.residual_blocks` finds;
- `shared`, `solve`: what a convolution read, out of its gradient; `joint`: out of its output as
  well;
- `masks`: which entries ReLU let through.
"""

from unsum.peel.residual.reach import Depth, Reach, reach
from unsum.peel.residual.walk import residual

__all__ = ["Depth", "Reach", "reach", "residual"]
