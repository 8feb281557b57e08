"""What a label rule is: from a model and one update to the batch's labels, and what it cannot do without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.labels.needs import RuleNeeds
from unsum.registry import Registry
from unsum.update import Update


@dataclass(frozen=True)
class Clues:
    """All that a rule may look at. `seed` fixes every random choice."""

    head: Head
    model: nn.Module
    update: Update
    knowledge: Knowledge
    seed: int = 0

    @property
    def B(self) -> int:
        """The batch size, for rules that declare that they need it."""
        assert self.knowledge.known_batch_size is not None
        return self.knowledge.known_batch_size

    @property
    def grad_b(self) -> Tensor:
        """(C,) the bias gradient, for rules that declare that they need it; float64, of the mean over the batch."""
        assert self.head.grad_b is not None
        return self.head.grad_b.double() / self._divisor

    @property
    def row_sums(self) -> Tensor:
        """(C,) g_c = Σ_k ∇W_ck, float64, of the gradient as it came: a mean or a sum over the batch."""
        return self.head.grad_W.sum(1, dtype=torch.float64)

    @property
    def _divisor(self) -> int:
        return self.B if self.head.reduction == "sum" else 1


Find = Callable[[Clues], Tensor]


@dataclass(frozen=True)
class LabelRule:
    """Returns (B,) class numbers, sorted; a class that several samples share stands there several times."""

    name: str
    needs: RuleNeeds
    find: Find

    def __call__(self, evidence: Clues) -> Tensor:
        self.needs.check(self.name, evidence.head, evidence.model, evidence.update, evidence.knowledge)
        return self.find(evidence).sort().values


LABEL_RULES: Registry[LabelRule] = Registry("label rule", "unsum.label_rules")


def label_rule(name: str, *, summary: str, needs: RuleNeeds) -> Callable[[Find], Find]:
    """Decorator that makes a function known as the label rule `name`; its needs are checked before it is called."""

    def add(find: Find) -> Find:
        LABEL_RULES.register(name, summary=summary, needs=str(needs))(LabelRule(name, needs, find))
        return find

    return add
