"""Photos in [0, 1], and what a model makes of them first.

A model that normalizes photos by itself is solved without that: BatchNorm hides the contrast about
the mean that is subtracted, not about black. And it is known then how far apart two levels of a
byte are. Photos have no others, so that the contrast is the one that puts every pixel on a level.
Nothing is claimed by this: a client may have photos without levels, or of other ones.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn

from unsum.certify.claim import grant_each
from unsum.invert.pixels.contrast import Contrast
from unsum.invert.pixels.judge import MARGIN
from unsum.models.built import Normalize

_LEVELS = 255  # steps between black and white
_SURE = 5.0  # standard errors, within which the contrast must lie
_NARROWEST, _WIDEST = 0.01, 0.2  # relative, of the contrasts that are tried
_APART = 2e-4  # relative: the brightest pixels move by a fortieth of a level
_ALIGNED = (
    # mean of exp(2πi·level) from which pixels lie on levels; by chance it is one over the root of
    # their number
    0.5
)
_ROUNDS = 3  # of the last fit


def without_normalization(model: nn.Module) -> tuple[nn.Module, Normalize | None]:
    """A copy that takes normalized photos, and what normalizes them; the model itself where nothing
    does."""
    found = [
        (key, hook) for key, hook in model._forward_pre_hooks.items() if isinstance(hook, Normalize)
    ]
    if not found:
        return model, None
    key, normalize = found[0]
    own = copy.deepcopy(model)
    del own._forward_pre_hooks[key]
    return own, normalize


def as_photos(pictures: Tensor, normalize: Normalize) -> Tensor:
    mean, std = (
        pictures.new_tensor(values).view(-1, 1, 1) for values in (normalize.mean, normalize.std)
    )
    return pictures * std + mean


def errors_of_photos(
    pictures: Tensor, errors: Tensor, exact: Tensor, normalize: Normalize
) -> tuple[Tensor, Tensor]:
    """Relative to photos, of which a dark one is smaller than what a model takes."""
    sizes = as_photos(pictures, normalize).flatten(1).norm(dim=1).clamp_min(1e-300)
    errors = errors * (max(normalize.std) * pictures.flatten(1).norm(dim=1) / sizes).to(errors)
    return errors, exact & grant_each(MARGIN * errors, above=True)


def on_levels(pictures: Tensor, told: Contrast, normalize: Normalize) -> Contrast | None:
    """The contrast near the one told that puts all pixels on levels, with the error that was told;
    None where none does."""
    std = pictures.new_tensor(normalize.std).double().view(-1, 1)
    # (c, n), but for an offset
    levels = _LEVELS * std * told.factor * pictures.double().transpose(0, 1).flatten(1)
    reach = min(max(_SURE * told.error, _NARROWEST), _WIDEST)
    factors = (
        torch.linspace(-reach, reach, 2 * round(reach / _APART) + 1, dtype=torch.float64)
        .exp()
        .tolist()
    )
    aligned = torch.stack([_phases(factor * levels).abs().mean() for factor in factors])
    best = int(aligned.argmax())
    if float(aligned[best]) < _ALIGNED or float(aligned.median()) > _ALIGNED * float(aligned[best]):
        return None
    factor = levels.new_tensor(factors[best])
    for _ in range(_ROUNDS):
        offset = (_phases(factor * levels).angle() / (2 * torch.pi))[:, None]
        nearest = (factor * levels - offset).round()
        apart = levels - levels.mean(1, keepdim=True)
        factor = (apart * nearest).sum() / apart.square().sum()
    return replace(told, factor=told.factor * float(factor))


def _phases(levels: Tensor) -> Tensor:
    """(c,) of length 1 where all entries of a color have the same distance to the level below."""
    turns = 2 * torch.pi * levels
    return torch.complex(turns.cos().mean(1), turns.sin().mean(1))
