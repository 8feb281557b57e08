"""Losses other than cross-entropy: starts by kind (`separable`, `softmax`), the solver, and the
method for any loss.

Contrastive losses have the structure but no start: see the docs.
"""

from unsum.separate.losses.method import exact_for_any_loss

__all__ = ["exact_for_any_loss"]
