"""Photos that ship with the package: the private data of the default victim."""

from unsum.data.embedded import Batch, embedded_batch, photo_count, tags

__all__ = ["Batch", "embedded_batch", "photo_count", "tags"]
