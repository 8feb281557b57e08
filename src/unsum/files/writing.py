"""Files and folders written whole or not at all: under another name first, which a fault leaves
behind for nobody."""

from __future__ import annotations

import contextlib
import errno
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

PART = ".part"


def write_whole(path: Path, write: Callable[[Path], object]) -> Path:
    """`write` fills a file beside `path` that then takes its place; what was there stays until
    then."""
    part = path.with_name(path.name + PART)
    try:
        write(part)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return path


def write_folder(folder: Path, write: Callable[[Path], object]) -> None:
    """`write` fills a folder inside `folder`, whose files then take their places; a fault leaves
    not even an empty folder."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    part = folder / PART
    try:
        part.mkdir(parents=True)
        write(part)
        for file in part.iterdir():
            file.replace(folder / file.name)
        part.rmdir()
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        with contextlib.suppress(OSError):  # the folders that were made for it, from the inside out
            for place in missing:
                place.rmdir()
        raise


def save_tensors(
    tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None
) -> None:
    """safetensors; its own error for a full disk, which is no OSError, becomes one."""
    try:
        save_file(tensors, path, metadata)
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        raise OSError(int(number[1]) if number else errno.EIO, str(error), str(path)) from error


def write_text(path: Path, text: str) -> Path:
    return write_whole(path, lambda part: part.write_text(text, encoding="utf-8"))


def write_pictures(path: Path, images: Tensor) -> None:
    """Pictures found so far, for a person who waits: side by side as a PNG; a viewer that reloads
    it never meets half a file."""
    from PIL import Image  # here, because most runs draw nothing
    from torchvision.utils import make_grid

    grid = make_grid(images.detach().float().cpu().clamp(0, 1), nrow=8, padding=1, pad_value=1.0)
    pixels = (grid * 255).round().byte().permute(1, 2, 0).numpy()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, lambda part: Image.fromarray(pixels).save(part, format="PNG"))
