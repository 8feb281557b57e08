"""What features look like before any update is seen: those of public inputs, in the model as the
client trains it.

Views of the public inputs (flips, and cuts of at least half a side, enlarged again) average out
what is one photo's own. The mean m over few photos is still rough. Two things besides come closer
to the features of another photo: the mean r over made-up pictures, patches of random tones of many
sizes, and where features are never negative an even one, e, m's own mean over all features. How
much of each depends on the network, and the public inputs tell: the weights w ≥ 0 are least squares
of

    fᵢ ≈ w₁ m₋ᵢ + w₂ r + w₃ e₋ᵢ

over the inputs' features fᵢ, each guessed from the others. They tell as well how much one input's
features are larger than another's: `spread`, the standard deviation of ⟨fᵢ, gᵢ⟩/‖gᵢ‖² from 1, where
gᵢ is the guess at fᵢ. Where nobody grants public inputs, or the model takes others, made-up ones
take their place.

How features scatter about that mean is told by views and made-up pictures in equal parts
(`scatter`).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from unsum.errors import UnsumError
from unsum.head import Head
from unsum.labels.feature_sign import feature_sign
from unsum.labels.probe import Probe
from unsum.labels.scatter import Scatter
from unsum.running.sharing import once, version

VIEWS = 16  # [1] of every public input. Chosen by: one-off measurement on the default batch
_MADE_UP = 32  # [inputs] at random. Chosen by: arbitrary budget
# [1] along a side of such pictures. Chosen by: arbitrary, photos have all scales
_PATCHES = (2, 4, 8, 16)
_MOST_INPUTS = 64  # [inputs] in one pass. Chosen by: arbitrary budget
_MOST_FEATURES = 1 << 24  # [features] of all views: 128 MB. Chosen by: arbitrary budget
_SMALLEST_CUT = 0.5  # [share] of a side. Chosen by: arbitrary budget
# [share] that an input's features are larger or smaller than expected: at least, and where too few
# inputs tell. Chosen by: arbitrary budget
_LEAST_SPREAD, _UNKNOWN_SPREAD = 0.01, 1.0


@dataclass(frozen=True)
class FeaturePrior:
    """`views` (n, H) are features of public or random inputs; `mean` (H,) is what those of other
    inputs are expected to be."""

    views: Tensor
    mean: Tensor
    public: int  # inputs that were granted; 0 where random ones took their place
    non_negative: bool
    spread: float = _UNKNOWN_SPREAD  # of the size of one input's features, relative
    scatter: Scatter | None = None  # about the mean; None where it would cost too much

    def scaled(self, size: float) -> FeaturePrior:
        """The same of features that are `size` times as large."""
        scatter = None if self.scatter is None else self.scatter.scaled(size)
        return replace(self, views=size * self.views, mean=size * self.mean, scatter=scatter)

    @property
    def energy(self) -> float:
        """What a feature has on average beside the mean, squared."""
        return float((self.views - self.mean).square().mean())

    def probabilities(self, head: Head) -> Tensor:
        """(n, C) the softmax of every view."""
        logits = head.logits(self.views)
        return (logits if head.b is None else logits + head.b.double()).softmax(1)


def feature_prior(
    head: Head, model: nn.Module, public: Tensor | None, seed: int = 0
) -> FeaturePrior | None:
    """None where no inputs that were granted fit the model, and it does not show which ones do."""
    weight, objects = head.W, (model,) if public is None else (model, public)
    key = model.training, seed, head.name, version(weight)
    return once(
        "feature prior",
        objects,
        lambda: _feature_prior(head, model, public, seed),
        *key,
        of_model=True,
    )


def _feature_prior(
    head: Head, model: nn.Module, public: Tensor | None, seed: int
) -> FeaturePrior | None:
    known = feature_sign(model, head.name).non_negative
    if public is None and known is None:
        return None
    probe = Probe(head, model, 1, seed)
    generator = torch.Generator().manual_seed(seed)
    try:
        shape = probe.input_shape() if public is None else tuple(public.shape[1:])
        batches = [_made_up(shape, generator).to(head.W.dtype)]
        if public is not None:
            chosen = public[:_MOST_INPUTS].detach().cpu()
            rounds = min(VIEWS, max(1, _MOST_FEATURES // (len(chosen) * head.W.shape[1])))
            pictures = chosen.ndim == 4 and chosen.is_floating_point()
            made = batches if pictures else []
            cut = range(rounds - 1 if chosen.ndim == 4 else 0)
            batches = [*made, chosen, *(_viewed(chosen, generator) for _ in cut)]
        seen = [probe.send(batch)[0].to(head.W.device).double() for batch in batches]
        places = probe.places(batches[-1])
    except (UnsumError, RuntimeError, ValueError, IndexError):
        # inputs of another kind than this model takes
        return None if public is None else _feature_prior(head, model, None, seed)
    if any(part.shape[1] != head.W.shape[1] or not bool(part.isfinite().all()) for part in seen):
        return None
    pictured = [] if public is None or not made else [seen.pop(0)]
    beside = [one.mean(0) for one in pictured]
    views = torch.stack(seen)
    non_negative = bool((views >= 0).all()) if known is None else known
    mean, spread = _expected(views, beside, even=non_negative)
    granted = 0 if public is None else len(chosen)
    different = views.shape[1] + sum(len(one) for one in pictured)
    views = views.flatten(0, 1)
    scatter = Scatter.of([views, *pictured], mean, places, different)
    return FeaturePrior(views, mean, granted, non_negative, spread, scatter)


def _expected(views: Tensor, beside: list[Tensor], *, even: bool) -> tuple[Tensor, float]:
    """The mean (H,) expected of another input, and the spread of sizes.

    Args:
        views: (n, k, H) of k inputs, the first of which are the inputs themselves.
        beside: (H,) other means.
        even: whether an even mean is one of those that are weighed.
    """
    inputs, each = views[0], views.mean(0)
    mean, k = each.mean(0), len(each)
    if k < 2:
        return mean, _UNKNOWN_SPREAD
    others = [_choices((k * mean - one) / (k - 1), beside, even=even) for one in each]
    gram = sum((rows @ rows.T for rows in others), start=mean.new_zeros(()))
    pull = sum(
        (rows @ one for rows, one in zip(others, inputs, strict=True)), start=mean.new_zeros(())
    )
    weights = _weighed(gram, pull)
    guesses = torch.stack([weights @ rows for rows in others])
    squares = guesses.square().sum(1)
    expected = weights @ _choices(mean, beside, even=even)
    if not bool((squares > 0).all()):
        return expected, _UNKNOWN_SPREAD
    sizes = (inputs * guesses).sum(1) / squares
    return expected, max(float((sizes - 1).square().mean().sqrt()), _LEAST_SPREAD)


def _choices(mean: Tensor, beside: list[Tensor], *, even: bool) -> Tensor:
    """(m, H) the means that are weighed."""
    return torch.stack([mean, *beside, *([mean.mean().expand_as(mean)] if even else [])])


def _weighed(gram: Tensor, pull: Tensor) -> Tensor:
    """The weights w ≥ 0 (m,) that minimize wᵀ gram w − 2 wᵀ pull, by trying which of them are not
    zero."""
    best, least = torch.zeros_like(pull), 0.0
    for size in range(1, len(pull) + 1):
        for some in itertools.combinations(range(len(pull)), size):
            part = gram[list(some)][:, list(some)]
            found = torch.linalg.pinv(part, rtol=1e-12, hermitian=True) @ pull[list(some)]
            left = -float(found @ pull[list(some)])
            if bool((found >= 0).all()) and left < least:
                best, least = torch.zeros_like(pull), left
                best[list(some)] = found
    return best


def _made_up(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Random inputs: pictures of few or many patches of random tones, each as likely dark, pale or
    gray; of anything else random numbers."""
    if len(shape) != 3:
        return torch.rand(_MADE_UP, *shape, generator=generator)
    made = []
    for i in range(_MADE_UP):
        patches = torch.rand(1, shape[0], *[_PATCHES[i % len(_PATCHES)]] * 2, generator=generator)
        low, high = torch.rand(2, generator=generator).sort().values
        tones = low + (high - low) * patches
        made.append(nn.functional.interpolate(tones, size=shape[1:], mode="bicubic"))
    return torch.cat(made).clamp(0, 1)


def _viewed(inputs: Tensor, generator: torch.Generator) -> Tensor:
    """One view of each: pictures flipped, and cut; anything else as it is."""
    if inputs.ndim != 4 or min(inputs.shape[2:]) < 4:
        return inputs
    side, views = inputs.shape[2:], []
    for picture in inputs:
        share = _SMALLEST_CUT + (1 - _SMALLEST_CUT) * float(torch.rand((), generator=generator))
        height, width = (max(2, round(share * length)) for length in side)
        top = int(torch.randint(0, side[0] - height + 1, (), generator=generator))
        left = int(torch.randint(0, side[1] - width + 1, (), generator=generator))
        cut = picture[None, :, top : top + height, left : left + width]
        view = nn.functional.interpolate(cut, size=tuple(side), mode="bilinear", antialias=True)[0]
        views.append(view.flip(2) if float(torch.rand((), generator=generator)) < 0.5 else view)
    return torch.stack(views)
