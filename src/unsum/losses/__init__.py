"""What a client may have minimized: one file for each loss, with its gradient and its curvature by the logits."""

from unsum.losses.bce import BinaryCrossEntropy
from unsum.losses.cross_entropy import CrossEntropy
from unsum.losses.declare import declared
from unsum.losses.focal import Focal
from unsum.losses.loss import Loss, Separable, Softmax
from unsum.losses.mse import SquaredError
from unsum.losses.stacked import StackedCrossEntropy
from unsum.losses.weighted import WeightedCrossEntropy

__all__ = [
    "BinaryCrossEntropy",
    "CrossEntropy",
    "Focal",
    "Loss",
    "Separable",
    "Softmax",
    "SquaredError",
    "StackedCrossEntropy",
    "WeightedCrossEntropy",
    "declared",
]
