"""Models by name: the embedded default, torchvision's classifiers, and the user's own with their
weights."""

from unsum.models.built import backbone_fingerprint
from unsum.models.load import DEFAULT_MODEL, LoadedModel, load_model

__all__ = ["DEFAULT_MODEL", "LoadedModel", "backbone_fingerprint", "load_model"]
