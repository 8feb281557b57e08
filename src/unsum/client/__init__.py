"""The other side: local training and augmentation, ending in an Update."""

from unsum.client.augment import mixup, smooth_labels
from unsum.client.capture import capture
from unsum.client.local import capture_local
from unsum.client.text import capture_text

__all__ = ["capture", "capture_local", "capture_text", "mixup", "smooth_labels"]
