"""More samples than the gradient has directions (B ≥ C), separated by their features' zeros. In the order of reading:

- `coding`: columns of the gradient as non-negative combinations of known atoms;
- `atoms`: the atoms p − y themselves, learned from the sparsest columns;
- `method`: from head and labels to `Leak`, with the softmax as the check.
"""

from unsum.separate.crowded.method import crowded, suits_crowded

__all__ = ["crowded", "suits_crowded"]
