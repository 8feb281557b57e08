"""What features look like before any update is seen: those of public inputs, in the model as the
client trains it.

Views of the public inputs (flips, and cuts of at least half a side, enlarged again) average out
what is one photo's own. The mean m over few photos is still rough. Some share w of something even
in its place comes closer to other photos: its own mean over all features where these are never
negative, zero where they have signs. How much of it depends on the network, and the public inputs
tell, each guessed from the others (m₋ᵢ, and eᵢ what is even of it):

    w = Σᵢ ⟨fᵢ − m₋ᵢ, eᵢ − m₋ᵢ⟩ / Σᵢ ‖eᵢ − m₋ᵢ‖²,   between 0 and 1

They tell as well how much one input's features are larger than another's: `spread`, the standard
deviation of ⟨fᵢ, gᵢ⟩/‖gᵢ‖² from 1, where gᵢ is the guess at fᵢ.

Where nobody grants public inputs, random ones show how large features are, and every feature is
taken for equally likely: then the template is the plain row sum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from unsum.errors import UnsumError
from unsum.head import Head
from unsum.labels.feature_sign import feature_sign
from unsum.labels.probe import Probe
from unsum.running.sharing import once, version

VIEWS = 16  # [1] of every public input. Chosen by: one-off measurement on the default batch
_FEW = 8  # [inputs] in a pass of random ones. Chosen by: arbitrary budget
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

    def scaled(self, size: float) -> FeaturePrior:
        """The same of features that are `size` times as large."""
        return replace(self, views=size * self.views, mean=size * self.mean)

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
    """None where nobody granted inputs and the model does not show which ones it takes."""
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
        if public is None:
            shape = probe.input_shape()
            batches = [torch.rand(_FEW, *shape, generator=generator) for _ in range(2)]
        else:
            chosen = public[:_MOST_INPUTS].detach().cpu()
            rounds = min(VIEWS, max(1, _MOST_FEATURES // (len(chosen) * head.W.shape[1])))
            cut = range(rounds - 1 if chosen.ndim == 4 else 0)
            batches = [chosen, *(_viewed(chosen, generator) for _ in cut)]
        views = torch.cat([probe.send(batch)[0] for batch in batches]).to(head.W.device).double()
    except (UnsumError, RuntimeError, ValueError, IndexError):
        # inputs of another kind than this model takes
        return None
    if views.shape[1] != head.W.shape[1] or not bool(views.isfinite().all()):
        return None
    non_negative = bool((views >= 0).all()) if known is None else known
    if public is not None:
        mean, spread = _expected(views.view(len(batches), len(chosen), -1), even=non_negative)
        return FeaturePrior(views, mean, len(chosen), non_negative, spread)
    mean = views.mean(0)
    # Of features that are never negative, random inputs show the mean over all; of others nothing.
    mean = torch.full_like(mean, float(mean.mean()) if non_negative else 0.0)
    return FeaturePrior(views, mean, 0, non_negative)


def _expected(views: Tensor, *, even: bool) -> tuple[Tensor, float]:
    """The mean (H,) expected of another input, and the spread of sizes, from views (n, k, H) of k
    inputs, the first of which are the inputs themselves."""

    def flattened(mean: Tensor) -> Tensor:
        return mean.mean(-1, keepdim=True).expand_as(mean) * float(even)

    inputs, each = views[0], views.mean(0)
    mean, k = each.mean(0), len(each)
    if k < 2:
        return mean, _UNKNOWN_SPREAD
    without = (k * mean - each) / (k - 1)
    change = flattened(without) - without
    size = float(change.square().sum())
    share = float(((inputs - without) * change).sum()) / size if size > 0 else 0.0
    share = min(max(share, 0.0), 1.0)
    guesses = without + share * change
    squares = guesses.square().sum(1)
    if not bool((squares > 0).all()):
        return (1 - share) * mean + share * flattened(mean), _UNKNOWN_SPREAD
    sizes = (inputs * guesses).sum(1) / squares
    spread = max(float((sizes - 1).square().mean().sqrt()), _LEAST_SPREAD)
    return (1 - share) * mean + share * flattened(mean), spread


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
