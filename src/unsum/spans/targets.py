"""From the gradients at the logits to the loss, its targets and the gradient's scale.

Once every sample's features are known, the head's ∇W = Gᵀ F gives G = α g(logits, target) by one
least-squares solve, whatever the loss is. The logits are known too, so each loss can be held
against G; where one fits, its targets are read off.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.losses import PLAIN, BinaryCrossEntropy, CrossEntropy, Loss, SquaredError

_CERTAIN = 0.05  # distance of an entry from 0 or 1 within which it is one of them
_HEARD = 1e-3  # of the largest sample's gradient: whose weight is read off
_OFTEN = 16  # copies of one sample at most
_WRONG = 1e-2  # of an entry, from which a target is wrong
_SURE = 3.0  # times what is left of G that smoothing must change it by, to be seen
_FINEST = 1e-6  # of G: what float32 leaves at least
_PLAIN = 1e-3  # of a scale from 1 within which nothing has multiplied the gradient
_WHOLE = 1e-2  # distance from a whole number within which a ratio of weights counts copies


@dataclass(frozen=True)
class LossReading:
    """A loss that explains G (R, C) = weights · gradient(logits, Y), and what it leaves of G,
    relative."""

    loss: Loss
    Y: Tensor  # (R, C)
    weights: Tensor  # (R,) one α for every sample, times its copies
    misfit: float
    # the largest entry of a target that G, at one scale for all samples, would have otherwise
    off: float = 0.0
    # Smoothed targets at another scale would send the same, and the scale is not the plain one.
    smoothing_open: bool = False

    @property
    def labels(self) -> Tensor:
        """(R,) the likeliest class of each sample; yes and no are the classes of a single logit."""
        return self.Y[:, 0].round().long() if self.Y.shape[1] == 1 else self.Y.argmax(1)

    @property
    def copies(self) -> Tensor | None:
        """(R,) how often each sample occurs, or None where weights are no whole multiples of each
        other."""
        base = (
            self.weights[self.weights > 0].min()
            if bool((self.weights > 0).any())
            else self.weights.new_ones(())
        )
        ratios = self.weights / base
        whole = ratios.round()
        fits = (
            bool(((ratios - whole).abs() < _WHOLE * whole).all()) and float(whole.max()) <= _OFTEN
        )
        return whole.long() if fits else None


def read_loss(
    head: Head, features: Tensor, logits: Tensor, known: Loss | None, knowledge: Knowledge
) -> LossReading:
    """G from the head's gradient, by least squares over the samples' features; then what loss it is
    of."""
    columns = (
        features
        if head.grad_b is None
        else torch.cat([features, torch.ones_like(features[:, :1])], 1)
    )
    grad = head.grad_W.double()
    sent = grad if head.grad_b is None else torch.cat([grad, head.grad_b.double()[:, None]], 1)
    G = torch.linalg.lstsq(columns.T, sent.T).solution
    return read_targets(G, logits, known, knowledge.loss == PLAIN, head.reduction)


def read_targets(
    G: Tensor, logits: Tensor, declared: Loss | None, plain: bool, reduction: str
) -> LossReading:
    """The reading that leaves least of G; simpler ones come first where they leave hardly more.

    `plain` says that cross-entropy was declared. Without a declaration a single logit belongs to
    binary cross-entropy.
    """
    C = logits.shape[1]
    if declared is not None or plain:
        readings = _with(declared or CrossEntropy(), G, logits, reduction, declared=True)
    elif C == 1:
        readings = [_binary(BinaryCrossEntropy(), G, logits)]
    else:
        losses = (CrossEntropy(), BinaryCrossEntropy(), SquaredError())
        each = [_with(loss, G, logits, reduction, declared=False) for loss in losses]
        # Any labels at all explain nearly everything: they come last.
        readings = [*(one[0] for one in each), *(reading for one in each for reading in one[1:])]
    least = min(reading.misfit for reading in readings)
    fits = (reading for reading in readings if reading.misfit <= max(3 * least, 1e-5))
    # NaN, where samples came out that send nothing, is refused by who judges
    found = next(fits, readings[0])
    return _questioned(found, G, logits, reduction)


def _questioned(reading: LossReading, G: Tensor, logits: Tensor, reduction: str) -> LossReading:
    """The reading with what G says against its targets.

    A small part of G holds samples that the model is sure of; they must fit by themselves. And with
    two classes, or flat logits, smoothing is nearly a change of scale: α (p − y) has the direction
    of α' (p − y') for every y.
    """
    copies, loss = reading.copies, reading.loss
    if copies is None or not isinstance(loss, CrossEntropy | BinaryCrossEntropy):
        return reading
    alpha = float(reading.weights.sum() / copies.sum())
    g = loss.gradient(logits, reading.Y)
    # Weights of their own would hide it: two classes have no other entry to fit.
    rest = G / (alpha * copies[:, None]) - g
    plain = (
        float(reading.weights.sum()) * loss.divisor(logits) / len(G)
        if reduction == "mean"
        else alpha
    )
    smoothed = 1 / max(logits.shape[1], 2) - reading.Y.to(g)
    g, smoothed = g.flatten(), smoothed.flatten()
    shown = smoothed - (smoothed @ g) / (g @ g).clamp_min(1e-300) * g
    left = max(float(rest.norm()), _FINEST * float(g.norm()))
    hidden = not _SURE * left < _WRONG * float(shown.norm())
    return replace(
        reading, off=float(rest.abs().max()), smoothing_open=hidden and abs(plain - 1) > _PLAIN
    )


def _with(
    loss: Loss, G: Tensor, logits: Tensor, reduction: str, *, declared: bool
) -> list[LossReading]:
    if loss.name == "mse":
        return _squared(loss, G, logits, reduction, declared=declared)
    if loss.many_labels:
        return [_binary(loss, G, logits)]
    hard = _hard(loss, G, logits)
    return [hard, *_soft(loss, G, logits, reduction)] if loss.name == "cross-entropy" else [hard]


def _weighed(loss: Loss, Y: Tensor, G: Tensor, logits: Tensor) -> LossReading:
    """Weights by least squares, sample by sample; those that hardly send anything get the others'
    median."""
    g = loss.gradient(logits, Y)
    weights = (G * g).sum(1) / g.square().sum(1).clamp_min(1e-300)
    sent = G.norm(dim=1)
    heard = sent > _HEARD * sent.max()
    weights = torch.where(heard, weights, weights[heard].median())
    left = float((G - weights[:, None] * g).norm() / G.norm().clamp_min(1e-300))
    return LossReading(loss, Y, weights, left)


def _hard(loss: Loss, G: Tensor, logits: Tensor) -> LossReading:
    """Under a softmax only the label's entry is negative."""
    Y = torch.nn.functional.one_hot(G.argmin(1), logits.shape[1]).to(G)
    return _weighed(loss, Y, G, logits)


