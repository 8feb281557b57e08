"""What features look like before any update is seen: those of public inputs, in the model as the
client trains it.

Views of the public inputs (flips, and cuts of at least half a side, enlarged again) average out
what is one photo's own. After a ReLU, the mean over few photos is still too rough: half of it and
half of its own mean over all features point closer to the features of other photos than either
does. Where nobody grants public inputs, random ones show how large features are, and every feature
is taken for equally likely: then the template is the plain row sum.
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
# [share] of the mean over all features. Chosen by: one-off measurement on the default batch
_ROUGH = 0.5


@dataclass(frozen=True)
class FeaturePrior:
    """`views` (n, H) are features of public or random inputs; `mean` (H,) is what those of other
    inputs are expected to be."""

    views: Tensor
    mean: Tensor
    public: int  # inputs that were granted; 0 where random ones took their place
    non_negative: bool

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
            batches = [_viewed(chosen, generator) for _ in range(rounds if chosen.ndim == 4 else 1)]
        views = torch.cat([probe.send(batch)[0] for batch in batches]).to(head.W.device).double()
    except (UnsumError, RuntimeError, ValueError, IndexError):
        # inputs of another kind than this model takes
        return None
    if views.shape[1] != head.W.shape[1] or not bool(views.isfinite().all()):
        return None
    non_negative = bool((views >= 0).all()) if known is None else known
    mean = views.mean(0)
    if non_negative:
        share = 1.0 if public is None else _ROUGH
        mean = (1 - share) * mean + share * mean.mean()
    elif public is None:
        # of signed features, random inputs show the size and nothing else
        mean = torch.zeros_like(mean)
    return FeaturePrior(views, mean, 0 if public is None else len(chosen), non_negative)


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
