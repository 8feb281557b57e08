"""The adaptive separator, one idea per file. To read it in the order of the computation:

- `method`: the whole of it, from head to `Leak`;
- `recognize`, `lattice`: which defense the update went through; `batch`: labels, counts and scale of what is left;
- `rounds`, `columns`: features from the gradient and the softmax from the features, in turn;
- `prior`: noise removed by empirical Bayes; `censored`: what pruning hid; `crude`: signs and random rounding;
- `corners`, `split`, `supports`: samples of one label told apart by the few features each has;
- `apart`, `answer`, `missing`: from groups to samples, to the answer, and columns that were held back.
"""

from unsum.separate.adaptive.method import adaptive
from unsum.separate.adaptive.recognize import recognize

__all__ = ["adaptive", "recognize"]
