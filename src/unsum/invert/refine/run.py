"""The refinement: fit features by L-BFGS, then gradients by Adam, and keep the pictures that best
explain what was not fitted.

Matching gradients is not smooth (every ReLU that turns makes them jump), so that line searches
stall: Adam takes those steps. It also leads nowhere from pictures whose features are wrong, so that
the modes with a feature term fit that one alone first.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from unsum.errors import UnsumError
from unsum.gradients import Distance, variation
from unsum.invert.method import Inverse
from unsum.invert.refine.misfit import Misfit, Mode, check_pictures
from unsum.invert.refine.prior import Correction, Prior, correction
from unsum.leak import Leak
from unsum.running.deadline import out_of_time
from unsum.running.progress import SILENT, Progress
from unsum.update import Update

_UNTRIED = "further steps of refinement"
_CHUNK = 25  # steps between two looks at what is not fitted
_PATIENCE = 4  # looks without improvement before the refinement ends
_BOX = 10.0  # weight of the mean square by which pixels leave [0, 1]
_HISTORY = 20  # pairs that L-BFGS keeps


@dataclass(frozen=True)
class RefinedPictures:
    """(B, c, h, w) pictures in [0, 1] in the leak's order, and how they came about.

    `improved` is false where the start explains the watched gradients at least as well, and was
    kept. `history` holds, look by look, `step`, the mode's `features` and `gradients` misfits and
    the `watched` one.
    """

    images: Tensor
    improved: bool
    seconds: float
    history: dict[str, Tensor] = field(default_factory=dict)

    def __repr__(self) -> str:
        start, end = (
            float(self.history["watched"][i]) for i in (0, int(self.history["watched"].argmin()))
        )
        return (
            f"RefinedPictures({len(self.images)} pictures, watched misfit {start:.2g} → {end:.2g}, "
            f"{self.seconds:.1f} s)"
        )


def refine(
    model: nn.Module,
    update: Update,
    leak: Leak,
    images: Tensor,
    *,
    mode: Mode = "features",
    prior: Prior = "spectrum",
    distance: Distance = "l2",
    steps: int = 300,
    gradient_steps: int = 100,
    feature_weight: float = 1.0,
    total_variation: float = 0.0,
    held_out: int = 4,
    inverse: Inverse | None = None,
    progress: Progress = SILENT,
) -> RefinedPictures:
    """Change `images` until the model makes of them what the client's made of its own.

    Args:
        model: in the mode (train or eval) that the client trained it in; left as it was.
        update, leak: the client's update and what was separated from it: features, targets, scale.
        images: (B, c, h, w) in [0, 1], a picture for every sample of the leak, in its order.
        mode: `features`, or a published mode that matches gradients too: `f`, `g`, `gf` (see
            `misfit`).
        prior: in which way pictures may change (see `prior`).
        steps: of L-BFGS, on the features alone; mode `g` has none of these.
        gradient_steps: of Adam, on all that the mode asks for; `features` has none of these.
        feature_weight, total_variation: weights beside the gradients'.
        held_out: in modes that fit gradients, every so-manieth tensor of the backbone is only
            watched; 0 watches the loss.
        inverse: for the decoder's priors.
        progress: told the step and the misfits of features, gradients and those watched.

    Returns:
        The pictures with the smallest watched misfit; the start itself where no change lowers it.
    """
    check_pictures(leak, images)
    if steps < 0 or gradient_steps < 0 or feature_weight < 0 or total_variation < 0:
        raise UnsumError("Refinement needs steps and weights of at least 0.")
    start = time.perf_counter()
    misfit = Misfit(model, update, leak, mode, distance, held_out)
    beginning = images.detach().to(misfit.features).clamp(0, 1)
    unknown = correction(prior, beginning, leak, inverse)
    watch = _Watch(misfit, beginning, progress)

    def cost(fit: Misfit) -> Tensor:
        pictures = unknown.pictures()
        loss = (
            fit.fit(pictures, feature_weight)[0]
            + _BOX * (pictures - pictures.clamp(0, 1)).square().mean()
        )
        return loss + total_variation * variation(pictures) if total_variation else loss

    if mode != "g":
        alone = (
            misfit if mode == "features" else Misfit(model, update, leak, "features", distance, 0)
        )
        with alone.ready():
            _by_lbfgs(unknown, lambda: cost(alone), steps, watch, float(leak.predicted_error))
    if mode != "features":
        with misfit.ready():
            _by_adam(unknown, lambda: cost(misfit), gradient_steps, watch)
    return RefinedPictures(
        watch.best.to(images), watch.best_row > 0, time.perf_counter() - start, watch.record()
    )


class _Watch:
    """Looks at pictures now and then, notes their misfits, and remembers the best."""

    def __init__(self, misfit: Misfit, images: Tensor, progress: Progress) -> None:
        self.misfit, self.progress = misfit, progress
        self.rows: list[tuple[float, ...]] = []
        self.best, self.best_row = images, 0
        self.look(images, 0)

    def look(self, images: Tensor, steps: int) -> None:
        images = images.detach().clamp(0, 1)
        with self.misfit.ready():
            with torch.enable_grad():
                _, features, gradients = (value.detach() for value in self.misfit.fit(images))
            watched = self.misfit.watch(images)
        step = int(self.rows[-1][0]) + steps if self.rows else 0
        self.rows.append((step, float(features), float(gradients), watched))
        if watched < self.rows[self.best_row][3]:
            self.best, self.best_row = images, len(self.rows) - 1
        self.progress.step(step, *self.rows[-1][1:])

    @property
    def weary(self) -> bool:
        return len(self.rows) - 1 - self.best_row >= _PATIENCE

    def record(self) -> dict[str, Tensor]:
        columns = torch.tensor(self.rows, dtype=torch.float64).T
        return dict(zip(("step", "features", "gradients", "watched"), columns, strict=True))


def _by_lbfgs(
    unknown: Correction, cost: Callable[[], Tensor], steps: int, watch: _Watch, noise: float
) -> None:
    """Until the steps are spent, what is watched no longer improves, or features fit as well as the
    leak knows them."""
    optimizer = torch.optim.LBFGS(
        unknown.unknowns,
        history_size=_HISTORY,
        line_search_fn="strong_wolfe",
        tolerance_grad=0.0,
        tolerance_change=0.0,
    )
    for chunk in _chunks(steps):
        optimizer.param_groups[0].update(max_iter=chunk, max_eval=2 * chunk)
        optimizer.step(lambda: _descend(unknown, cost))
        watch.look(unknown.pictures(), chunk)
        relative_error = math.sqrt(watch.rows[-1][1])  # of the features
        if out_of_time(_UNTRIED) or watch.weary or relative_error <= noise:
            return


def _by_adam(unknown: Correction, cost: Callable[[], Tensor], steps: int, watch: _Watch) -> None:
    """Steps that shrink to nothing along a cosine: jumps of the gradient average out."""
    optimizer = torch.optim.Adam(unknown.unknowns, lr=unknown.rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(steps, 1))
    for chunk in _chunks(steps):
        for _ in range(chunk):
            _descend(unknown, cost)
            optimizer.step()
            schedule.step()
        watch.look(unknown.pictures(), chunk)
        if out_of_time(_UNTRIED):
            return


def _descend(unknown: Correction, cost: Callable[[], Tensor]) -> float:
    """Gradients for the unknowns alone: backward() would leave some on the model's parameters,
    too."""
    with torch.enable_grad():
        loss = cost()
        gradients = torch.autograd.grad(loss, unknown.unknowns)
    for tensor, gradient in zip(unknown.unknowns, gradients, strict=True):
        tensor.grad = gradient
    return float(loss.detach())


def _chunks(steps: int) -> list[int]:
    return [min(_CHUNK, steps - done) for done in range(0, steps, _CHUNK)]
