"""Private data of an audited client: photos that ship with the package, and the user's own."""

from unsum.data.batch import (
    Batch,
    class_names_of,
    client_batch,
    embedded_batch,
    own_sides,
    photo_count,
    share_label,
    tags,
)
from unsum.data.datasets import open_data
from unsum.data.pictures import Photos, read_photos
from unsum.data.sources import Source

__all__ = [
    "Batch",
    "Photos",
    "Source",
    "class_names_of",
    "client_batch",
    "embedded_batch",
    "open_data",
    "own_sides",
    "photo_count",
    "read_photos",
    "share_label",
    "tags",
]
