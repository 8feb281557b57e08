"""unsum: a gradient is a sum over people's samples; this undoes the sum.

The public API, re-exported. Audit only systems that you operate or have permission to test.

Nothing is imported before it is asked for: PyTorch takes seconds, and `unsum --help` needs none of
it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from unsum.version import __version__

if TYPE_CHECKING:
    from unsum.attack import attack as attack
    from unsum.attack import separate as separate
    from unsum.audit import Audit as Audit
    from unsum.audit import Sweep as Sweep
    from unsum.audit import audit as audit
    from unsum.audit import sweep as sweep
    from unsum.audit.ceilings import ceiling as ceiling
    from unsum.audit.groups import Attacker as Attacker
    from unsum.audit.groups import AuditLimits as AuditLimits
    from unsum.audit.groups import ClientSamples as ClientSamples
    from unsum.audit.groups import ClientTraining as ClientTraining
    from unsum.audit.groups import Loading as Loading
    from unsum.audit.many import Arrived as Arrived
    from unsum.audit.many import Findings as Findings
    from unsum.audit.many import attack_many as attack_many
    from unsum.ceiling.observer import Observer as Observer
    from unsum.ceiling.result import Ceiling as Ceiling
    from unsum.client import capture as capture
    from unsum.client import capture_local as capture_local
    from unsum.client import capture_text as capture_text
    from unsum.client import mixup as mixup
    from unsum.client import smooth_labels as smooth_labels
    from unsum.defend import DPSGD as DPSGD
    from unsum.defend import QSGD as QSGD
    from unsum.defend import BFloat16 as BFloat16
    from unsum.defend import Clip as Clip
    from unsum.defend import ClipLayers as ClipLayers
    from unsum.defend import DropBias as DropBias
    from unsum.defend import DropHead as DropHead
    from unsum.defend import Float16 as Float16
    from unsum.defend import Laplace as Laplace
    from unsum.defend import Mixup as Mixup
    from unsum.defend import Noise as Noise
    from unsum.defend import Prune as Prune
    from unsum.defend import PruneGlobal as PruneGlobal
    from unsum.defend import Quantize as Quantize
    from unsum.defend import SecAgg as SecAgg
    from unsum.defend import Sign as Sign
    from unsum.defend import SmoothLabels as SmoothLabels
    from unsum.defend import Soteria as Soteria
    from unsum.defend import aggregate as aggregate
    from unsum.defend import privacy_spent as privacy_spent
    from unsum.doctor import Finding as Finding
    from unsum.doctor import doctor as doctor
    from unsum.errors import UnsumError as UnsumError
    from unsum.invert import invert as invert
    from unsum.knowledge import Knowledge as Knowledge
    from unsum.labels import labels as labels
    from unsum.leak import Leak as Leak
    from unsum.local_training import LocalTraining as LocalTraining
    from unsum.models.momentum import without_momentum as without_momentum
    from unsum.models.received import Received as Received
    from unsum.peel import Peeled as Peeled
    from unsum.peel import peel as peel
    from unsum.score import score as score
    from unsum.separate.several_rounds import separate_rounds as separate_rounds
    from unsum.update import Update as Update

_HOMES = {
    name: module
    for module, names in {
        "unsum.attack": "attack separate",
        "unsum.audit": "Audit Sweep audit sweep",
        "unsum.audit.ceilings": "ceiling",
        "unsum.audit.groups": "Attacker ClientTraining AuditLimits Loading ClientSamples",
        "unsum.ceiling.observer": "Observer",
        "unsum.ceiling.result": "Ceiling",
        "unsum.audit.many": "Arrived Findings attack_many",
        "unsum.client": "capture capture_local capture_text mixup smooth_labels",
        "unsum.defend": (
            "DPSGD QSGD BFloat16 Clip ClipLayers DropBias DropHead Float16 Laplace Mixup Noise "
            "Prune PruneGlobal Quantize SecAgg Sign SmoothLabels Soteria aggregate privacy_spent"
        ),
        "unsum.doctor": "Finding doctor",
        "unsum.errors": "UnsumError",
        "unsum.invert": "invert",
        "unsum.knowledge": "Knowledge",
        "unsum.labels": "labels",
        "unsum.leak": "Leak",
        "unsum.local_training": "LocalTraining",
        "unsum.models.received": "Received",
        "unsum.models.momentum": "without_momentum",
        "unsum.peel": "Peeled peel",
        "unsum.score": "score",
        "unsum.separate.several_rounds": "separate_rounds",
        "unsum.update": "Update",
    }.items()
    for name in names.split()
}
__all__ = [*_HOMES, "__version__"]


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
        """Importing `unsum.audit` would put that package in the place of the function of the same
        name."""
        if name not in _HOMES or not isinstance(value, ModuleType):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *__all__})


sys.modules[__name__].__class__ = _Package
