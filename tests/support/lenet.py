"""Photos for the federated tutorials' network: 32 crops of the embedded ones, in ten classes."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from unsum.audit.pictures import to_image
from unsum.data import embedded_batch

NET = Path(__file__).parents[2] / "examples" / "lenet.py"
BATCH, CLASSES = 32, 10


def crops() -> Tensor:
    """(32, 3, 32, 32): the left and the right half of every photo's middle."""
    whole = embedded_batch(16, image_size=64).images
    return torch.cat([whole[:, :, 16:48, :32], whole[:, :, 16:48, 32:]])


def write_crops(folder: Path) -> None:
    """A folder for each class, as `--data` takes them."""
    for number, crop in enumerate(crops()):
        place = folder / f"class-{number % CLASSES}"
        place.mkdir(parents=True, exist_ok=True)
        to_image(crop).save(place / f"{number:02}.png")
