"""unsum: a gradient is a sum over people's samples; this undoes the sum.

The public API, re-exported. Audit only systems that you operate or have permission to test.
"""

from unsum.audit import Audit, audit
from unsum.client import capture, mixup, smooth_labels
from unsum.defend import Clip, Noise, Prune
from unsum.errors import UnsumError
from unsum.invert import invert
from unsum.knowledge import Knowledge
from unsum.labels import labels
from unsum.leak import Leak
from unsum.peel import Peeled, peel
from unsum.recipe import attack
from unsum.score import score
from unsum.separate import separate
from unsum.update import Update
from unsum.version import __version__

__all__ = [
    "Audit",
    "Clip",
    "Knowledge",
    "Leak",
    "Noise",
    "Peeled",
    "Prune",
    "UnsumError",
    "Update",
    "__version__",
    "attack",
    "audit",
    "capture",
    "invert",
    "labels",
    "mixup",
    "peel",
    "score",
    "separate",
    "smooth_labels",
]
