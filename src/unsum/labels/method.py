"""What a label rule is: from a model and one update to the batch's labels, and what it cannot do
without: declared once, checked in one place, shown by `unsum list`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from unsum.errors import UnsumError, needed
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.labels.feature_sign import FeatureSign, feature_sign
from unsum.registry import Registry
from unsum.update import Update


def _need(text: str, *, default: bool = False) -> Any:
    """A field of `RuleNeeds`, and what `unsum list` calls it."""
    return field(default=default, metadata={"text": text})


@dataclass(frozen=True)
class RuleNeeds:
    """The assumptions of a rule. Those that can be seen to fail are refused; the others are
    printed."""

    batch_size: bool = _need("batch size")
    bias: bool = _need("bias gradient")
    scale: bool = _need("gradient's scale")  # the gradient itself, not a multiple of it
    auxiliary: bool = _need("auxiliary data")
    non_negative_features: bool = _need("features ≥ 0")
    one_sample: bool = _need("one sample")
    distinct_labels: bool = _need("distinct labels")
    fewer_samples_than_classes: bool = _need("fewer samples than classes")
    hard_labels: bool = _need("hard labels", default=True)

    def __str__(self) -> str:
        return ", ".join(need.metadata["text"] for need in fields(self) if getattr(self, need.name))

    def check(self, name: str, clues: Clues) -> None:
        """Refuse what rule `name` cannot do, with one sentence that says what to do instead."""
        head, B, C = clues.head, clues.knowledge.known_batch_size, clues.head.classes
        sign = (
            feature_sign(clues.model, head.name)
            if self.non_negative_features
            else FeatureSign(None)
        )
        refused = {
            f"finds the label of one sample; for {B} samples use 'exact', which takes batches.": (
                self.one_sample and B not in (None, 1)
            ),
            (
                "needs the batch size; give batch_size= (unsum audit: --batch-size-known), or use "
                "'exact', which finds it."
            ): (self.batch_size and B is None),
            (
                f"finds distinct labels, which {B} samples of {C} classes cannot have; use 'llg', "
                "which counts."
            ): (self.distinct_labels and B is not None and B > C),
            "needs the head's bias gradient; use 'llg' or 'exact', which do not.": self.bias
            and head.grad_b is None,
            (
                "needs the gradient's scale; give the learning rate of the delta, or use 'llg', "
                "which works at any scale."
            ): (self.scale and not clues.update.scale_known),
            (
                "needs auxiliary data; give auxiliary=(images, labels), or use 'llg*', which makes "
                "its own."
            ): (self.auxiliary and clues.knowledge.auxiliary is None),
            f"needs features that are never negative, and here the head is fed by {sign.source}; "
            "use 'exact' or 'ilrg', which take any.": sign.non_negative is False,
        }
        for sentence, fails in refused.items():
            if fails:
                raise UnsumError(f"{name!r} {sentence}")

    def remarks(self, name: str, clues: Clues) -> list[str]:
        """What could not be checked and is taken on trust, for a person to read."""
        remarks = []
        if (
            self.non_negative_features
            and feature_sign(clues.model, clues.head.name).non_negative is None
        ):
            remarks.append(
                f"{name!r} relies on features that are never negative; the model does not show "
                "whether they are."
            )
        if self.one_sample and clues.knowledge.known_batch_size is None:
            remarks.append(f"{name!r} takes the batch for a single sample.")
        return remarks


@dataclass(frozen=True)
class Clues:
    """All that a rule may look at. `seed` fixes every random choice."""

    head: Head
    model: nn.Module
    update: Update
    knowledge: Knowledge
    seed: int = 0

    @classmethod
    def of(
        cls,
        model: nn.Module,
        update: Update,
        granted: Knowledge,
        device: torch.device | str | None = None,
        seed: int = 0,
    ) -> Clues:
        """Of one update; the batch size is taken from it where nobody granted it and the protocol
        discloses it."""
        if granted.batch_size is None:
            granted = replace(granted, batch_size=update.batch_size)
        return cls(Head.of(model, update, device), model, update, granted, seed)

    @property
    def B(self) -> int:
        """The batch size, for rules that declare that they need it."""
        return needed(self.knowledge.known_batch_size, "The batch size")

    @property
    def grad_b(self) -> Tensor:
        """(C,) the bias gradient, for rules that declare that they need it; float64, of the mean
        over the batch."""
        return needed(self.head.grad_b, "The bias gradient").double() / (
            self.B if self.head.reduction == "sum" else 1
        )

    @property
    def row_sums(self) -> Tensor:
        """(C,) g_c = Σ_k ∇W_ck, float64, of the gradient as it came: a mean or a sum over the
        batch."""
        return self.head.grad_W.sum(1, dtype=torch.float64)


Find = Callable[[Clues], Tensor]


@dataclass(frozen=True)
class LabelRule:
    """Returns (B,) class numbers, sorted; a class that several samples share stands there several
    times."""

    name: str
    needs: RuleNeeds
    find: Find

    def __call__(self, evidence: Clues) -> Tensor:
        self.needs.check(self.name, evidence)
        return self.find(evidence).sort().values


LABEL_RULES: Registry[LabelRule] = Registry("label rule", "unsum.label_rules")


def label_rule(name: str, *, summary: str, needs: RuleNeeds) -> Callable[[Find], Find]:
    """Decorator that makes a function known as the label rule `name`; its needs are checked before
    it is called."""

    def add(find: Find) -> Find:
        LABEL_RULES.register(name, summary=summary, needs=str(needs))(LabelRule(name, needs, find))
        return find

    return add
