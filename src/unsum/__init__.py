"""unsum: a gradient is a sum over people's samples; this undoes the sum.

The public API, re-exported. Audit only systems that you operate or have permission to test.
"""

from unsum.attack import attack
from unsum.audit import Audit, Sweep, audit, sweep
from unsum.client import capture, capture_local, capture_text, mixup, smooth_labels
from unsum.defend import (
    DPSGD,
    QSGD,
    BFloat16,
    Clip,
    ClipLayers,
    DropBias,
    DropHead,
    Float16,
    Laplace,
    Mixup,
    Noise,
    Prune,
    PruneGlobal,
    Quantize,
    SecAgg,
    Sign,
    SmoothLabels,
    Soteria,
    aggregate,
    privacy_spent,
)
from unsum.doctor import Finding, doctor
from unsum.errors import UnsumError
from unsum.invert import invert
from unsum.knowledge import Knowledge
from unsum.labels import labels
from unsum.leak import Leak
from unsum.local_training import LocalTraining
from unsum.models.received import Received
from unsum.peel import Peeled, peel
from unsum.score import score
from unsum.separate import separate
from unsum.separate.several_rounds import separate_rounds
from unsum.update import Update
from unsum.version import __version__

__all__ = [
    "DPSGD",
    "QSGD",
    "Audit",
    "BFloat16",
    "Clip",
    "ClipLayers",
    "DropBias",
    "DropHead",
    "Finding",
    "Float16",
    "Knowledge",
    "Laplace",
    "Leak",
    "LocalTraining",
    "Mixup",
    "Noise",
    "Peeled",
    "Prune",
    "PruneGlobal",
    "Quantize",
    "Received",
    "SecAgg",
    "Sign",
    "SmoothLabels",
    "Soteria",
    "Sweep",
    "UnsumError",
    "Update",
    "__version__",
    "aggregate",
    "attack",
    "audit",
    "capture",
    "capture_local",
    "capture_text",
    "doctor",
    "invert",
    "labels",
    "mixup",
    "peel",
    "privacy_spent",
    "score",
    "separate",
    "separate_rounds",
    "smooth_labels",
    "sweep",
]
