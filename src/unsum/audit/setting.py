"""What an audit ran on."""

from __future__ import annotations

import platform

import torch
import torchvision

from unsum.version import __version__


def device_name(device: torch.device) -> str:
    return (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{device.type}, {torch.get_num_threads()} threads"
    )


def versions() -> dict[str, str]:
    return {
        "unsum": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
    }
