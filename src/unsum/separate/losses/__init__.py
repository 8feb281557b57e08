"""Losses other than cross-entropy: starts by kind (`separable`, `softmax`), and the solver.

Contrastive losses have the structure but no start: see the docs.
"""

from unsum.separate.losses.solver import advice, fitting_loss, separate_declared

__all__ = ["advice", "fitting_loss", "separate_declared"]
