"""Private data of an audited client: photos that ship with the package, and the user's own."""

from unsum.data.embedded import Batch, embedded_batch, photo_count, share_label, tags
from unsum.data.pictures import Photos, read_photos

__all__ = ["Batch", "Photos", "embedded_batch", "photo_count", "read_photos", "share_label", "tags"]
