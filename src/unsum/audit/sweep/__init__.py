"""Leakage against the strength of a defense, with what it costs in accuracy: how strong is strong enough?"""

from unsum.audit.sweep.result import Curve, Point, Sweep
from unsum.audit.sweep.run import sweep

__all__ = ["Curve", "Point", "Sweep", "sweep"]
