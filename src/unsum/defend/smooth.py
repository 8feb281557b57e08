"""Label smoothing as a defense: the client trains on (1 − ε) y + ε / C."""

from __future__ import annotations

from dataclasses import replace

from unsum.client.augment import smooth_labels
from unsum.client.step import ClientStep, Stage
from unsum.defend.axis import FRACTION
from unsum.defend.defense import DEFENSES, ClientDefense
from unsum.errors import UnsumError


@DEFENSES.register("smooth", summary="label smoothing: the targets keep 1 − ε and share ε among all classes")
class SmoothLabels(ClientDefense):
    """The targets of the batch become `smooth_labels(targets, epsilon, classes)`."""

    stage = Stage.BATCH
    axis = FRACTION

    def __init__(self, epsilon: float) -> None:
        if not 0 <= epsilon <= 1:
            raise UnsumError(f"Label smoothing needs an epsilon between 0 and 1, not {epsilon}.")
        super().__init__(epsilon)

    def before(self, step: ClientStep) -> ClientStep:
        return replace(step, targets=smooth_labels(step.targets, self.strength, step.classes))
