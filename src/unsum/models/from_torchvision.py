"""torchvision's classifiers: `torchvision:NAME` with random weights, `torchvision:NAME:WEIGHTS`
with published ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import torch
from torch import nn

from unsum.errors import UnsumError, check_name, first_line
from unsum.files.torch_file import no_code_from_files
from unsum.head import find_head
from unsum.models.built import FRESH, USUAL_SIZE, Built, Normalize, fresh_head

_SIZES = {"inception_v3": 299}


def build_torchvision(
    name: str, classes: int, seed: int, *, download: bool = False, fresh: bool = False
) -> Built:
    """`name` may carry weights behind a colon, IMAGENET1K_V1 or DEFAULT, say; they are looked for
    on disk alone."""
    from torchvision import models  # here, because it takes seconds to import

    name, _, published = name.partition(":")
    known = models.list_models(module=models)
    check_name("torchvision model", name, known)
    try:
        if published:
            return _published(models, name, published, classes if fresh else None, seed, download)
        options = {"init_weights": True} if name in ("googlenet", "inception_v3") else {}
        model = models.get_model(name, weights=None, num_classes=classes, **options)
        if _starts_at_zero(model):
            fresh_head(model, classes, seed)
    except UnsumError:
        raise
    except (ValueError, RuntimeError) as error:
        raise UnsumError(f"torchvision cannot build {name!r}: {error}.") from error
    return Built(
        model, f"torchvision {name}", _SIZES.get(name, USUAL_SIZE), any_size=True, guessed=True
    )


def _starts_at_zero(model: nn.Module) -> bool:
    """Whether the head, as ViTs' is, lets no gradient pass until it has made a step."""
    try:
        return not bool(find_head(model)[1].weight.any())
    except UnsumError:  # no linear head; the attacks refuse such a model themselves
        return False


def _published(
    models: Any, name: str, published: str, classes: int | None, seed: int, download: bool
) -> Built:
    """Under a fresh head where `classes` says so; photos are normalized as these weights expect."""
    choices = models.get_model_weights(name)
    check_name(f"set of weights for {name}", published, choices.__members__)
    entry: Any = choices[published]
    file = Path(torch.hub.get_dir()) / "checkpoints" / Path(urlparse(entry.url).path).name
    if not file.is_file() and not download:
        raise UnsumError(
            f"The weights {entry} are not on this disk; put {file.name!r} into "
            f"{str(file.parent)!r}, or add --download."
        )
    try:
        with no_code_from_files():  # torch.hub would unpickle whatever lies in its folder
            model: nn.Module = models.get_model(name, weights=entry)
    except Exception as error:
        # a damaged file, or no network: torch and urllib raise nearly anything
        raise UnsumError(
            f"The weights in {str(file)!r} cannot be loaded: {first_line(error)}."
        ) from error
    if classes is not None:
        fresh_head(model, classes, seed)
    transform = entry.transforms()
    model.register_forward_pre_hook(Normalize(transform.mean, transform.std))
    origin = f"weights {entry.name}" + ("" if classes is None else FRESH)
    return Built(
        model,
        f"torchvision {name}",
        transform.crop_size[0],
        origin,
        any_size=True,
        trained_head=classes is None,
    )
