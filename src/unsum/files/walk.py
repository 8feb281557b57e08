"""The files under a folder of the user's, through links to folders, too: many keep their photos on
another disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def files_under(folder: Path) -> Iterator[Path]:
    """Every regular file, in no order. A folder is read once, whatever leads to it.

    A link to a folder that holds `folder` itself is passed over: an unpacked archive could lead to
    the whole disk so.
    """
    real = folder.resolve()
    seen = {real}
    for place, folders, names in os.walk(folder, followlinks=True):
        kept = []
        for name in sorted(folders):
            target = Path(place, name).resolve()
            if target not in seen and target not in real.parents:
                seen.add(target)
                kept.append(name)
        folders[:] = kept
        yield from (file for name in names if (file := Path(place, name)).is_file())
