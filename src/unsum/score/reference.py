"""What an attacker would answer for a sample without the update: the zero of the scale of leakage.

    leakage = 1 − ‖x̂ − x‖² / ‖m − x‖²,   between 0 and 1, with m the guess

Every leakage, measured or bounded, is in this unit. Nobody needs an update to answer with

- nothing: zero, which is a standardized table's mean row, and black;
- public data of the kind (`public`): the mean color of photos; for what a layer reads, the mean of
  public inputs that were sent through the same model in the same mode (`public_inputs`);
- a typical sample of this client, the mean of the others, where the client's samples are `diverse`.
  A client whose samples are all alike has no typical sample: who knows one of them knows them all,
  and that knowledge is what leaks.

The nearest of these is the guess, sample by sample.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from unsum.data import embedded_batch, photo_count
from unsum.models.strides import PHOTOS_MEAN

# Share of the error of the other guesses that the mean of the client's other samples must leave to
# count as a guess. Photos leave 0.7 and more, rows of a table about 1, samples within 10 % of each
# other 0.01. So an answer that leaves a fifth of the other guesses' error leaks a fifth or more.
DIVERSE = 0.25
_ROWS, _SEED = 64, 0  # standard normal rows, as many as average out, always the same ones
_OWN = 0.5  # share of a public photo, up to its tone, from which a client's picture is this photo


def guess(samples: Tensor, public: Tensor | None = None, diverse: Tensor | None = None) -> Tensor:
    """(B, n) for each of the samples (B, …) the nearest answer that needs no update, in float64.

    `public` (k, n) or (k, …) are guesses from public data; `diverse` (B,) says for which samples
    the mean of the others is one (none by default).

    >>> alike, apart = (
    ...     torch.tensor([[3.0, 4.0], [3.0, 4.0]]),
    ...     torch.tensor([[3.0, 4.0], [5.0, 4.0]]),
    ... )
    >>> guess(  # nothing, instead of the sample itself
    ...     alike, diverse=diverse_samples(alike)
    ... ).tolist()
    [[0.0, 0.0], [0.0, 0.0]]
    >>> guess(apart, diverse=torch.tensor([True, True])).tolist()
    [[5.0, 4.0], [3.0, 4.0]]
    """
    x = flat(samples)
    best, off = torch.zeros_like(x), x.square().sum(1)
    for candidate in _guesses(x, public, diverse):
        away = distance(candidate, x)
        best, off = torch.where((away < off)[:, None], candidate, best), torch.minimum(away, off)
    return best


def left_by_directions(
    samples: Tensor, public: Tensor | None = None, diverse: Tensor | None = None
) -> Tensor:
    """(B,) the share of ‖x‖² that the best multiple of the nearest guess leaves, for answers that
    count up to a factor; the guesses are those of `guess`.

    >>> left_by_directions(torch.tensor([[3.0, 0.0]]), torch.tensor([[0.5, 0.0]])).tolist()
    [0.0]
    >>> left_by_directions(torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, -1.0]])).tolist()
    [1.0]
    """
    x = flat(samples)
    cosine = torch.zeros(len(x), dtype=x.dtype)
    for candidate in _guesses(x, public, diverse):
        cosine = torch.maximum(cosine, torch.cosine_similarity(candidate, x, dim=1))
    return 1 - cosine.clamp_max(1).square()


def _guesses(x: Tensor, public: Tensor | None, diverse: Tensor | None) -> list[Tensor]:
    """(B, n) each: the public ones, and the mean of the others where that is one."""
    guesses = [] if public is None else [row.expand_as(x) for row in flat(public)]
    if diverse is not None and len(x) > 1:
        mean = torch.where(diverse[:, None].to(x.device), others(x), torch.zeros_like(x))
        guesses.append(mean)
    return guesses


def distance(answers: Tensor, samples: Tensor) -> Tensor:
    """(B,) ‖x̂ − x‖²: the squared Euclidean norm, in float64."""
    return (flat(answers) - flat(samples)).square().sum(1)


def diverse_samples(samples: Tensor, public: Tensor | None = None) -> Tensor:
    """(B,) bool: whether the mean of the others is far enough from a sample to be typical of the
    client, and not a copy of it."""
    x = flat(samples)
    if len(x) < 2:
        return torch.zeros(len(x), dtype=torch.bool)
    return distance(others(x), x) >= DIVERSE * distance(guess(x, public), x).clamp_min(1e-30)


def alike(samples: Tensor, public: Tensor | None = None) -> Tensor:
    """(B, B) bool: whether two samples are so near that an answer for the one is one for the
    other."""
    x = flat(samples)
    near = torch.cdist(x, x).square() < DIVERSE * distance(guess(x, public), x)[:, None]
    return near | torch.eye(len(x), dtype=torch.bool)


def others(rows: Tensor) -> Tensor:
    """(B, n) the mean of all other rows."""
    return (rows.sum(0, keepdim=True) - rows) / (len(rows) - 1)


def flat(samples: Tensor) -> Tensor:
    """(B, n) in float64 on the CPU."""
    return samples.detach().cpu().double().flatten(1)


def are_pictures(samples: Tensor) -> bool:
    """Whether (B, …) samples are gray or colored pictures with values from 0 to 1."""
    shape = samples.shape[1:]
    fits = len(shape) == 3 and shape[0] in (1, 3) and samples.is_floating_point()
    return fits and bool((samples >= 0).all()) and bool((samples <= 1).all())


def public_picture(samples: Tensor) -> Tensor | None:
    """(1, n) a picture in the mean color of photos, as large as these; None for other samples."""
    if not are_pictures(samples):
        return None
    color = torch.tensor(PHOTOS_MEAN, dtype=torch.float64)[:, None, None]
    channels, height, width = samples.shape[1:]
    return (
        (color if channels == 3 else color.mean(0, keepdim=True))
        .expand(channels, height, width)
        .reshape(1, -1)
    )


def public_inputs(samples: Tensor) -> Tensor | None:
    """(k, …) inputs of the kind that are not this client's own: embedded photos for square
    pictures, standard normal rows for rows of numbers. None where the package has none."""
    shape = tuple(samples.shape[1:])
    if are_pictures(samples) and shape[1] == shape[2]:
        own = _own(_photos(shape[1], shape[0]), samples)
        return None if bool(own.all()) else _photos(shape[1], shape[0], tuple(own.tolist()))
    if len(shape) == 1 and samples.is_floating_point():
        return _rows(shape[0])
    return None


# The same tensor each time: what a model makes of it is computed once (`running.sharing.once`).
@lru_cache(maxsize=8)
def _photos(side: int, channels: int = 3, without: tuple[bool, ...] = ()) -> Tensor:
    if without:
        return _photos(side, channels)[~torch.tensor(without)]
    photos = embedded_batch(photo_count(), image_size=side).images
    return photos if channels == 3 else photos.mean(1, keepdim=True)


@lru_cache(maxsize=8)
def _rows(length: int) -> Tensor:
    return torch.randn(_ROWS, length, generator=torch.Generator().manual_seed(_SEED))


def _own(photos: Tensor, samples: Tensor) -> Tensor:
    """(k,) which of the public photos are among the client's samples, blends included."""
    toneless = [
        flat(each - each.mean((2, 3), keepdim=True))
        for each in (photos, samples.detach().cpu().float())
    ]
    found, known = (rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-30) for rows in toneless)
    return ((found @ known.T) >= math.sqrt(_OWN)).any(1)
