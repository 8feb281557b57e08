"""The adaptive separator, one idea per file. To read it in the order of the computation:

- `method`: the whole of it, from head to `Leak`;
- `recognize`: which defense the update went through; `batch`: labels, counts and scale of what is
  left;
- `rounds`: features from the gradient and the softmax from the features, in turn; `prior`: noise
  removed by empirical Bayes;
- `apart`: from groups to samples: those of one label told apart by the few features each has.
"""

from unsum.separate.adaptive.method import adaptive
from unsum.separate.adaptive.recognize import recognize

__all__ = ["adaptive", "recognize"]
