"""Update → labels only."""

from unsum.labels import bias_sign  # noqa: F401 (registers the rule)
from unsum.labels.method import LABEL_RULES

__all__ = ["LABEL_RULES"]
