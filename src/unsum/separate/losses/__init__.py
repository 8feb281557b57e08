"""Losses other than cross-entropy: starts by kind (`separable`, `softmax`), the solver, and `recognize`.

Contrastive losses have the structure but no start: see the docs.
"""

from unsum.separate.losses.recognize import advice, fitting_loss
from unsum.separate.losses.solver import separate_declared

__all__ = ["advice", "fitting_loss", "separate_declared"]
