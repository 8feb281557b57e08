"""What an update itself says of how the client trained, where that is not declared or contradicts
what is.

SGD adds gradients up, whose sizes differ from layer to layer, and of which a few entries are far
larger than the others. Adam, RMSprop and Adagrad divide every entry by its own size: after a few
steps the entries of the change are of nearly one size, in every tensor. And a softmax's gradient by
the last layer sums to zero over the classes, whatever SGD adds up and however often; what Adam
makes of it does not. A decay adds a multiple of the weights that were sent, which is taken off.
Noise adds sums as well, but these point anywhere: Adam's lie where the rows of the change lie.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from unsum.errors import UnsumError
from unsum.head import Head, find_head
from unsum.models.language import is_language_model
from unsum.notes import Code, Note
from unsum.running.late_scipy import beta_beyond
from unsum.separate.adaptive import recognize
from unsum.update import Update

ONE_STEP = (
    "one step was assumed, because the change of weights does not say how many the client took; "
    "give --local-steps (in Python LocalTraining(steps=))"
)
ADAPTIVE = Note(
    "the change fits no SGD: did the client use Adam, or send signs? Its entries are of nearly one "
    "size in every layer, and those of the last layer do not sum to zero over the classes",
    Code.OTHER_TRAINING,
)
UNBALANCED = Note(
    "the change fits no SGD: did the client use Adam, or another loss than cross-entropy? What it "
    "adds to the last layer does not sum to zero over the classes",
    Code.OTHER_TRAINING,
)
# [of the last layer's norm] sums over the classes that rounding the weights never leaves. Chosen
# by: arbitrary margin, SGD leaves 5e-6 and Adam 0.35 at least
_BEYOND_ROUNDING = 0.05
# [1] chance that noise has so much of its sums in the span of the rows. Chosen by: arbitrary, of a
# million noisy updates one
_BY_CHANCE = 1e-6
_DEVIATIONS = 6.0  # [1] standard ones that the length of noise keeps within. Chosen by: as above
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


def doubt_training(model: nn.Module, update: Update, loss: str = "cross-entropy") -> str:
    """Why the client may have trained otherwise than the attack takes it to have; empty where
    nothing says so. `loss`: what the attack explains the change with, or what was declared."""
    if update.kind != "delta":
        return ""
    if fits_no_sgd(model, update):
        return ADAPTIVE
    if loss == "cross-entropy" and is_unbalanced(model, update):
        return UNBALANCED
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


def is_unbalanced(model: nn.Module, update: Update) -> bool:
    """Whether the change of the last layer has sums over the classes that neither SGD under
    cross-entropy, nor a decay, nor noise leaves there."""
    try:
        head = Head.of(model, update, None)
    except UnsumError:  # no last layer of which anything is known
        return False
    if is_language_model(model):  # lookups write to a head that shares the embedding's weights
        return False
    change = head.grad_W.double()
    live = change.any(0)
    change, sent = change[:, live], head.W.detach().double()[:, live]
    size, (classes, width) = float(change.norm()), change.shape
    if classes < 2 or width <= classes or not math.isfinite(size):
        return False
    sums, of_sent = change.sum(0), sent.sum(0)
    decay = float(sums @ of_sent) / max(float(of_sent @ of_sent), 1e-300)
    sums = sums - decay * of_sent
    if not float(sums.norm()) > _BEYOND_ROUNDING * size:
        return False
    if recognize(head).kind not in ("none", "noise"):  # entries were removed or rounded
        return False
    # of pure noise sums are as long as all entries together, of noise beside a gradient shorter
    if (float(sums.norm()) / size) ** 2 > 1 + _DEVIATIONS * (2 / width) ** 0.5:
        return True
    rows = change - decay * sent
    span = torch.linalg.svd(rows - rows.mean(0), full_matrices=False)[2][: classes - 1]
    # Of sums that point anywhere, the share within a span of k of n dimensions is Beta distributed.
    inside = float((span @ sums).square().sum() / sums.square().sum())
    free = (classes - 1) / 2, (width - classes + 1) / 2
    return beta_beyond(min(inside, 1.0), *free) < _BY_CHANCE


def _moved(change: Tensor) -> Tensor:
    """The entries of rows and columns that moved at all: those of units that are off say nothing of
    an optimizer."""
    matrix = change.double().flatten(1) if change.ndim > 1 else change.double()[:, None]
    matrix = matrix[(matrix != 0).any(1)]
    return matrix[:, (matrix != 0).any(0)].flatten()
