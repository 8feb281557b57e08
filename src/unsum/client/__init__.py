"""The other side: local training and augmentation, ending in an Update."""

from unsum.client.augment import mixup, smooth_labels
from unsum.client.capture import capture

__all__ = ["capture", "mixup", "smooth_labels"]
