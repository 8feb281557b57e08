"""Many updates of one model: attacked on several cores or machines, one row each, on disk as they
come.

- `arrived`: one update, where it comes from, and what an attack makes of it;
- `store`: the rows, in one SQLite file that survives being killed;
- `workers`, `at_once`: who computes them, on this machine or on others;
- `run`: `attack_many`.
"""

from unsum.audit.many.arrived import Arrived
from unsum.audit.many.run import attack_many
from unsum.audit.many.store import Findings

__all__ = ["Arrived", "Findings", "attack_many"]
