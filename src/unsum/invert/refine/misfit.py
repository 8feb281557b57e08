"""How far pictures are from explaining a leak: their features beside the separated ones, their
gradients beside the update.

    features  ‖feat(x) − f̂‖² / ‖f̂‖² gradients ‖∇(x) − ĝ‖² / ‖ĝ‖²  (l2)  or  1 − cos(∇(x), ĝ)
    (cosine), over all tensors that take part

    mode      the head's gradient   the backbone's gradients   features
    features          –                        –                  ×
    f                 –                        ×                  ×
    g                 ×                        ×                  –
    gf                ×                        ×                  ×

The last three are published with soft-label recovery; `features` leaves all the backbone's
gradients free to watch the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from unsum.errors import UnsumError, check_name
from unsum.gradients import TINY, Distance, distance, main_output, norm, quiet, with_features
from unsum.head import find_head
from unsum.leak import Leak
from unsum.update import Update

Mode = Literal["features", "f", "g", "gf"]
MODES: tuple[Mode, ...] = get_args(Mode)


class Misfit:
    """The losses of one leak; the whole batch goes through the model together, because BatchNorm
    ties its samples."""

    def __init__(
        self,
        model: nn.Module,
        update: Update,
        leak: Leak,
        mode: Mode,
        distance: Distance,
        held_out: int,
    ) -> None:
        check_name("mode of refinement", mode, MODES)
        check_name("distance", distance, get_args(Distance))
        update.validate(model)
        self.model, self.mode, self.distance = model, mode, distance
        name, self.head = find_head(model)
        first = next(model.parameters())
        self.features = leak.features.detach().to(first)
        self.targets = leak.targets.detach().to(first)
        self.reduction = update.reduction
        self.sent = {
            name: g.detach().to(first) / leak.scale for name, g in update.gradients.items()
        }
        heads = [n for n in self.sent if n.startswith(f"{name}." if name else ("weight", "bias"))]
        backbone = [n for n in self.sent if n not in heads]
        self.fitted, self.watched = _shares(mode, heads, backbone, held_out)

    def ready(self) -> AbstractContextManager[None]:
        """Gradients for exactly the parameters that take part; afterwards flags and BatchNorm's
        statistics are as before."""
        return quiet(self.model, self.fitted)

    def fit(self, images: Tensor, feature_weight: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
        """(loss, features, gradients) that the mode asks for, differentiable in `images`."""
        features, logits = with_features(self.model, self.head, images)
        apart = (features - self.features).square().sum() / self.features.square().sum().clamp_min(
            TINY
        )
        if not self.fitted:
            return feature_weight * apart, apart, apart.new_zeros(())
        off = self._gradients_off(logits, self.fitted, keep=True)
        loss = off if self.mode == "g" else off + feature_weight * apart
        return loss, apart, off

    def watch(self, images: Tensor) -> float:
        """What the fit does not see: the held-out gradients; where there are none, the loss
        itself."""
        images = images.detach()
        if not self.watched:
            with torch.enable_grad():
                return float(self.fit(images)[0].detach())
        with quiet(self.model, self.watched), torch.enable_grad():
            logits = main_output(self.model(images))
            return float(self._gradients_off(logits, self.watched, keep=False))

    def _gradients_off(self, logits: Tensor, names: Sequence[str], *, keep: bool) -> Tensor:
        parameters = dict(self.model.named_parameters())
        loss = nn.functional.cross_entropy(logits, self.targets, reduction=self.reduction)
        found = torch.autograd.grad(loss, [parameters[n] for n in names], create_graph=keep)
        sent = [self.sent[n] for n in names]
        apart = distance(self.distance, found, sent)
        return apart if self.distance == "cosine" else apart / norm(sent).square().clamp_min(TINY)


def check_pictures(leak: Leak, images: Tensor) -> None:
    """Refuse pictures that cannot be those of the leak's samples."""
    if images.ndim != 4 or len(images) != leak.batch_size:
        raise UnsumError(
            "Refinement needs one (channels, h, w) picture for each of the leak's "
            f"{leak.batch_size} samples, not {tuple(images.shape)}; pass what invert() made of "
            "this leak."
        )
    if not bool(torch.isfinite(images).all()):
        raise UnsumError("The pictures to refine hold NaN or Inf; make them anew with invert().")


def _shares(
    mode: Mode, heads: list[str], backbone: list[str], held_out: int
) -> tuple[list[str], list[str]]:
    """Which gradients are fitted and which only watched: every `held_out`-th of the backbone's in
    the gradient modes."""
    if mode == "features":
        return [], backbone
    if not backbone:
        raise UnsumError(
            f"The update holds no gradient but the head's, so mode {mode!r} has nothing to match; "
            "use 'features'."
        )
    if held_out == 1 or held_out < 0:
        raise UnsumError(
            "held_out must be 0 (watch none) or at least 2 (watch one tensor in so many), not "
            f"{held_out}."
        )
    watched = backbone[held_out // 2 :: held_out] if held_out else []
    fitted = [name for name in backbone if name not in watched]
    return (fitted if mode == "f" else [*fitted, *heads]), watched
