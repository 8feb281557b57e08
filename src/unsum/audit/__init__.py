"""The main job: one federated round, its attack, its score and its report."""

from unsum.audit.result import Audit, Setting
from unsum.audit.run import audit
from unsum.audit.sweep import Sweep, sweep
from unsum.audit.verdict import Verdict, judge

__all__ = ["Audit", "Setting", "Sweep", "Verdict", "audit", "judge", "sweep"]
