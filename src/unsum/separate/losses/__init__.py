"""Losses other than cross-entropy: one file for each, with its gradient by the logits.

- `loss`: what a loss must tell; `bce`, `mse`, `focal`, `weighted`: the losses;
- `equation`: the one equation for any of them; `separable`, `softmax`: where to start, by kind; `solver`: the whole;
- `recognize`: what the update itself says about the loss. Contrastive losses have the structure but no start: see the docs.
"""

from unsum.separate.losses.bce import BinaryCrossEntropy
from unsum.separate.losses.declare import declared
from unsum.separate.losses.focal import Focal
from unsum.separate.losses.loss import Loss
from unsum.separate.losses.mse import SquaredError
from unsum.separate.losses.recognize import advice, fitting_loss
from unsum.separate.losses.solver import separate_declared
from unsum.separate.losses.weighted import WeightedCrossEntropy

__all__ = [
    "BinaryCrossEntropy",
    "Focal",
    "Loss",
    "SquaredError",
    "WeightedCrossEntropy",
    "advice",
    "declared",
    "fitting_loss",
    "separate_declared",
]
