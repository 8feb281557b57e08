"""The exact solver, one idea per file. To read it in the order of the computation:

- `solver`: the method itself, from head to `Leak`;
- `rank`, `observation`: noise, rank and factors of the gradient, which is all that is known;
- `equation`: the one equation with its derivatives; `levenberg`, `conjugate`: how it is solved;
- `regression`, `hypotheses`, `starts`: labels first, for fresh heads; `single`, `simplex`, `extraction`: sample by sample,
  for trained ones; `exchange`: their labels, where more samples than half the classes allow no sample alone; `zeros`,
  `lengths`: by the features' zeros, for batches near the number of classes;
- `known`, `proposals`, `start_table`, `search`: which of these starts apply, what they propose, and who decides;
- `candidate`, `certificate`, `hidden`, `mixing`, `remarks`: how sure the answer is, and what a person is told.
"""

from unsum.separate.exact.solver import exact

__all__ = ["exact"]
