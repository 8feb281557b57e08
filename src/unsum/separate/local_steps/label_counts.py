"""How many samples of each class a client has, after any number of local steps, with an interval
for each.

The head's bias moves by −η Σ_t reach_t (p̄_t − y̅_t): p̄_t is what the model answers in step t on
average, y̅_t the classes' shares of that step. Whole epochs see every sample equally often, in
whatever order, so that

    G = −Δb / (η Σ_t reach_t) = p̄ − π        with π the shares of the classes, and p̄ the mean of
                                              the p̄_t.

Nobody sent p̄, but it is a probability: π ≥ −G holds whatever the model answered. Training pulls
the answers to the shares, p̄_t − π = (p̄_0 − π) e^{−κ t/T}, so that κ G = p̄_0 − p̄_T and

    π = p̄_0 − κ / (1 − e^{−κ}) G.

p̄_0 and p̄_T are guessed in two ways: at the mean feature m, since ∇W ≈ G mᵀ, with the head before
and after; and for noise that is sent through the whole network before and after. The mean feature
tells more where training went little, noise where it went far. The intervals are as wide as the two
are apart and as the correction is large; steps that count unequally, by a momentum or a smaller
last batch, make them wider.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unsum.errors import UnsumError
from unsum.head import Head
from unsum.labels.ilrg import whole_counts
from unsum.labels.probe import Probe
from unsum.leak import LabelCounts
from unsum.local_training import LocalTraining, mini_batches
from unsum.update import Update

LEVEL = 0.9  # of all intervals that hold the true count
_DEVIATIONS = 1.645  # of a Gaussian, that hold 90 % of it
_SURE = 4.0  # deviations that no draw of a loader's order reaches
# Times the distance of the two guesses, and times the correction: the narrowest intervals that held
# 90 % of the true counts in every one of sixteen settings, and a tenth more (local_epochs.py of the
# bench has other draws, and other networks). Where training went far, both guesses err alike: the
# distance counts by so much more for every unit of κ / (1 − e^{−κ}), chosen so that a network
# trained at a rate of 0.3 is held as well (tests/separate/test_label_counts.py).
_APART, _CORRECTED, _FAR = 2.2, 0.33, 0.25
_ROUNDED = 1e-2  # of a sample: a whole bound may come out as much above itself
_WHOLE = 0.3  # of a sample: counts are whole, so that half of one is 90 % of nothing
_PROBES = 64  # inputs of noise: their mean answer is off by an eighth of their spread
# heads between the first and the last, over which answers at the mean feature are averaged
_PATH = 5
# of the bias's movement, that its sum may be beyond rounding: a softmax's gradient sums to zero
_ZERO = 1e-3
_LARGEST = 50.0  # κ: e^{-50} is nothing


@dataclass(frozen=True)
class Guess:
    """One guess of the shares (C,), and how far training went: κ / (1 − e^{−κ}), 1 where the
    answers stayed as they were."""

    shares: Tensor
    factor: float


def count_labels(
    model: nn.Module, update: Update, *, samples: int | None = None, seed: int = 0
) -> LabelCounts:
    """The labels of a client that took several steps of SGD, as declared with its update.

    Args:
        model: with the weights that the client was sent, in the mode it trains in.
        samples: how many the client has, where known; else the update's own word for it, or shares
            in the place of counts.
    """
    head = Head.of(model, update, None)
    training = _checked(head, update)
    declared = (training.batch_size or 0) * ((training.steps or 1) // training.epochs)
    N = samples or update.num_examples or declared or None
    G, error = _mean_gradient(head, update, training)
    low = (-G - error).clamp_min(0)  # whatever the model answered
    if float(low.sum()) > 1 + _ZERO:
        raise UnsumError(
            "The head's bias moved farther than the declared rate and steps can move it; check "
            "both."
        )
    pair = _guesses(head, model, update, G, seed)
    first, second = (_possible(guess.shares, low) for guess in pair)
    far = max(guess.factor for guess in pair)
    shares = ((1 + 1 / far) * first + (1 - 1 / far) * second) / 2
    chance = _chance(shares, training, N)
    width = _DEVIATIONS * (chance + (_WHOLE / N if N else 0.0) ** 2 + error**2).sqrt()
    apart = (1 + _FAR * (far - 1)) * (first - second).square().mean().sqrt()
    width = (width**2 + (_APART * apart) ** 2 + (_CORRECTED * (far - 1) * G) ** 2).sqrt()
    sure = (low - _SURE * chance.sqrt()).clamp_min(0)
    ends = (
        torch.maximum(shares - width, sure),
        torch.minimum(shares + width, 1 - (sure.sum() - sure)),
    )
    if N is None:
        return LabelCounts(shares, *ends, sure, LEVEL, None, training.steps or 1)
    counts = whole_counts(N * shares, N).double()
    bounds = (
        torch.minimum((N * ends[0]).round(), counts),
        torch.maximum((N * ends[1]).round(), counts),
    )
    return LabelCounts(
        counts, *bounds, (N * sure - _ROUNDED).ceil().clamp_min(0), LEVEL, N, training.steps or 1
    )


def _checked(head: Head, update: Update) -> LocalTraining:
    training = update.training
    if training is None or training.learning_rate is None or training.steps is None:
        raise UnsumError(
            "Labels of local steps are counted where the learning rate and the number of steps are "
            "declared."
        )
    if head.grad_b is None or head.b is None:
        raise UnsumError(
            "Labels of local steps are counted by the head's bias, which this model or update "
            "lacks."
        )
    if len(head.W) < 2 or update.reduction != "mean":
        raise UnsumError(
            "Labels of local steps are counted under a softmax over two classes or more, and a "
            "loss that is a mean."
        )
    return training


def _mean_gradient(head: Head, update: Update, training: LocalTraining) -> tuple[Tensor, float]:
    """G (C,), and the deviation of an entry that rounding the weights after every step leaves."""
    assert head.grad_b is not None
    assert head.b is not None
    assert training.learning_rate is not None
    total = training.learning_rate * float(reach(training).sum())
    G = head.grad_b.double() * ((update.learning_rate or 1.0) / total)
    unit = torch.finfo(head.b.dtype).eps * float(head.b.abs().max()) / 12**0.5
    error = unit * (training.steps or 1) ** 0.5 / total
    size = float(G.abs().sum())
    if size <= 10 * error * len(G) ** 0.5:
        raise UnsumError(
            "The head's bias did not move by more than rounding, so it tells no labels."
        )
    if abs(float(G.sum())) > _ZERO * size + 10 * error * len(G):
        raise UnsumError(
            "The change of the head's bias does not sum to zero, as that of SGD under "
            "cross-entropy does: the client trained in another way, and no labels are counted."
        )
    return G, error


def _possible(shares: Tensor, low: Tensor) -> Tensor:
    """The nearest shares that sum to one and are no smaller than `low`: what is left over is
    projected on the simplex."""
    rest = 1 - low.sum()
    if float(rest) <= 0:
        return low / low.sum()
    v = (shares - low) / rest
    falling = v.sort(descending=True).values
    excess = (falling.cumsum(0) - 1) / torch.arange(1, len(v) + 1).to(v)
    return low + rest * (v - excess[int((falling > excess).sum()) - 1]).clamp_min(0)


def _chance(shares: Tensor, training: LocalTraining, N: int | None) -> Tensor:
    """(C,) the variance of shares by steps that count unequally: a loader draws which one a sample
    falls into, in every epoch."""
    per_epoch = (training.steps or 1) // training.epochs
    count = max(N or per_epoch, 2)  # at least one a step
    sizes = torch.tensor(
        mini_batches(count, per_epoch, training.batch_size), dtype=torch.float64
    ).clamp_min(1)
    share = sizes / sizes.sum()
    counted = reach(training).reshape(training.epochs, per_epoch)
    counted = counted / (per_epoch * counted.mean() * share)
    uneven = (
        (counted - (counted * share).sum(1, keepdim=True)).square() * share
    ).sum() / training.epochs**2
    few = shares.clamp(1 / count, 1 - 1 / count)
    return float(uneven) * few * (1 - few) / (count - 1)


def reach(training: LocalTraining) -> Tensor:
    """(T,) how often each step's gradient is in −Δ/η: (1 − μ^{T−t}) / (1 − μ), a momentum repeats
    it."""
    left = torch.arange(training.steps or 1, 0, -1, dtype=torch.float64)
    return (
        (1 - training.momentum**left) / (1 - training.momentum)
        if training.momentum
        else torch.ones_like(left)
    )


def _guesses(
    head: Head, model: nn.Module, update: Update, G: Tensor, seed: int
) -> tuple[Guess, Guess]:
    """By the mean feature, and by noise."""
    assert update.training is not None
    assert head.grad_b is not None
    rate, decay = update.learning_rate or 1.0, update.training.weight_decay
    sent = {
        name: weight.detach()
        for name, weight in model.named_parameters()
        if name in update.gradients
    }
    # The update holds before − after over the rate, less what a decay took of the first weights.
    after = {
        name: W - rate * (update.gradients[name].to(W) + decay * W) for name, W in sent.items()
    }
    of_W = head.grad_W.double() * float(G @ G / (G @ head.grad_b.double()))
    m = of_W.T @ G / (G @ G)
    prefix = f"{head.name}." if head.name else ""
    first, last = (
        weights[f"{prefix}weight"].double() @ m + weights[f"{prefix}bias"].double()
        for weights in (sent, after)
    )
    path = torch.stack([torch.lerp(first, last, s / (_PATH - 1)).softmax(0) for s in range(_PATH)])
    return _guess(path[0], path[-1], G, path.mean(0)), _by_noise(head, model, after, G, m, seed)


def _by_noise(
    head: Head, model: nn.Module, moved: dict[str, Tensor], G: Tensor, m: Tensor, seed: int
) -> Guess:
    """Noise sent through the model before and after, of the kind whose features are nearest to the
    mean feature m."""
    probe = Probe(head, model, 1, seed)
    shape, weight = probe.input_shape(), next(model.parameters())
    uniform = torch.rand(_PROBES, *shape, generator=torch.Generator().manual_seed(seed)).to(weight)
    # Pictures from 0 to 1, pictures around 0, and columns of a table that are standardized.
    kinds = [uniform, 2 * uniform - 1, 12**0.5 * (uniform - 0.5)]
    noise = min(kinds, key=lambda kind: float((probe.send(kind)[0].double().mean(0) - m).norm()))
    before, after = (
        probe.send(noise, weights)[1].double().softmax(1).mean(0) for weights in ({}, moved)
    )
    return _guess(before, after, G)


def _guess(before: Tensor, after: Tensor, G: Tensor, mean: Tensor | None = None) -> Guess:
    kappa = float((before - after) @ G) / max(float(G @ G), 1e-300)
    kappa = min(max(kappa, 1e-6), _LARGEST)
    factor = kappa / -math.expm1(-kappa)
    shares = before - factor * G if mean is None else mean - G
    return Guess(shares, factor)
