"""unsum: a gradient is a sum over people's samples; this undoes the sum.

The public API, re-exported. Audit only systems that you operate or have permission to test.

Nothing is imported before it is asked for: PyTorch takes seconds, and `unsum --help` needs none of it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from unsum.version import __version__

if TYPE_CHECKING:
    from unsum.attack import attack, separate
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
    from unsum.momentum import without_momentum
    from unsum.peel import Peeled, peel
    from unsum.score import score
    from unsum.separate.several_rounds import separate_rounds
    from unsum.update import Update

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
    "without_momentum",
]

_HOMES = {
    name: module
    for module, names in {
        "unsum.attack": "attack separate",
        "unsum.audit": "Audit Sweep audit sweep",
        "unsum.client": "capture capture_local capture_text mixup smooth_labels",
        "unsum.defend": "DPSGD QSGD BFloat16 Clip ClipLayers DropBias DropHead Float16 Laplace Mixup "
        "Noise Prune PruneGlobal Quantize SecAgg Sign SmoothLabels Soteria aggregate privacy_spent",
        "unsum.doctor": "Finding doctor",
        "unsum.errors": "UnsumError",
        "unsum.invert": "invert",
        "unsum.knowledge": "Knowledge",
        "unsum.labels": "labels",
        "unsum.leak": "Leak",
        "unsum.local_training": "LocalTraining",
        "unsum.models.received": "Received",
        "unsum.momentum": "without_momentum",
        "unsum.peel": "Peeled peel",
        "unsum.score": "score",
        "unsum.separate.several_rounds": "separate_rounds",
        "unsum.update": "Update",
    }.items()
    for name in names.split()
}


class _Package(ModuleType):
    """This package: what `__all__` names is imported on first use, and so are its modules."""

    def __getattr__(self, name: str) -> Any:
        if name in _HOMES:
            value = getattr(import_module(_HOMES[name]), name)
            super().__setattr__(name, value)
            return value
        if not name.startswith("_"):
            whole = f"{__name__}.{name}"
            try:
                return import_module(whole)
            except ModuleNotFoundError as error:
                if error.name != whole:
                    raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        """Importing `unsum.audit` would put that package in the place of the function of the same name."""
        if name not in _HOMES or not isinstance(value, ModuleType):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *__all__})


sys.modules[__name__].__class__ = _Package
