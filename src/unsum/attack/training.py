"""What an update itself says of how the client trained, where that is not declared or contradicts
what is.

SGD adds gradients up, whose sizes differ from layer to layer, and of which a few entries are far
larger than the others. Adam, RMSprop and Adagrad divide every entry by its own size: after a few
steps the entries of the change are of nearly one size, in every tensor. And a softmax's gradient by
the last layer sums to zero over the classes, whatever SGD adds up; what Adam makes of it does not.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unsum.errors import UnsumError
from unsum.head import find_head
from unsum.update import Update

ONE_STEP = (
    "one step was assumed, because the change of weights does not say how many the client took; "
    "give --local-steps (in Python LocalTraining(steps=))"
)
ADAPTIVE = (
    "the change fits no SGD: did the client use Adam, or send signs? Its entries are of nearly one "
    "size in every layer, and those of the last layer do not sum to zero over the classes"
)
# Of 768 changes by SGD (with and without momentum and decay, 1 to 30 steps, four losses, two
# networks) none is within these, and of 384 by Adam and AdamW after 1 or 5 steps 374 are; after 30
# steps two thirds. Gaussian noise has a kurtosis of 3. kurtosis of all entries in units of their
# tensor's size, and of one tensor's
_FLAT, _FLAT_EACH = 2.6, 3.0
_ONE_SIZE = 3.0  # times that the root mean squares of tensors may differ
_UNBALANCED = (
    # of the last layer's norm: what its sums over the classes have under Adam; 0.09 at most under a
    # decay
    0.2
)
_LEAST_TENSORS, _LEAST_OF_ONE, _LEAST_ENTRIES = 3, 16, 2000  # that say anything about sizes


def doubt_training(model: nn.Module, update: Update) -> str:
    """Why the client may have trained otherwise than the attack takes it to have; empty where
    nothing says so."""
    if update.kind != "delta":
        return ""
    if fits_no_sgd(model, update):
        return ADAPTIVE
    return ONE_STEP if update.training is None or update.training.steps is None else ""


def fits_no_sgd(model: nn.Module, update: Update) -> bool:
    """Whether the change shows the marks of an optimizer that gives every entry a size of its
    own."""
    try:
        name, _ = find_head(model)
    except UnsumError:  # no last layer of which anything is known
        return False
    weight = update.gradients.get(f"{name}.weight" if name else "weight")
    if weight is None or weight.ndim != 2:
        return False
    head = weight.double()
    if not float(head.sum(0).norm()) > _UNBALANCED * float(head.norm()):
        return False
    entries = [
        found for found in map(_moved, update.gradients.values()) if len(found) >= _LEAST_OF_ONE
    ]
    if len(entries) < _LEAST_TENSORS or sum(map(len, entries)) < _LEAST_ENTRIES:
        return False
    sizes = torch.stack([values.square().mean().sqrt() for values in entries])
    fourth = [(values / size).pow(4) for values, size in zip(entries, sizes, strict=True)]
    alike = float(sizes.max() / sizes.min()) < _ONE_SIZE
    flat = float(torch.cat(fourth).mean()) < _FLAT
    return alike and flat and max(float(one.mean()) for one in fourth) < _FLAT_EACH


def _moved(change: Tensor) -> Tensor:
    """The entries of rows and columns that moved at all: those of units that are off say nothing of
    an optimizer."""
    matrix = change.double().flatten(1) if change.ndim > 1 else change.double()[:, None]
    matrix = matrix[(matrix != 0).any(1)]
    return matrix[:, (matrix != 0).any(0)].flatten()
