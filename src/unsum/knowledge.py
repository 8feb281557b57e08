"""Knowledge: what an attacker is assumed to know besides the model and the update. Printed with
every result."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.errors import UnsumError
from unsum.local_training import LocalTraining
from unsum.running.declared import check_samples, check_whole
from unsum.update import Carried

# Reports print it in red.
CHANGES_MODEL = "Permission to change the model before the client trains: a malicious server."


@dataclass(frozen=True)
class Knowledge:
    """Everything that was granted to the attacker; the defaults grant nothing.

    `labels` are (B,) class numbers or (B, C) rows of probabilities. `auxiliary_photos` describes
    public photos the attacker used (to train an inverse, say); `auxiliary` are labeled samples of
    its own, inputs of the model with (N,) class numbers; `public` are inputs that anyone could
    have, without labels and none of them the client's. `may_change_model` is true for a malicious
    server. `loss` names what the client minimized: servers that hand out the training program know
    it; None leaves it open. `training` is how the client trains, where several local steps lie
    between the weights it was sent and those it sent back. `repeated_rounds` counts the client's
    updates that are said to be of the same batch. `targets_of_any_kind` are those of a network that
    is no classifier: masks, or numbers to predict. `carried` is what a momentum had added to the
    update, and was taken off.

    Examples:
        >>> Knowledge(batch_size=8).granted()
        ["The model's weights and one client update.", 'The batch size (8).']
    """

    labels: Tensor | None = None
    batch_size: int | None = None
    auxiliary_photos: str = ""
    may_change_model: bool = False
    auxiliary: tuple[Tensor, Tensor] | None = None
    public: Tensor | None = None
    loss: str | None = None
    training: LocalTraining | None = None
    repeated_rounds: int = 1
    carried: Carried | None = None
    targets_of_any_kind: Tensor | None = None

    def __post_init__(self) -> None:
        if self.batch_size is not None:
            check_whole("The batch size", self.batch_size)
            check_samples(self.batch_size)
        if self.auxiliary is not None:
            images, labels = self.auxiliary
            if (
                len(images) == 0
                or labels.ndim != 1
                or len(images) != len(labels)
                or labels.is_floating_point()
            ):
                raise UnsumError(
                    "auxiliary must be (images, labels) with one whole class number per image, not "
                    f"{tuple(images.shape)} and {tuple(labels.shape)} of {labels.dtype}."
                )
        if self.public is not None and len(self.public) < 2:
            raise UnsumError(
                "Public inputs show what features look like from two of them on; give more, or "
                "leave public= out."
            )
        if self.labels is None:
            return
        if self.labels.ndim not in (1, 2) or len(self.labels) == 0:
            raise UnsumError(f"labels must be (B,) or (B, C), not {tuple(self.labels.shape)}.")
        if self.labels.ndim == 1 and self.labels.is_floating_point():
            raise UnsumError("labels of shape (B,) must be whole class numbers.")
        check_samples(len(self.labels))
        if self.batch_size is not None and len(self.labels) != self.batch_size:
            raise UnsumError(
                f"{len(self.labels)} labels do not fit a batch size of {self.batch_size}; give one "
                "of the two."
            )

    @property
    def known_batch_size(self) -> int | None:
        """The batch size, where it was granted directly or through the labels."""
        given = self.targets_of_any_kind if self.labels is None else self.labels
        return self.batch_size if given is None else len(given)

    def targets(self, classes: int) -> Tensor | None:
        """The granted labels as (B, C) rows of probabilities in float64, checked against the number
        of classes."""
        if self.labels is None:
            return None
        if self.labels.ndim == 2:
            if self.labels.shape[1] != classes:
                raise UnsumError(
                    f"labels have {self.labels.shape[1]} columns but the model has {classes} "
                    "classes."
                )
            return self.labels.double()
        low, high = int(self.labels.min()), int(self.labels.max())
        if low < 0 or high >= classes:
            raise UnsumError(
                f"label {low if low < 0 else high} is outside the model's classes 0…{classes - 1}."
            )
        return torch.nn.functional.one_hot(self.labels.long(), classes).double()

    def granted(self) -> list[str]:
        """One plain sentence for everything the attacker was given."""
        sentences = ["The model's weights and one client update."]
        if self.labels is not None:
            sentences.append("The labels of the batch.")
        if self.targets_of_any_kind is not None:
            sentences.append(
                "The client's targets (masks, numbers to predict), and nothing of its inputs."
            )
        if self.known_batch_size is not None:
            sentences.append(f"The batch size ({self.known_batch_size}).")
        if self.auxiliary_photos:
            sentences.append(f"Public photos: {self.auxiliary_photos}.")
        if self.auxiliary is not None:
            classes = self.auxiliary[1].unique()
            sentences.append(
                f"{len(self.auxiliary[0])} labeled samples of its own, of {len(classes)} classes."
            )
        if self.public is not None:
            sentences.append(
                f"{len(self.public)} public inputs, none of them the client's, for what features "
                "look like."
            )
        if self.loss is not None:
            sentences.append(f"The client's loss ({self.loss}).")
        if self.repeated_rounds > 1:
            sentences.append(
                f"{self.repeated_rounds} updates of the client, and that they are of the same "
                "batch."
            )
        if self.carried is not None:
            known = "" if self.carried.found else f", and its momentum ({self.carried.momentum:g})"
            sentences.append(f"The client's update of the round before{known}.")
        if self.training is not None and (
            self.training.several_steps or self.training.weight_decay
        ):
            sentences.append(self.training.described())
        if self.may_change_model:
            sentences.append(CHANGES_MODEL)
        return sentences
