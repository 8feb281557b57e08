"""Label smoothing as a defense: the client trains on (1 − ε) y + ε / C."""

from __future__ import annotations

from dataclasses import replace

from unsum.client.augment import smooth_labels
from unsum.client.step import ClientStep, Stage
from unsum.defend.defense import DEFENSES, FRACTION, ClientDefense, require


@DEFENSES.register(
    "smooth", summary="label smoothing: the targets keep 1 − ε and share ε among all classes"
)
class SmoothLabels(ClientDefense):
    """The targets of the batch become `smooth_labels(targets, epsilon, classes)`.

    Examples:
        >>> import torch, unsum
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Linear(8, 6)
        >>> inputs, labels = torch.randn(3, 8), torch.tensor([4, 4, 1])
        >>> defended = unsum.capture(model, inputs, labels, defenses=unsum.SmoothLabels(0.3))
        >>> by_hand = unsum.capture(model, inputs, unsum.smooth_labels(labels, 0.3, 6))
        >>> torch.equal(defended.gradients["weight"], by_hand.gradients["weight"])
        True
    """

    stage = Stage.BATCH
    axis = FRACTION

    def __init__(self, epsilon: float) -> None:
        super().__init__(
            require(0 <= epsilon <= 1, "Label smoothing needs an epsilon between 0 and 1", epsilon)
        )

    def before(self, step: ClientStep) -> ClientStep:
        return replace(step, targets=smooth_labels(step.targets, self.strength, step.classes))
