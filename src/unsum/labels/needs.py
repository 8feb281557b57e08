"""What label rules cannot do without: declared once, checked in one place, shown by `unsum list`."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from unsum.errors import UnsumError
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.labels.feature_sign import feature_sign
from unsum.update import Update


@dataclass(frozen=True)
class RuleNeeds:
    """The assumptions of a rule. Those that can be seen to fail are refused; the others are printed."""

    batch_size: bool = False
    bias: bool = False
    scale: bool = False  # the gradient itself, not a multiple of it
    auxiliary: bool = False
    non_negative_features: bool = False
    distinct_labels: bool = False
    fewer_samples_than_classes: bool = False
    hard_labels: bool = True
    one_sample: bool = False

    def __str__(self) -> str:
        texts = {
            "batch size": self.batch_size,
            "bias gradient": self.bias,
            "gradient's scale": self.scale,
            "auxiliary data": self.auxiliary,
            "features ≥ 0": self.non_negative_features,
            "one sample": self.one_sample,
            "distinct labels": self.distinct_labels,
            "fewer samples than classes": self.fewer_samples_than_classes,
            "hard labels": self.hard_labels,
        }
        return ", ".join(text for text, needed in texts.items() if needed)

    def check(self, name: str, head: Head, model: nn.Module, update: Update, knowledge: Knowledge) -> None:
        """Refuse what rule `name` cannot do, with one sentence that says what to do instead."""
        B, C = knowledge.known_batch_size, head.classes
        if self.one_sample and B not in (None, 1):
            raise UnsumError(
                f"{name!r} finds the label of one sample; for {B} samples use 'exact', which takes batches."
            )
        if self.batch_size and B is None:
            raise UnsumError(
                f"{name!r} needs the batch size; give batch_size= (unsum audit: --batch-size-known), "
                "or use 'exact', which finds it."
            )
        if self.distinct_labels and B is not None and B > C:
            raise UnsumError(
                f"{name!r} finds distinct labels, which {B} samples of {C} classes cannot have; use 'llg', which counts."
            )
        if self.bias and head.grad_b is None:
            raise UnsumError(f"{name!r} needs the head's bias gradient; use 'llg' or 'exact', which do not.")
        if self.scale and not update.scale_known:
            raise UnsumError(
                f"{name!r} needs the gradient's scale; give the learning rate of the delta, or use 'llg', "
                "which works at any scale."
            )
        if self.auxiliary and knowledge.auxiliary is None:
            raise UnsumError(
                f"{name!r} needs auxiliary data; give auxiliary=(images, labels), or use 'llg*', which makes its own."
            )
        if self.non_negative_features:
            sign = feature_sign(model, head.name)
            if sign.non_negative is False:
                raise UnsumError(
                    f"{name!r} needs features that are never negative, and here the head is fed by {sign.source}; "
                    "use 'exact' or 'ilrg', which take any."
                )

    def remarks(self, name: str, head: Head, model: nn.Module, knowledge: Knowledge) -> list[str]:
        """What could not be checked and is taken on trust, for a person to read."""
        remarks = []
        if self.non_negative_features and feature_sign(model, head.name).non_negative is None:
            remarks.append(
                f"{name!r} relies on features that are never negative; the model does not show whether they are."
            )
        if self.one_sample and knowledge.known_batch_size is None:
            remarks.append(f"{name!r} takes the batch for a single sample.")
        return remarks
