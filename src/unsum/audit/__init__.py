"""The main job: one federated round, its attack, its score and its report."""

from unsum.audit.report import Audit
from unsum.audit.run import audit
from unsum.audit.sweep.report import Sweep
from unsum.audit.sweep.run import sweep
from unsum.audit.verdict import judge

__all__ = ["Audit", "Sweep", "audit", "judge", "sweep"]
