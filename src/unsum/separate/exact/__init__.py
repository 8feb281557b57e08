"""The exact solver, one idea per file. To read it in the order of the computation:

- `solver`: the method itself, from head to `Leak`;
- `unsum.equation`: noise, rank and factors of the gradient, the one equation with its derivatives,
  and how it is solved;
- `regression`, `hypotheses`, `starts`: labels first, for fresh heads; `single`, `extraction`:
  sample by sample, for trained ones; `exchange`: their labels, where more samples than half the
  classes allow no sample alone; `zeros`: by the features' zeros, for batches near the number of
  classes;
- `proposals`, `search`: which of these starts apply, what they propose, and who decides;
- `unsum.certify`: how sure the answer is, and what a person is told.
"""

from unsum.separate.exact.solver import exact

__all__ = ["exact"]
