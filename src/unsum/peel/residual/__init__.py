"""Through residual blocks with BatchNorm: `walk` is the method; `reach` says beforehand how far it goes.

Its parts, as it calls them:

- `blocks`, `unit`: which convolutions there are, and what their gradients say of each other; `start`: where it starts;
- `shared`, `solve`: what a convolution read, out of its gradient; `joint`: out of its output as well;
- `masks`: which entries ReLU let through.
"""

from unsum.peel.residual.reach import Depth, Reach, reach
from unsum.peel.residual.walk import residual

__all__ = ["Depth", "Reach", "reach", "residual"]
