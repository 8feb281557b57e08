"""Exact maps → pictures, by least squares without a prior. To read it in the order of the
computation:

- `method`: the whole of it; `reach`: which map, and whether it has enough numbers;
- `equations`: what a picture makes a layer read, beside what it read, and its derivative;
- `starts`, `guess`: where pictures begin: one color, or a linear regression on the map;
- `descend`: from coarse to fine, Gauss–Newton steps by conjugate gradients; `own_squares`: what
  helps them;
- `contrast`: the scale of a batch in train mode, by the first layer's gradients; `photos`: by the
  levels of bytes;
- `judge`: the gradient of the pictures (`gradient`), computed anew, and what may be claimed of
  them.
"""

from unsum.invert.pixels.method import SolvedPixels, guess_pixels, solve_pixels
from unsum.invert.pixels.reach import PixelReach, find_reach

__all__ = ["PixelReach", "SolvedPixels", "find_reach", "guess_pixels", "solve_pixels"]