def _soft(loss: Loss, G: Tensor, logits: Tensor, reduction: str) -> list[LossReading]:
    """Smoothed labels, from the line G = α p − α floor beside the labels; or any labels, at the
    plain scale or the usual one."""
    P, C = logits.softmax(1), logits.shape[1]
    beside = torch.ones_like(P, dtype=torch.bool).scatter_(1, G.argmin(1, keepdim=True), False)
    line = torch.stack([P[beside], torch.ones_like(P[beside])], 1)
    slope, offset = (
        torch.linalg.lstsq(line, G[beside][:, None]).solution[:, 0].tolist()
        if C > 2
        else (0.0, 0.0)
    )
    readings = []
    if slope > 0 and 0 < -offset / slope * C < 1:
        floor = -offset / slope
        Y = torch.where(beside, floor, 1 - (C - 1) * floor)
        readings.append(_common(loss, Y, G, logits))
    usual = float((G / P.clamp_min(1e-12)).median())
    for alpha in (1 / loss.divisor(P) if reduction == "mean" else 1.0, usual):
        if alpha > 0:
            Y = P - G / alpha
            if float(Y.min()) > -_CERTAIN and float(Y.max()) < 1 + _CERTAIN:
                left = float((G - alpha * loss.gradient(logits, Y.clamp(0, 1))).norm() / G.norm())
                readings.append(
                    LossReading(loss, Y.clamp(0, 1), G.new_full((len(G),), alpha), left)
                )
    return readings


def _common(loss: Loss, Y: Tensor, G: Tensor, logits: Tensor) -> LossReading:
    g = loss.gradient(logits, Y)
    alpha = (G * g).sum() / g.square().sum().clamp_min(1e-300)
    left = float((G - alpha * g).norm() / G.norm().clamp_min(1e-300))
    return LossReading(loss, Y, alpha.expand(len(G)), left)


def _binary(loss: Loss, G: Tensor, logits: Tensor) -> LossReading:
    """σ(l) − y is negative where y = 1 and positive where y = 0."""
    return _weighed(loss, (G < 0).to(G), G, logits)


def _squared(
    loss: Loss, G: Tensor, logits: Tensor, reduction: str, *, declared: bool
) -> list[LossReading]:
    """One-hot targets, most of which are 0; where the loss is declared, any numbers, at the plain
    scale."""
    readings = []
    usual = float((G / torch.where(logits.abs() > 1e-9, logits, torch.inf)).median())
    if usual > 0:
        Y = (logits - G / usual).round().clamp(0, 1)
        readings.append(_common(loss, Y, G, logits))
    if declared:
        plain = 1 / loss.divisor(logits) if reduction == "mean" else 1.0
        readings.append(LossReading(loss, logits - G / plain, G.new_full((len(G),), plain), 0.0))
    return readings or [LossReading(loss, torch.zeros_like(G), G.new_ones(len(G)), float("inf"))]
