"""What every source of models hands back, and what they share."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from unsum.head import find_head

USUAL_SIZE = 224  # side of pictures of ImageNet models, where a model says nothing
RANDOM = "random weights"
FRESH = " under a fresh head"  # behind where the other weights come from


@dataclass(frozen=True)
class Built:
    """A model before any weights of the user's: what it is, where its weights come from, and its
    photos' side."""

    model: nn.Module
    kind: str
    size: int
    origin: str = RANDOM
    any_size: bool = False
    guessed: bool = False  # the size is only the usual one: what the model takes is tried out
    trained_head: bool = False


def fresh_head(model: nn.Module, classes: int, seed: int) -> None:
    """Another task: a head of `classes` classes, as PyTorch initializes it, in the place of the old
    one."""
    name, old = find_head(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        new = nn.Linear(old.in_features, classes, bias=old.bias is not None)
    model.set_submodule(name, new.to(old.weight))


def backbone_fingerprint(model: nn.Module) -> str:
    """16 hex digits over every parameter but the head's, which changes from task to task: no
    inverse is used with another one."""
    head_name, _ = find_head(model)
    prefix = f"{head_name}." if head_name else ""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        if not (prefix and name.startswith(prefix)):
            digest.update(name.encode())
            digest.update(
                parameter.detach().to("cpu", torch.float32).contiguous().numpy().tobytes()
            )
    return digest.hexdigest()[:16]


def looks_at_pictures(model: nn.Module) -> bool:
    """Whether it has two-dimensional convolutions, or says how large its photos are; dense layers
    alone may be for tables."""
    return hasattr(model, "image_size") or any(
        parameter.ndim == 4 for parameter in model.parameters()
    )


def dense_layers(*widths: int) -> nn.Sequential:
    """Linear layers of these widths, ReLU between them."""
    layers = [
        layer
        for width, following in pairwise(widths)
        for layer in (nn.Linear(width, following), nn.ReLU())
    ]
    return nn.Sequential(*layers[:-1])


class Normalize:
    """A hook that gives a model its photos as it was trained to see them; callers keep photos in
    [0, 1].

    A hook, not a layer: the names of the parameters stay those that clients know.
    """

    def __init__(self, mean: list[float], std: list[float]) -> None:
        self.mean, self.std = mean, std

    def __call__(self, _model: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        images, *rest = inputs
        mean, std = (images.new_tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        return ((images - mean) / std, *rest)
