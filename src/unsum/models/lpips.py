"""LPIPS, when its AlexNet is on this machine. unsum downloads nothing behind its user's back."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unsum.files.torch_file import no_code_from_files

# of torchvision's AlexNet_Weights.IMAGENET1K_V1, which takes seconds to import
_ALEXNET = "alexnet-owt-7be5be79.pth"


def weights_file() -> Path:
    """Where torchvision keeps the AlexNet that LPIPS compares with, once it was downloaded."""
    return Path(torch.hub.get_dir()) / "checkpoints" / _ALEXNET


def lpips_status() -> str | None:
    """None when LPIPS can be computed, else a sentence that says what is missing."""
    path = weights_file()
    if path.is_file():
        return None
    return (
        f"LPIPS is not reported: torchvision's AlexNet weights, {path.name}, are not in "
        "torch.hub's folder of checkpoints."
    )


def lpips(found: Tensor, true: Tensor) -> float:
    """Perceptual distance (AlexNet) of one (3, h, w) picture in [0, 1]; NaN when the weights are
    not there."""
    if lpips_status() is not None:
        return float("nan")
    with torch.no_grad():
        network = lpips_network(str(found.device), str(weights_file()))
        return float(network(found[None].clamp(0, 1), true[None], normalize=True))


@cache
def lpips_network(device: str, _path: str = "") -> Any:
    """The network itself, called as network(found, true, normalize=True) → (B, 1, 1, 1), with
    derivatives."""
    from torchmetrics.image.lpip import LearnedPerceptualImagePatchSimilarity

    with no_code_from_files():
        network = LearnedPerceptualImagePatchSimilarity(net_type="alex", normalize=True).net
    return network.to(device).requires_grad_(False)
