"""A small real task to learn: tiles of the photos that ship with the package, or the user's own pictures."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from unsum.data import embedded_batch, photo_count
from unsum.errors import UnsumError
from unsum.files.array_file import read_npz
from unsum.files.limits import LimitError

SIDE = 32  # of the pictures, in pixels
_PHOTO_SIDE = 256
_MOST = 4096  # pictures taken from the user's file: more would change the time, not the answer
_FEWEST = 64


@dataclass(frozen=True)
class Pictures:
    """A task: (n, 3, 32, 32) pictures in [0, 1] with class numbers, to learn from and to be tested on."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    about: str

    @cached_property
    def classes(self) -> int:
        return int(max(self.train[1].max(), self.test[1].max())) + 1

    @property
    def chance(self) -> float:
        """The accuracy of always answering the class that is most frequent in the test."""
        return float(self.test[1].bincount().max()) / len(self.test[1])


def photo_tiles() -> Pictures:
    """Which of the embedded photos is this tile from? Tiles as on a chessboard: learn from the black, test on the white."""
    count = photo_count()
    photos = embedded_batch(count, image_size=_PHOTO_SIDE).images
    tiles = photos.unfold(2, SIDE, SIDE).unfold(3, SIDE, SIDE).permute(0, 2, 3, 1, 4, 5)
    rows = torch.arange(_PHOTO_SIDE // SIDE)
    black = (rows[:, None] + rows[None, :]) % 2 == 0
    labels = torch.arange(count)[:, None].expand(-1, int(black.sum())).flatten()
    return Pictures(
        (tiles[:, black].flatten(0, 1), labels),
        (tiles[:, ~black].flatten(0, 1), labels),
        f"Which of the {count} embedded photos is this {SIDE}×{SIDE} tile from? Tested on tiles that no client has.",
    )


def pictures_from_file(path: str | Path, *, seed: int = 0) -> Pictures:
    """A task of the user's own, a quarter for the test: an .npz file with `images` (n, h, w, 3 or 1) uint8 and `labels` (n,)."""
    images, labels = _read(Path(path))
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))[:_MOST]
    numbers = torch.from_numpy(np.unique(labels, return_inverse=True)[1]).long()[order]
    pixels = torch.from_numpy(images)[order].permute(0, 3, 1, 2).float() / 255
    small = nn.functional.interpolate(pixels, (SIDE, SIDE), mode="bilinear", antialias=True)
    small = small.expand(-1, 3, -1, -1)
    test = len(small) // 4
    name = Path(path).name
    return Pictures((small[test:], numbers[test:]), (small[:test], numbers[:test]), f"The labeled pictures in {name}.")


def _read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        content = read_npz(path, ("images", "labels"))
        images, labels = content["images"], content["labels"]
    except FileNotFoundError:
        raise UnsumError(f"There is no file {str(path)!r} to train on; check --utility-data.") from None
    except LimitError as error:
        raise UnsumError(f"{str(path)!r} is too large to be read: {error}.") from None
    except Exception:  # numpy, zipfile and zlib raise nearly anything on a damaged file
        raise UnsumError(
            f"{str(path)!r} cannot be trained on; give an .npz file with the arrays 'images' and 'labels'."
        ) from None
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] not in (1, 3):
        raise UnsumError(
            f"The images in {str(path)!r} must be uint8 of shape (n, height, width, 3 or 1), not {images.dtype} {images.shape}."
        )
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu" or len(np.unique(labels)) < 2:
        raise UnsumError(
            f"The labels in {str(path)!r} must be one whole number per image, of two classes or more, not "
            f"{labels.dtype} {labels.shape} for {len(images)} images."
        )
    if len(images) < _FEWEST:
        raise UnsumError(f"{str(path)!r} holds {len(images)} pictures; at least {_FEWEST} are needed to train on.")
    return images, labels
