"""The adaptive separator, one idea per file."""

from unsum.separate.adaptive.method import adaptive

__all__ = ["adaptive"]
