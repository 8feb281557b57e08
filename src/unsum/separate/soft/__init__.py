"""Soft-label recovery of one sample, one idea per file. To read it in the order of the computation:

- `recovery`: the method itself, from head to `Leak`, and in which order the searches are tried;
- `ray`: the rank-one gradient, one direction of features and the label ŷ(λ) along it;
- `search`: the loss, how much the entries of ŷ(λ) differ that a smoothed or mixed label holds
  equal, and the two searches for its root, L-BFGS and particles.
"""

from unsum.separate.soft.recovery import soft

__all__ = ["soft"]
