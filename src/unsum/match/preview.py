"""A picture file of what has been found so far, for a person who waits."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor


def show(path: Path, images: Tensor) -> None:
    """Write `images` side by side as a PNG; a viewer that reloads it never meets half a file."""
    from PIL import Image  # here, because most runs draw nothing
    from torchvision.utils import make_grid

    grid = make_grid(images.detach().float().cpu().clamp(0, 1), nrow=8, padding=1, pad_value=1.0)
    pixels = (grid * 255).round().byte().permute(1, 2, 0).numpy()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.part")
    Image.fromarray(pixels).save(temporary, format="PNG")
    temporary.replace(path)
