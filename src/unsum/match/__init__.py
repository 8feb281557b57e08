"""Whole gradient → images."""

from unsum.match import dlg, ig  # noqa: F401 (registers them)
from unsum.match.method import MATCHERS
from unsum.match.run import match

__all__ = ["MATCHERS", "match"]
