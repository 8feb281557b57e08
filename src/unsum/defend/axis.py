"""What the one number of a defense means: how to space several of them, and which way the defense gets stronger."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Axis:
    """`meaning` completes "strength: …". `rising` says that larger numbers change the update more; a norm to clip to does the
    opposite. `whole` numbers are counts, of bits or levels."""

    meaning: str
    spacing: Literal["geometric", "linear"] = "geometric"
    rising: bool = True
    whole: bool = False


SCALE = Axis("scale")
NORM = Axis("largest norm that is let through", rising=False)
FRACTION = Axis("fraction", spacing="linear")
