"""The two ways in: an update for a small model, and photos."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from unsum import Update
from unsum.data import Photos, read_photos


def read_update_of(path: Path) -> Update:
    model = nn.Module()
    model.fc = nn.Linear(4, 3)
    update = Update.load(path)
    update.validate(model)
    return update


def read_photos_of(path: Path) -> Photos:
    return read_photos(path, size=8)
