"""Several local steps, one idea per file. To read it in the order of the computation:

- `method`: from head to `Leak`; `movement`: the steps of SGD as sums, what the server sees of them,
  and the head before each;
- `counting`: a learning rate or a number of samples that was not declared; `chain`: the samples,
  step by step;
- `polish`: all of them together, and how sure they are; `repeated`: epochs over the same samples
  that hardly differ.
"""

from unsum.separate.local_steps.method import local_steps

__all__ = ["local_steps"]
