"""What a client may have minimized: one file for each kind of loss, with its gradient and its
curvature by the logits."""

from unsum.errors import UnsumError, unknown_name
from unsum.losses.loss import Loss
from unsum.losses.separable import BinaryCrossEntropy, Separable, SquaredError
from unsum.losses.softmax import (
    CrossEntropy,
    Focal,
    Softmax,
    StackedCrossEntropy,
    WeightedCrossEntropy,
)

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

PLAIN = "cross-entropy"
_CONTRASTIVE = ("infonce", "nt-xent", "clip", "contrastive")
_SEPARABLE = {"bce": BinaryCrossEntropy, "mse": SquaredError}
_NAMES = (PLAIN, *_SEPARABLE, "focal", "focal:GAMMA")


def declared(loss: str | Loss | None) -> Loss | None:
    """The loss that `--loss` and `separate(loss=…)` name; None for cross-entropy, whose solvers
    need no declaration.

    >>> declared("focal:1.5")
    Focal(gamma=1.5)
    """
    if loss is None or loss == PLAIN:
        return None
    if isinstance(loss, Loss):
        return loss
    name, _, option = loss.partition(":")
    if name == "focal":
        try:
            return Focal(float(option)) if option else Focal()
        except ValueError:
            raise UnsumError(
                f"The focal loss is declared as focal:GAMMA with a number, not {loss!r}."
            ) from None
    if loss in _SEPARABLE:
        return _SEPARABLE[loss]()
    if name in _CONTRASTIVE:
        raise UnsumError(
            "Contrastive losses see features only through their inner products, so their gradient "
            "does not determine samples; see docs/research/other-losses.md."
        )
    raise unknown_name("loss", loss, list(_NAMES))
