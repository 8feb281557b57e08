"""What is asked: whose samples, of which gradient, and what is known besides."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.losses import Loss
from unsum.spans.targets import LossReading, read_loss
from unsum.update import Update


@dataclass(frozen=True)
class Asked:
    """One update of one model, with what was declared."""

    head: Head
    knowledge: Knowledge
    model: nn.Module
    update: Update
    loss: Loss | None
    seed: int

    def read_loss(self, features: Tensor, logits: Tensor) -> LossReading:
        """Labels, weights and the loss of samples with these features (B, H)."""
        return read_loss(self.head, features, logits, self.loss, self.knowledge)
