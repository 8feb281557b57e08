"""Networks that the user plugs in: a generator (latents → pictures) and a denoiser (pictures →
pictures).

A generator is a `torch.nn.Module` whose `forward` turns (B, *latent_shape) standard normal latents
into (B, c, h, w) pictures in [0, 1]. It says so itself:

    latent_shape   an int or a tuple
    conditional    optional; True: `forward(latents, targets)` gets the (B, C) rows of the labels
                   found, too (BigGAN, say)
    photos         optional; which photos it was trained with, for the list of what was granted to
                   the attacker

It is given as the module, as `FILE.py:FACTORY` with a state dict in `weights`, as a file of `unsum
train-inverse`, or as `inverse`: the embedded inverse, whose decoder draws pictures from features. A
denoiser is a module from pictures to pictures, given as a module or as `FILE.py:FACTORY`, or it is
`median`, a filter of 3×3 pixels.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import pad, unfold

from unsum.errors import UnsumError
from unsum.invert import load_inverse
from unsum.labels.feature_sign import feature_sign
from unsum.match.problem import Problem
from unsum.models.from_file import build_from_file
from unsum.models.weights_file import load_weights

INVERSE, MEDIAN = "inverse", "median"
_TEACHERS = "those that the {} was trained with"


@dataclass(frozen=True, repr=False)
class Generator:
    """(B, *latent) latents → (B, c, h, w) pictures."""

    module: nn.Module
    latent: tuple[int, ...]
    photos: str
    targets: Tensor | None = None  # (B, C), where the module is conditional

    def __repr__(self) -> str:
        """Two generators of one class are told apart by their weights, as checkpoints must."""
        digest = hashlib.sha256()
        for name, tensor in self.module.state_dict().items():
            digest.update(name.encode() + tensor.double().sum().cpu().numpy().tobytes())
        return f"Generator({type(self.module).__name__}, {self.latent}, {digest.hexdigest()[:16]})"

    def __call__(self, latents: Tensor) -> Tensor:
        return self.drawn(latents, {})

    def drawn(self, latents: Tensor, weights: dict[str, Tensor]) -> Tensor:
        """The pictures that the module would make with other weights of these names."""
        given = (latents,) if self.targets is None else (latents, self.targets)
        return functional_call(self.module, weights, given)


def load_generator(problem: Problem, given: nn.Module | str, weights: str) -> Generator:
    """The generator named, frozen and beside the model; refused unless it draws pictures of the
    problem's shape."""
    if isinstance(given, str) and not given:
        raise UnsumError(
            f"{problem.method!r} needs a generator of pictures: give generator= a module or "
            "FILE.py:FACTORY (with weights=FILE), or 'inverse' where the model has a learned "
            "inverse."
        )
    if isinstance(given, str) and (given == INVERSE or given.endswith(".safetensors")):
        return _of_inverse(problem, None if given == INVERSE else given)
    module = _module(problem, given, weights, "generator")
    shape = getattr(module, "latent_shape", None)
    latent = (shape,) if isinstance(shape, int) else shape
    if (
        not isinstance(latent, tuple)
        or not latent
        or not all(isinstance(n, int) and n > 0 for n in latent)
    ):
        raise UnsumError(
            "A generator says what it draws from: set its `latent_shape` to an int or a tuple, not "
            f"{shape!r}."
        )
    photos = getattr(module, "photos", "") or _TEACHERS.format("generator")
    targets = problem.targets if getattr(module, "conditional", False) else None
    generator = Generator(module, latent, photos, targets)
    _check(problem, "generator", generator, latent)
    return generator


def load_denoiser(
    problem: Problem, given: nn.Module | str, weights: str
) -> Callable[[Tensor], Tensor]:
    if given == MEDIAN:
        return median_filter
    module = _module(problem, given, weights, "denoiser")
    _check(problem, "denoiser", module, problem.shape)
    return module


def median_filter(images: Tensor) -> Tensor:
    """Every pixel becomes the median of the nine around it.

    >>> picture = torch.zeros(1, 1, 4, 4)
    >>> picture[0, 0, 1, 1] = 1.0
    >>> float(median_filter(picture).max())
    0.0
    """
    flat = images.flatten(0, 1)[:, None]
    found: Tensor = unfold(pad(flat, (1, 1, 1, 1), "replicate"), 3).median(dim=1).values
    return found.view_as(images)


def photos_of(given: nn.Module | str, what: str) -> str:
    """What to say of the photos behind a network, for the list of what was granted; a filter has
    seen none."""
    return "" if given in ("", MEDIAN) else getattr(given, "photos", "") or _TEACHERS.format(what)


class _Decoded(nn.Module):
    """The decoder of an inverse, fed with latents of about the size that it was calibrated for."""

    def __init__(self, decoder: nn.Module, *, signed: bool) -> None:
        super().__init__()
        self.decoder, self.signed = decoder, signed

    def forward(self, latents: Tensor) -> Tensor:
        size = latents if self.signed else latents.abs()
        return self.decoder(size / getattr(self.decoder, "gain", 1.0))


def _of_inverse(problem: Problem, path: str | None) -> Generator:
    inverse = load_inverse(problem.model, path)
    signed = (
        feature_sign(problem.model, problem.head_names[0].rpartition(".")[0]).non_negative
        is not True
    )
    module = _ready(problem, _Decoded(inverse.decoder, signed=signed))
    latent = (math.prod(inverse.card["layout"]["shape"]),)
    generator = Generator(module, latent, inverse.photos)
    _check(problem, "inverse", generator, latent)
    return generator


def _module(problem: Problem, given: nn.Module | str, weights: str, what: str) -> nn.Module:
    """Frozen and beside the model."""
    if isinstance(given, nn.Module):
        return _ready(problem, given)
    file, _, factory = str(given).rpartition(":")
    if not file.endswith(".py"):
        raise UnsumError(
            f"A {what} is a torch module, or FILE.py:FACTORY with its weights=FILE, not "
            f"{str(given)!r}."
        )
    module = build_from_file(Path(file), factory, problem.classes)
    # a classifier may get a new head; a generator may not
    if weights and not load_weights(module, Path(weights)):
        raise UnsumError(f"The weights in {Path(weights).name!r} do not fit the {what}.")
    return _ready(problem, module)


def _ready(problem: Problem, module: nn.Module) -> nn.Module:
    """A frozen copy: the user's own stays as it is."""
    return copy.deepcopy(module).to(problem.zero).eval().requires_grad_(False)


def _check(
    problem: Problem, what: str, network: Callable[[Tensor], Tensor], reads: tuple[int, ...]
) -> None:
    wanted = (problem.batch_size, *problem.shape)
    try:
        with torch.no_grad():
            found = tuple(network(torch.zeros(problem.batch_size, *reads).to(problem.zero)).shape)
    except Exception as error:  # the user's own code
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise UnsumError(
            f"The {what} fails on a batch of {problem.batch_size}: {type(error).__name__}: "
            f"{reason}."
        ) from error
    if found != wanted:
        raise UnsumError(
            f"The {what} draws pictures of {found}, and the model takes {wanted}; use one of this "
            "size."
        )
