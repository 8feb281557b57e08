"""ResNets come in two versions with the same parameters: which one were these weights trained as?

Where a stage halves the side of its maps, version 1 takes the step in a 1×1 convolution, version
1.5 (torchvision's) in the 3×3 convolution behind it. Weights of one load into the other without a
complaint and then give wrong features. Their running statistics tell: what a 3×3 convolution writes
is spread otherwise where the pixels it reads lie two apart. So eight embedded photos go up to the
first block that takes a step, and it is tried both ways: the version whose statistics are nearer to
the running ones is the one that was trained.
"""

from __future__ import annotations

from contextlib import suppress
from importlib.resources import files
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor, nn

from unsum.errors import UnsumError
from unsum.gradients import in_eval_mode

# Eight motifs: the statistics of one photo are its own, those of eight are near to a data set's.
_PHOTOS = (
    "chelsea",
    "coffee",
    "flower",
    "tower",
    "picos-de-europa",
    "motorcycle",
    "aitzgorri",
    "seeding",
)
_SIDE = 224  # of photos that ImageNet's networks are trained with
PHOTOS_MEAN, PHOTOS_DEVIATION = (
    (0.485, 0.456, 0.406),
    (0.229, 0.224, 0.225),
)  # of ImageNet's, as such networks expect them
# Divergence of a channel from its running statistics, the median: 0.01 for ImageNet's ResNet-50 in
# the right version, 0.02 in the other. Weights that are farther from both have seen other pictures,
# and nothing is said of them.
_NEAR = 0.05
# How many times nearer the other version must be; measured: 1.9 with these photos, 1.35 to 2.2 with
# others.
_CLEARLY = 1.3
_LEAST_VARIANCE = 1e-6  # of channels that are alive


class _ReachedError(Exception):
    """The block that is looked at."""


def refuse_other_version(model: nn.Module, name: str) -> None:
    """`model` has the weights of the file `name`; refused where they were clearly trained with the
    strides elsewhere."""
    block: Any = next((block for block in model.modules() if _strided(block)), None)
    if block is None or block.bn2.running_var is None or bool((block.bn2.running_var == 1).all()):
        return
    read = _read_by(block, model)
    if read is None:
        return
    strides = block.conv1.stride, block.conv2.stride
    own = _divergence(block, read)
    try:
        block.conv1.stride, block.conv2.stride = strides[::-1]
        other = _divergence(block, read)
    finally:
        block.conv1.stride, block.conv2.stride = strides
    if other < _NEAR and own > _CLEARLY * other:
        has, needs = ("1", "1.5") if strides[0] == (2, 2) else ("1.5", "1")
        raise UnsumError(
            f"The weights in {name!r} are those of a ResNet of version {needs}, and this model is "
            f"of version {has}, which halves its maps in another convolution and would give wrong "
            "features; load them into the other version (torchvision's is 1.5, "
            "examples/resnet50_v1.py has both)."
        )


def _strided(block: Any) -> bool:
    """A bottleneck block that halves the side of its maps, in one of its first two convolutions."""
    layers = [getattr(block, name, None) for name in ("conv1", "bn1", "conv2", "bn2")]
    kinds = (nn.Conv2d, nn.BatchNorm2d) * 2
    if not all(isinstance(layer, kind) for layer, kind in zip(layers, kinds, strict=True)):
        return False
    kernels = block.conv1.kernel_size == (1, 1) and block.conv2.kernel_size == (3, 3)
    return kernels and sorted((block.conv1.stride, block.conv2.stride)) == [(1, 1), (2, 2)]


def _read_by(block: nn.Module, model: nn.Module) -> Tensor | None:
    """What reaches the block of the embedded photos; None where the model takes no color photos of
    this size."""
    reads: list[Tensor] = []

    def keep(_block: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        reads.append(inputs[0])
        raise _ReachedError

    with (
        suppress(_ReachedError, RuntimeError),
        block.register_forward_pre_hook(keep),
        in_eval_mode(model),
        torch.no_grad(),
    ):
        model(_photos().to(next(model.parameters())))
    return reads[0] if reads else None


@torch.no_grad()
def _divergence(block: Any, read: Tensor) -> float:
    """Of what the 3×3 convolution writes from its running statistics: the median over channels, as
    of normal distributions."""
    norm = block.bn1
    scaled = nn.functional.batch_norm(
        block.conv1(read), norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps
    )
    variance, mean = torch.var_mean(block.conv2(scaled.relu()), (0, 2, 3))
    norm = block.bn2
    alive = (
        norm.running_var.isfinite()
        & (norm.running_var > _LEAST_VARIANCE)
        & (variance > _LEAST_VARIANCE)
    )
    if not bool(alive.any()):
        return float("inf")
    ratio = (variance / norm.running_var)[alive]
    shift = ((mean - norm.running_mean).square() / norm.running_var)[alive]
    return float(((ratio + shift - 1 - ratio.log()) / 2).median())


def _photos() -> Tensor:
    """(8, 3, 224, 224), normalized: the package's own photos, no client's."""
    folder, found = files("unsum") / "data" / "photos", []
    for name in _PHOTOS:
        with (folder / f"{name}.jpg").open("rb") as file, Image.open(file) as opened:
            square = ImageOps.fit(opened.convert("RGB"), (_SIDE, _SIDE), Image.Resampling.LANCZOS)
        found.append(torch.from_numpy(np.array(square)).permute(2, 0, 1).float() / 255)
    return (torch.stack(found) - torch.tensor(PHOTOS_MEAN).view(3, 1, 1)) / torch.tensor(
        PHOTOS_DEVIATION
    ).view(3, 1, 1)
